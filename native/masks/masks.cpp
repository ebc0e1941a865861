#include "masks/masks.hpp"

#include <algorithm>
#include <atomic>

#include "common/isa.hpp"
#include "common/pool.hpp"

namespace elbowroom {
namespace {

const MaskKernels& mask_kernels() noexcept {
#if ELBOWROOM_X86
    switch (current()) {
        case Isa::avx512:
            return avx512::mask_kernels;
        case Isa::avx2:
            return avx2::mask_kernels;
        case Isa::scalar:
            break;
    }
#endif
    return scalar::mask_kernels;
}

// Items that a thread takes at once: whole bytes of bits.
constexpr std::size_t run = std::size_t{1} << 17;

template <class Body>
void over_runs(std::size_t n, unsigned threads, Body&& body) noexcept {
    parallel_for((n + run - 1) / run, threads,
                 [&](std::size_t task) { body(task * run, std::min(run, n - task * run)); });
}

const std::uint8_t* at(const void* source, std::size_t bytes) {
    return static_cast<const std::uint8_t*>(source) + bytes;
}

}  // namespace

void pack_positive(Dtype dtype, const void* source, std::size_t n, std::uint8_t* out,
                   unsigned threads) noexcept {
    const MaskKernels& kernels = mask_kernels();
    over_runs(n, threads, [&](std::size_t first, std::size_t count) {
        kernels.positive(dtype, at(source, first * item_bytes(dtype)), count, out + first / 8);
    });
}

bool pack_either(std::size_t item, const void* source, std::size_t n, std::uint64_t low,
                 std::uint64_t high, std::uint8_t* out, unsigned threads) noexcept {
    const MaskKernels& kernels = mask_kernels();
    std::atomic<bool> known{true};
    over_runs(n, threads, [&](std::size_t first, std::size_t count) {
        if (known &&
            !kernels.either(item, at(source, first * item), count, low, high, out + first / 8))
            known = false;
    });
    return known;
}

void expand_bits(std::size_t item, const std::uint8_t* bits, std::size_t n, std::uint64_t low,
                 std::uint64_t high, void* target, unsigned threads) noexcept {
    const MaskKernels& kernels = mask_kernels();
    over_runs(n, threads, [&](std::size_t first, std::size_t count) {
        kernels.expand(item, bits + first / 8, count, low, high,
                       static_cast<std::uint8_t*>(target) + first * item);
    });
}

}  // namespace elbowroom
