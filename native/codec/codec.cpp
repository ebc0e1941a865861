#include "codec/codec.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "codec/workspace.hpp"
#include "common/checksum.hpp"
#include "common/float_env.hpp"
#include "common/pages.hpp"
#include "common/pool.hpp"

namespace elbowroom {
namespace {

// Above this the target cannot stay in any cache, and writing around them is faster.
constexpr std::size_t stream_threshold_bytes = std::size_t{16} << 20;

// The raw codec, in the shape of the others.
std::size_t copy_in(const Quantiser& q, const Geometry&, const void* source, std::size_t,
                    std::size_t items, std::uint8_t* dst, Scratch&) {
    std::memcpy(dst, source, items * item_bytes(q.dtype));
    // Any byte but 0 is true, and is kept as 1.
    if (q.dtype == Dtype::boolean)
        for (std::size_t i = 0; i < items; ++i) dst[i] = dst[i] != 0;
    return items * item_bytes(q.dtype);
}
bool copy_out(const Quantiser& q, const Geometry&, const std::uint8_t* in, std::size_t size,
              std::size_t, std::size_t items, void* target, bool, Scratch&) {
    if (size != items * item_bytes(q.dtype)) return false;
    auto* out = static_cast<std::uint8_t*>(target);
    std::memcpy(out, in, size);
    if (q.dtype == Dtype::boolean)
        for (std::size_t i = 0; i < size; ++i) out[i] &= 1;
    return true;
}

struct Range {
    std::size_t first, count;
};

Range items_of_chunk(const Stream& s, std::size_t items, std::size_t chunk) noexcept {
    const std::size_t length = chunk_items(s);
    const std::size_t first = chunk * length;
    return {first, std::min(length, items - first)};
}

void fail_at(std::atomic<std::uint64_t>& worst, std::size_t chunk, Verdict verdict) noexcept {
    std::uint64_t mine =
        (static_cast<std::uint64_t>(chunk) << 8) | static_cast<std::uint8_t>(verdict);
    std::uint64_t seen = worst.load();
    while (mine < seen && !worst.compare_exchange_weak(seen, mine)) {
    }
}

}  // namespace

std::size_t chunk_items(const Stream& s) noexcept {
    const std::size_t share = has_word_planes(s.quantiser) ? 2 : 1;
    if (s.codec == Codec::raw) return kRawChunk;
    if (s.codec == Codec::block) return kBlockChunk / share;
    std::size_t chunk = kDenseChunk / share;
    if (s.geometry.chunk != 0) chunk = std::min(chunk, s.geometry.chunk * kChunkUnit);
    // Whole planes, else whole rows, in every lane.
    const std::size_t longest = chunk * share / 64;
    const std::size_t rows = s.geometry.columns, planes = rows * s.geometry.rows;
    std::size_t unit = 1;
    if (planes >= 1 && planes <= longest)
        unit = planes;
    else if (rows >= 1 && rows <= longest)
        unit = rows;
    const std::size_t step = 64 * unit;
    return step > chunk ? chunk : chunk / step * step;
}

std::size_t chunk_count(const Stream& s, std::size_t items) noexcept {
    return (items + chunk_items(s) - 1) / chunk_items(s);
}

std::size_t chunk_capacity(const Stream& s, std::size_t items) noexcept {
    const std::size_t n = items * (has_word_planes(s.quantiser) ? 2 : 1);
    if (s.codec == Codec::raw) return items * item_bytes(s.quantiser.dtype);
    if (s.codec == Codec::dense) return dense_chunk_capacity(n, item_bytes(s.quantiser.dtype));
    // Count, headers, at most 33 planes a block, and every value listed as failed.
    const std::size_t blocks = (n + kBlock - 1) / kBlock;
    return 4 + blocks + 4 + blocks * 264 + items * (2 + item_bytes(s.quantiser.dtype)) + 64;
}

Verdict encode(const Stream& asked, const void* source, std::size_t items,
               std::vector<Segment>& segments, ChunkEntry* directory, unsigned threads) noexcept {
    const DefaultFloatEnv float_env;
    Stream stream = asked;
    const DitherTable shifts(stream.quantiser);
    const auto kernel = stream.codec == Codec::dense   ? dense_kernels().encode
                        : stream.codec == Codec::block ? block_kernels().encode
                                                       : copy_in;
    const std::size_t item = item_bytes(stream.quantiser.dtype);
    std::atomic<bool> starved{false};
    parallel_for(segments.size(), threads, [&](std::size_t s) {
        Segment& segment = segments[s];
        Workspace work;
        if (!work.reserve(stream, std::min(items, chunk_items(stream)), true)) {
            starved = true;
            return;
        }
        std::uint8_t* out = segment.data;
        PagesAhead pages(out, segment.capacity);
        for (std::size_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
            const Range r = items_of_chunk(stream, items, chunk);
            const auto* from = static_cast<const std::uint8_t*>(source) + r.first * item;
            const std::size_t bytes = kernel(stream.quantiser, stream.geometry, from, r.first,
                                             r.count, out, work.scratch);
            directory[chunk] = {static_cast<std::uint32_t>(bytes), checksum(out, bytes)};
            out += bytes;
            pages.expect(out, bytes * (segment.end_chunk - chunk - 1));
        }
        segment.bytes = static_cast<std::size_t>(out - segment.data);
    });
    return starved ? Verdict::no_memory : Verdict::ok;
}

Verdict decode(const Stream& asked, const std::vector<Segment>& segments,
               const ChunkEntry* directory, std::size_t items, void* target, unsigned threads,
               std::size_t& bad_chunk_index) noexcept {
    const DefaultFloatEnv float_env;
    Stream stream = asked;
    const DitherTable shifts(stream.quantiser);
    const auto kernel = stream.codec == Codec::dense   ? dense_kernels().decode
                        : stream.codec == Codec::block ? block_kernels().decode
                                                       : copy_out;
    const std::size_t item = item_bytes(stream.quantiser.dtype);
    const std::size_t chunks = chunk_count(stream, items);
    std::vector<const std::uint8_t*> starts(chunks);
    for (const Segment& segment : segments) {
        const std::uint8_t* at = segment.data;
        for (std::size_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
            starts[chunk] = at;
            at += directory[chunk].bytes;
        }
    }
    const bool streaming = items * item >= stream_threshold_bytes;
    const std::size_t parts =
        std::min<std::size_t>(chunks, threads <= 1 ? 1 : std::size_t{4} * threads);
    std::atomic<std::uint64_t> worst{~std::uint64_t{0}};
    parallel_for(parts, threads, [&](std::size_t part) {
        const std::size_t begin = chunks * part / parts, end = chunks * (part + 1) / parts;
        Workspace work;
        if (!work.reserve(stream, std::min(items, chunk_items(stream)), false))
            return fail_at(worst, begin, Verdict::no_memory);
        for (std::size_t chunk = begin; chunk < end; ++chunk) {
            const std::size_t bytes = directory[chunk].bytes;
            if (checksum(starts[chunk], bytes) != directory[chunk].checksum)
                return fail_at(worst, chunk, Verdict::bad_checksum);
            const Range r = items_of_chunk(stream, items, chunk);
            auto* to = static_cast<std::uint8_t*>(target) + r.first * item;
            if (!kernel(stream.quantiser, stream.geometry, starts[chunk], bytes, r.first, r.count,
                        to, streaming, work.scratch))
                return fail_at(worst, chunk, Verdict::bad_chunk);
        }
    });
    if (worst == ~std::uint64_t{0}) return Verdict::ok;
    bad_chunk_index = worst >> 8;
    return static_cast<Verdict>(worst & 0xff);
}

}  // namespace elbowroom
