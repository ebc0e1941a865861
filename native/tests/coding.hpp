// Encodes and decodes in memory that is watched on all sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codec/codec.hpp"
#include "common/checksum.hpp"
#include "common/isa.hpp"

namespace coding {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t canary_bytes = 0;  // the sanitizer's own are better: they see reads too
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::size_t canary_bytes = 0;
#else
constexpr std::size_t canary_bytes = 256;
#endif
#else
constexpr std::size_t canary_bytes = 256;
#endif

// Memory of an exact size, with canaries behind it, so many bytes behind a boundary of 64.
class Guarded {
  public:
    Guarded(std::size_t size, std::uint8_t fill, std::size_t offset = 0) : size_(size) {
        if (posix_memalign(&room_, 64, offset + size + canary_bytes) != 0) std::abort();
        data_ = static_cast<std::uint8_t*>(room_) + offset;
        if (size > 0) std::memset(data_, fill, size);
        if (canary_bytes > 0) std::memset(data_ + size, canary, canary_bytes);
    }
    Guarded(const void* bytes, std::size_t size) : Guarded(size, 0) {
        if (size > 0) std::memcpy(data_, bytes, size);
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    ~Guarded() { std::free(room_); }

    std::uint8_t* data() const { return data_; }
    std::size_t size() const { return size_; }
    bool is_intact() const {
        for (std::size_t i = 0; i < canary_bytes; ++i)
            if (data_[size_ + i] != canary) return false;
        return true;
    }

  private:
    static constexpr std::uint8_t canary = 0xC7;
    void* room_ = nullptr;
    std::uint8_t* data_;
    std::size_t size_;
};

struct Encoded {
    std::vector<elbowroom::ChunkEntry> directory;
    std::vector<std::uint8_t> payload;
    bool is_sound = true;  // every chunk fitted, and nothing behind its room was touched

    bool operator==(const Encoded& other) const {
        if (payload != other.payload || directory.size() != other.directory.size()) return false;
        for (std::size_t i = 0; i < directory.size(); ++i)
            if (directory[i].bytes != other.directory[i].bytes ||
                directory[i].checksum != other.directory[i].checksum)
                return false;
        return true;
    }
};

inline std::size_t items_of_chunk(const elbowroom::Stream& s, std::size_t items,
                                  std::size_t chunk) {
    const std::size_t length = chunk_items(s);
    const std::size_t left = items - chunk * length;
    return left < length ? left : length;
}

// Each chunk into room of exactly its capacity.
inline Encoded encode(const elbowroom::Stream& s, const void* source, std::size_t items,
                      unsigned threads = 1) {
    Encoded encoded;
    const std::size_t chunks = chunk_count(s, items);
    encoded.directory.resize(chunks);
    std::vector<Guarded*> rooms;
    std::vector<elbowroom::Segment> segments;
    for (std::size_t c = 0; c < chunks; ++c) {
        rooms.push_back(new Guarded(chunk_capacity(s, items_of_chunk(s, items, c)), 0xEE));
        segments.push_back({rooms[c]->data(), rooms[c]->size(), c, c + 1});
    }
    encoded.is_sound = elbowroom::encode(s, source, items, segments, encoded.directory.data(),
                                         threads) == elbowroom::Verdict::ok;
    for (std::size_t c = 0; c < chunks; ++c) {
        const std::size_t bytes = segments[c].bytes;
        encoded.is_sound &= rooms[c]->is_intact() && bytes <= rooms[c]->size() &&
                            bytes == encoded.directory[c].bytes;
        encoded.payload.insert(encoded.payload.end(), rooms[c]->data(), rooms[c]->data() + bytes);
        delete rooms[c];
    }
    return encoded;
}

// One segment in an exact copy; the target's bytes start as `fill`.
struct Decoded {
    elbowroom::Verdict verdict;
    std::size_t bad_chunk = 0;
    Guarded target;

    Decoded(const elbowroom::Stream& s, const std::vector<elbowroom::ChunkEntry>& directory,
            const std::uint8_t* payload, std::size_t payload_bytes, std::size_t items,
            std::uint8_t fill, unsigned threads = 1, std::size_t offset = 0)
        : target(items * item_bytes(s.quantiser.dtype), fill, offset) {
        const Guarded copy(payload, payload_bytes);
        std::vector<elbowroom::Segment> segments;
        if (!directory.empty())
            segments.push_back({copy.data(), copy.size(), 0, directory.size(), copy.size()});
        verdict = elbowroom::decode(s, segments, directory.data(), items, target.data(), threads,
                                    bad_chunk);
    }
};

// The levels that this processor has, from the lowest.
inline std::vector<elbowroom::Isa> all_levels() {
    std::vector<elbowroom::Isa> levels;
    for (int i = 0; i < elbowroom::isa_count; ++i)
        if (static_cast<elbowroom::Isa>(i) <= elbowroom::detect())
            levels.push_back(static_cast<elbowroom::Isa>(i));
    return levels;
}

// The lowest level and one of the others: what is cheap enough to do millions of times.
inline std::vector<elbowroom::Isa> two_levels(std::size_t which) {
    const std::vector<elbowroom::Isa> all = all_levels();
    if (all.size() < 2) return all;
    return {all[0], all[1 + which % (all.size() - 1)]};
}

// Sets a level for as long as it lives.
class AtLevel {
  public:
    explicit AtLevel(elbowroom::Isa isa) : before_(elbowroom::current()) {
        if (!elbowroom::set_isa(isa)) std::abort();
    }
    ~AtLevel() { elbowroom::set_isa(before_); }
    AtLevel(const AtLevel&) = delete;
    AtLevel& operator=(const AtLevel&) = delete;

  private:
    elbowroom::Isa before_;
};

}  // namespace coding
