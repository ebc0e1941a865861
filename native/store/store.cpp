#include "store/store.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/float_env.hpp"
#include "common/isa.hpp"
#include "common/pool.hpp"

namespace elbowroom {
namespace {

// Digests and planes are defined by bytes in this order.
static_assert(std::endian::native == std::endian::little);

const StoreKernels& store_kernels() noexcept {
#if ELBOWROOM_X86
    switch (current()) {
        case Isa::avx512:
            return avx512::store_kernels;
        case Isa::avx2:
            return avx2::store_kernels;
        case Isa::scalar:
            break;
    }
#endif
    return scalar::store_kernels;
}

// Bytes that a thread takes at once, about.
constexpr std::size_t run_bytes = std::size_t{1} << 19;
constexpr std::size_t copy_bytes = std::size_t{1} << 20;

}  // namespace

void hash_whole(const std::uint8_t* data, std::size_t nbytes, std::uint8_t* out) noexcept {
    store_kernels().hash(data, nbytes, nbytes, out);
}

void hash_parts(const std::uint8_t* data, std::size_t nbytes, std::size_t part_bytes,
                std::uint8_t* out, unsigned threads) noexcept {
    if (nbytes == 0) return;
    const StoreKernels& kernels = store_kernels();
    // Not (nbytes + part_bytes - 1): a part may be as long as memory.
    const std::size_t parts = (nbytes - 1) / part_bytes + 1;
    const std::size_t run = std::max<std::size_t>(run_bytes / part_bytes, 1);
    parallel_for((parts - 1) / run + 1, threads, [&](std::size_t task) {
        const std::size_t first = task * run * part_bytes;
        const std::size_t most = std::min(run, parts - task * run) * part_bytes;
        kernels.hash(data + first, std::min(most, nbytes - first), part_bytes,
                     out + task * run * digest_bytes);
    });
}

std::size_t digests_above(std::size_t leaves) noexcept {
    std::size_t above = 0;
    for (std::size_t n = leaves; n > 1;) above += n = (n + 1) / 2;
    return above;
}

void hash_pairs(const std::uint8_t* leaves, std::size_t count, std::uint8_t* out) noexcept {
    const StoreKernels& kernels = store_kernels();
    const std::uint8_t* below = leaves;
    for (std::size_t n = count; n > 1;) {
        const std::size_t pairs = n / 2;
        kernels.hash(below, pairs * 2 * digest_bytes, 2 * digest_bytes, out);
        if (n % 2)
            std::memcpy(out + pairs * digest_bytes, below + (n - 1) * digest_bytes, digest_bytes);
        n = (n + 1) / 2;
        below = out;
        out += n * digest_bytes;
    }
}

void copy_runs(const std::vector<Run>& runs, unsigned threads) {
    const StoreKernels& kernels = store_kernels();
    std::vector<Run> parts;
    for (const Run& run : runs)
        for (std::size_t at = 0; at < run.nbytes; at += copy_bytes)
            parts.push_back({run.from + at, run.to + at, std::min(copy_bytes, run.nbytes - at)});
    parallel_for(parts.size(), threads, [&](std::size_t task) {
        kernels.copy(parts[task].from, parts[task].to, parts[task].nbytes);
    });
}

void split_planes(Relation relation, const std::uint8_t* now, const std::uint8_t* before,
                  std::size_t count, std::uint8_t* out) noexcept {
    const DefaultFloatEnv float_env;
    store_kernels().split(relation, now, before, count, out);
}

void join_planes(Relation relation, const std::uint8_t* const* planes, std::size_t count,
                 std::uint8_t* target) noexcept {
    const DefaultFloatEnv float_env;
    store_kernels().join(relation, planes, count, target);
}

}  // namespace elbowroom
