// The kernels of the level in use, and the memory a thread works in.
#pragma once

#include "block/block.hpp"
#include "codec/codec.hpp"
#include "common/scratch.hpp"
#include "dense/dense.hpp"

namespace elbowroom {

const BlockKernels& block_kernels() noexcept;
const DenseKernels& dense_kernels() noexcept;

inline bool has_word_planes(const Quantiser& q) noexcept {
    return q.rule == Rule::exact && item_bytes(q.dtype) == 8;
}

// Scratch memory of one thread; pages that a chunk does not touch cost nothing.
struct Workspace {
    Buffer<std::int32_t> codes, residuals;
    Buffer<std::uint32_t> index;
    Buffer<std::uint8_t> bytes;
    Scratch scratch;

    // Room for chunks of `items` items; false when memory is short.
    bool reserve(const Stream& stream, std::size_t items, bool encoding) noexcept;
};

}  // namespace elbowroom
