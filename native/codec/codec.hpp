// Runs of chunks through a codec, on one thread or several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types.hpp"

namespace elbowroom {

// Numbers are part of the format.
enum class Codec : std::uint8_t { raw = 0, block = 1, dense = 2 };

struct Stream {
    Codec codec = Codec::block;
    Quantiser quantiser;
    Geometry geometry;
};

// One entry of a blob's directory.
struct ChunkEntry {
    std::uint32_t bytes;
    std::uint32_t checksum;
};

// A piece of a payload: consecutive chunks, one after another in memory.
struct Segment {
    std::uint8_t* data;
    std::size_t capacity;
    std::size_t first_chunk;
    std::size_t end_chunk;
    std::size_t bytes = 0;
};

enum class Verdict : std::uint8_t { ok = 0, bad_checksum = 1, bad_chunk = 2, no_memory = 3 };

std::size_t chunk_items(const Stream& stream) noexcept;
std::size_t chunk_count(const Stream& stream, std::size_t items) noexcept;
// No chunk of `items` items takes more bytes than this.
std::size_t chunk_capacity(const Stream& stream, std::size_t items) noexcept;

// Fills the segments, each on a thread of its own, and the directory.
Verdict encode(const Stream& stream, const void* source, std::size_t items,
               std::vector<Segment>& segments, ChunkEntry* directory, unsigned threads) noexcept;

// The directory's sizes must add up to each segment's bytes: the caller has checked.
// On failure `bad_chunk_index` names the first chunk in which something is wrong.
Verdict decode(const Stream& stream, const std::vector<Segment>& segments,
               const ChunkEntry* directory, std::size_t items, void* target, unsigned threads,
               std::size_t& bad_chunk_index) noexcept;

}  // namespace elbowroom
