// What a checkpoint's bytes go through: a copy, digests of their parts, differences by byte planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace elbowroom {

constexpr std::size_t digest_bytes = 16;
constexpr std::size_t most_planes = 8;

// How an item relates to the one before it. Python names them by number: coding.py.
enum class Difference : std::uint8_t {
    plain = 0,     // the item alone
    flipped = 1,   // item xor old
    distance = 2,  // item - old, its sign moved to the lowest bit
    scaled = 3,    // the same to factor * old; items are floats of 4 or 8 bytes
};

// Far beyond what training does to a number, and safe to convert to 32 bits.
constexpr double least_factor = 0x1p-20, most_factor = 0x1p20;

struct Relation {
    Difference difference = Difference::plain;
    std::size_t item = 1;  // bytes
    double factor = 1;     // between least_factor and most_factor
};

struct StoreKernels {
    // XXH3-128 of every part of `part_bytes`, the last of which may be shorter. No bytes are one
    // part.
    void (*hash)(const std::uint8_t* data, std::size_t nbytes, std::size_t part_bytes,
                 std::uint8_t* out);
    // Differences of items of 1, 2, 4 or 8 bytes; plane p, at out + p count, has byte p of each.
    void (*split)(Relation, const std::uint8_t* now, const std::uint8_t* before, std::size_t count,
                  std::uint8_t* out);
    // The inverse; `target` holds what was before, and then what is now.
    void (*join)(Relation, const std::uint8_t* const* planes, std::size_t count,
                 std::uint8_t* target);
    // Of runs that do not overlap, past the caches.
    void (*copy)(const std::uint8_t* from, std::uint8_t* to, std::size_t nbytes);
};

namespace scalar {
extern const StoreKernels store_kernels;
}
namespace avx2 {
extern const StoreKernels store_kernels;
}
namespace avx512 {
extern const StoreKernels store_kernels;
}

// Digests have the order that XXH3 calls canonical.
void hash_whole(const std::uint8_t* data, std::size_t nbytes, std::uint8_t* out) noexcept;
// No bytes have no parts. `part_bytes` is not zero.
void hash_parts(const std::uint8_t* data, std::size_t nbytes, std::size_t part_bytes,
                std::uint8_t* out, unsigned threads) noexcept;
// How many digests lie above so many leaves in a tree of pairs.
std::size_t digests_above(std::size_t leaves) noexcept;
// All of them, level by level, the root last: each is that of two below, and a last one without a
// sibling moves up as it is.
void hash_pairs(const std::uint8_t* leaves, std::size_t count, std::uint8_t* out) noexcept;

struct Run {
    const std::uint8_t* from;
    std::uint8_t* to;
    std::size_t nbytes;
};
// Copies all of them; none overlaps another.
void copy_runs(const std::vector<Run>& runs, unsigned threads);

void split_planes(Relation, const std::uint8_t* now, const std::uint8_t* before, std::size_t count,
                  std::uint8_t* out) noexcept;
void join_planes(Relation, const std::uint8_t* const* planes, std::size_t count,
                 std::uint8_t* target) noexcept;

}  // namespace elbowroom
