// One bit an item, and the places of pooling indices in their windows. Nothing here leaves the
// process, so nothing here is part of the format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types.hpp"

namespace elbowroom {

struct MaskKernels {
    // Bit i of out tells whether floating-point item i is above zero.
    void (*positive)(Dtype, const void* source, std::size_t n, std::uint8_t* out);
    // Bit i of out tells whether item i has the pattern `high`; false if one has neither pattern.
    bool (*either)(std::size_t item, const void* source, std::size_t n, std::uint64_t low,
                   std::uint64_t high, std::uint8_t* out);
    // Items of the pattern `high` where the bit is set, of `low` elsewhere.
    void (*expand)(std::size_t item, const std::uint8_t* bits, std::size_t n, std::uint64_t low,
                   std::uint64_t high, void* target);
};

namespace scalar {
extern const MaskKernels mask_kernels;
}
namespace avx2 {
extern const MaskKernels mask_kernels;
}
namespace avx512 {
extern const MaskKernels mask_kernels;
}

void pack_positive(Dtype, const void* source, std::size_t n, std::uint8_t* out,
                   unsigned threads) noexcept;
bool pack_either(std::size_t item, const void* source, std::size_t n, std::uint64_t low,
                 std::uint64_t high, std::uint8_t* out, unsigned threads) noexcept;
void expand_bits(std::size_t item, const std::uint8_t* bits, std::size_t n, std::uint64_t low,
                 std::uint64_t high, void* target, unsigned threads) noexcept;

// A two-dimensional pooling: outputs of `height` x `width`, read from planes of rows of `pitch`.
struct Pooling {
    std::size_t height, width;
    std::int64_t pitch;
    std::int64_t kernel[2], stride[2], padding[2], dilation[2];

    bool is_sane() const noexcept;
    std::size_t places() const noexcept;
    unsigned bits() const noexcept;  // of a place: 1, 2, 4 or 8
    std::size_t plane_bytes() const noexcept;
};

// False when an index lies outside its window.
bool pack_windows(const Pooling&, const std::int64_t* index, std::size_t planes, std::uint8_t* out,
                  unsigned threads) noexcept;
void expand_windows(const Pooling&, const std::uint8_t* places, std::size_t planes,
                    std::int64_t* index, unsigned threads) noexcept;

}  // namespace elbowroom
