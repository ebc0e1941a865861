// The codec functions of elbowroom._native. Arrays come as addresses and sizes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <mutex>
#include <vector>

#include "bindings/bindings.hpp"
#include "codec/choose.hpp"
#include "codec/codec.hpp"
#include "codec/recipe.hpp"
#include "codec/workspace.hpp"
#include "common/checksum.hpp"
#include "common/float_env.hpp"
#include "common/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace elbowroom {
namespace {

constexpr int bad_recipe = 4;

Stream parse(const nb::bytes& recipe) {
    Stream stream;
    if (!read_recipe(reinterpret_cast<const std::uint8_t*>(recipe.c_str()), recipe.size(), stream))
        throw nb::value_error("the recipe is not valid");
    return stream;
}

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

std::vector<Segment> segments_of(const nb::list& list) {
    std::vector<Segment> segments;
    for (const nb::handle entry : list) {
        const auto t = nb::cast<nb::tuple>(entry);
        Segment s;
        s.data = static_cast<std::uint8_t*>(pointer(nb::cast<std::uintptr_t>(t[0])));
        s.capacity = nb::cast<std::size_t>(t[1]);
        s.first_chunk = nb::cast<std::size_t>(t[2]);
        s.end_chunk = nb::cast<std::size_t>(t[3]);
        segments.push_back(s);
    }
    return segments;
}

nb::list encode_segments(const nb::bytes& recipe, std::uintptr_t source, std::size_t items,
                         const nb::list& list, std::uintptr_t directory, unsigned threads) {
    const Stream stream = parse(recipe);
    std::vector<Segment> segments = segments_of(list);
    const std::size_t chunks = chunk_count(stream, items);
    for (const Segment& s : segments) {
        std::size_t needed = 0;
        for (std::size_t c = s.first_chunk; c < s.end_chunk; ++c) {
            if (c >= chunks) throw nb::value_error("a segment names a chunk that does not exist");
            const std::size_t begin = c * chunk_items(stream);
            needed += chunk_capacity(stream, std::min(chunk_items(stream), items - begin));
        }
        if (needed > s.capacity) throw nb::value_error("a segment is smaller than its chunks need");
    }
    Verdict verdict;
    {
        const nb::gil_scoped_release release;
        verdict = encode(stream, pointer(source), items, segments,
                         static_cast<ChunkEntry*>(pointer(directory)), threads);
    }
    if (verdict == Verdict::no_memory) throw std::bad_alloc();
    nb::list used;
    for (const Segment& s : segments) used.append(s.bytes);
    return used;
}

nb::tuple decode_segments(const nb::bytes& recipe, const nb::list& list, std::uintptr_t directory,
                          std::size_t items, std::uintptr_t target, unsigned threads) {
    Stream stream;
    if (!read_recipe(reinterpret_cast<const std::uint8_t*>(recipe.c_str()), recipe.size(), stream))
        return nb::make_tuple(bad_recipe, 0);
    const std::vector<Segment> segments = segments_of(list);
    const auto* entries = static_cast<const ChunkEntry*>(pointer(directory));
    // The segments must hold exactly the chunks, and these exactly their bytes.
    std::size_t next = 0;
    for (const Segment& s : segments) {
        std::size_t bytes = 0;
        if (s.first_chunk != next || s.end_chunk < s.first_chunk)
            throw nb::value_error("the segments do not follow one another");
        if (s.end_chunk > chunk_count(stream, items))
            throw nb::value_error("a segment names a chunk that does not exist");
        for (std::size_t c = s.first_chunk; c < s.end_chunk; ++c) bytes += entries[c].bytes;
        if (bytes != s.capacity) throw nb::value_error("a segment's size is not its chunks' size");
        next = s.end_chunk;
    }
    if (next != chunk_count(stream, items))
        throw nb::value_error("the segments do not hold every chunk");
    std::size_t bad_chunk = 0;
    Verdict verdict;
    {
        const nb::gil_scoped_release release;
        verdict = decode(stream, segments, entries, items, pointer(target), threads, bad_chunk);
    }
    return nb::make_tuple(static_cast<int>(verdict), bad_chunk);
}

nb::bytes choose_recipe(const nb::bytes& recipe, std::uintptr_t source, std::size_t items,
                        std::size_t worth) {
    Stream stream = parse(recipe);
    bool done;
    {
        const nb::gil_scoped_release release;
        done = choose(stream, pointer(source), items, worth);
    }
    if (!done) throw std::bad_alloc();
    std::uint8_t bytes[recipe_bytes];
    write_recipe(stream, bytes);
    return nb::bytes(reinterpret_cast<const char*>(bytes), recipe_bytes);
}

Dtype floating(int number) {
    if (number < 1 || number > 4) throw nb::value_error("only floating-point items have an extent");
    return static_cast<Dtype>(number);
}

nb::tuple extent_of(int dtype, std::uintptr_t source, std::size_t items, unsigned threads) {
    const Dtype d = floating(dtype);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Extent total{infinity, -infinity, 0};
    {
        const nb::gil_scoped_release release;
        constexpr std::size_t run = std::size_t{1} << 20;
        std::mutex merging;
        parallel_for((items + run - 1) / run, threads, [&](std::size_t task) {
            Extent e{infinity, -infinity, 0};
            const auto* from = static_cast<const std::uint8_t*>(pointer(source));
            block_kernels().extent(d, from + task * run * item_bytes(d),
                                   std::min(run, items - task * run), e);
            const std::lock_guard<std::mutex> lock(merging);
            total.low = std::min(total.low, e.low);
            total.high = std::max(total.high, e.high);
            total.count += e.count;
        });
    }
    return nb::make_tuple(total.low, total.high, total.count);
}

}  // namespace

void register_codecs(nb::module_& module) {
    module.def("encode", &encode_segments, "recipe"_a, "source"_a, "items"_a, "segments"_a,
               "directory"_a, "threads"_a,
               "Fill segments (address, capacity, first chunk, end chunk); returns bytes used.");
    module.def("decode", &decode_segments, "recipe"_a, "segments"_a, "directory"_a, "items"_a,
               "target"_a, "threads"_a,
               "Returns (verdict, chunk): 0 fine, 1 checksum, 2 chunk, 3 memory, 4 recipe.");
    module.def(
        "chunk_items", [](const nb::bytes& recipe) { return chunk_items(parse(recipe)); },
        "recipe"_a, "Items of a chunk.");
    module.def(
        "chunk_capacity",
        [](const nb::bytes& recipe, std::size_t items) {
            return chunk_capacity(parse(recipe), items);
        },
        "recipe"_a, "items"_a, "Most bytes that a chunk of so many items can take.");
    module.def(
        "checksum",
        [](std::uintptr_t address, std::size_t bytes) {
            const nb::gil_scoped_release release;
            return checksum(static_cast<const std::uint8_t*>(pointer(address)), bytes);
        },
        "address"_a, "nbytes"_a, "The format's checksum.");
    module.def("extent", &extent_of, "dtype"_a, "source"_a, "items"_a, "threads"_a,
               "Smallest and largest finite value, and how many are finite.");
    module.def(
        "sample",
        [](int dtype, std::uintptr_t source, std::size_t items) {
            const Sampled s = sample(floating(dtype), pointer(source), items);
            return nb::make_tuple(s.largest, s.negative_zero);
        },
        "dtype"_a, "source"_a, "items"_a,
        "Largest finite magnitude in a sample, and whether it holds a negative zero.");
    module.def("choose", &choose_recipe, "recipe"_a, "source"_a, "items"_a, "worth"_a,
               "The recipe with predictor or model chosen from a sample.");
}

}  // namespace elbowroom
