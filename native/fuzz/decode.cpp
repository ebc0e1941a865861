// Fuzz target: bytes that claim to be a payload. Nothing may be read or written outside of them and
// of the array, and every level must come to the same result.
#include <cstdio>

#include "codec/workspace.hpp"
#include "common/float_env.hpp"
#include "fuzz/input.hpp"
#include "fuzz/mutation.hpp"
#include "tests/coding.hpp"

using namespace elbowroom;

namespace {

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

// decode() streams only targets that are larger than any input here makes. How it does so depends
// on where the target begins.
void decode_streaming(const fuzz::Payload& p, const coding::Guarded& expected, std::size_t offset) {
    const DefaultFloatEnv float_env;
    const coding::Guarded target(expected.size(), 0xA5, offset);
    const std::size_t item = item_bytes(p.stream.quantiser.dtype), length = chunk_items(p.stream);
    Quantiser quantiser = p.stream.quantiser;
    const DitherTable shifts(quantiser);
    const std::uint8_t* in = p.bytes;
    for (std::size_t c = 0; c < p.sizes.size(); ++c) {
        const coding::Guarded chunk(in, p.sizes[c]);
        const std::size_t items = coding::items_of_chunk(p.stream, p.items, c);
        Workspace work;
        if (!work.reserve(p.stream, std::min(p.items, length), false)) return;
        const auto kernel =
            p.stream.codec == Codec::dense ? dense_kernels().decode : block_kernels().decode;
        if (!kernel(quantiser, p.stream.geometry, chunk.data(), chunk.size(), c * length, items,
                    target.data() + c * length * item, true, work.scratch))
            fail("refused only when streaming");
        in += p.sizes[c];
    }
    if (std::memcmp(target.data(), expected.data(), expected.size()) != 0)
        fail("other items when streaming");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Payload p;
    if (!fuzz::read_payload(data, size, p)) return 0;
    std::vector<ChunkEntry> directory;
    const std::uint8_t* at = p.bytes;
    for (const std::uint32_t bytes : p.sizes) {
        directory.push_back({bytes, checksum(at, bytes)});
        at += bytes;
    }
    const std::vector<Isa> levels = coding::two_levels(checksum(data, size));
    const coding::AtLevel before(levels[0]);
    const coding::Decoded first(p.stream, directory, p.bytes, p.size, p.items, 0x5A);
    if (first.verdict == Verdict::bad_checksum) fail("the checksum does not fit itself");
    for (const Isa isa : levels) {
        if (isa == levels[0]) continue;
        const coding::AtLevel level(isa);
        // Another fill: bytes that nobody writes become a difference.
        const coding::Decoded other(p.stream, directory, p.bytes, p.size, p.items, 0xA5);
        if (other.verdict != first.verdict) fail("levels differ in their verdict");
        if (other.verdict != Verdict::ok) continue;
        if (std::memcmp(first.target.data(), other.target.data(), first.target.size()) != 0)
            fail("levels differ in their items");
        if (p.stream.quantiser.dtype == Dtype::f32 && p.stream.codec != Codec::raw)
            decode_streaming(p, first.target, size % 4 * 16);
    }
    return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
    return fuzz::mutate(data, size, most, seed, fuzz::Tail::payload, LLVMFuzzerMutate);
}
