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

// Scratch memory of one thread. Pages that a chunk does not touch cost nothing; buffers are kept
// from call to call, since fresh pages cost more than the work on them.
class Workspace {
  public:
    Workspace() noexcept;
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    // Room for chunks of `items` items; false when memory is short.
    bool reserve(const Stream& stream, std::size_t items, bool encoding) noexcept;

    Scratch scratch;

  private:
    Buffer<std::uint8_t> bytes_;
    std::size_t capacity_ = 0;
};

}  // namespace elbowroom
