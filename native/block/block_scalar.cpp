// The block codec at level scalar.
#include <bit>
#include <cstdint>
#include <cstring>

#include "block/block.hpp"

namespace elbowroom::scalar {
namespace {
#include "common/simd_scalar.inl"
//
#include "block/kernels.inl"
}  // namespace

extern const BlockKernels block_kernels{encode_chunk, decode_chunk, extent};
}  // namespace elbowroom::scalar
