// Picks what the sample says is smallest: a predictor for block, a model for dense.
#pragma once

#include <cstddef>

#include "codec/codec.hpp"

namespace elbowroom {

// Fills the geometry's predictor (block) or model, weights and shift (dense). Columns and rows are
// given. Dense chunks are shortened, for threads to share, where each then still has `worth` bytes
// of payload. False when memory is short.
bool choose(Stream& stream, const void* source, std::size_t items,
            std::size_t worth = std::size_t{512} << 10) noexcept;

struct Sampled {
    double largest;      // largest finite magnitude seen
    bool negative_zero;  // a -0.0 was seen
};

// A few thousand values, spread over the array. Floating-point items only.
Sampled sample(Dtype dtype, const void* source, std::size_t items) noexcept;

}  // namespace elbowroom
