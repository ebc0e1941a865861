// The block codec at level avx2.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "block/block.hpp"

namespace elbowroom::avx2 {
namespace {
#include "common/simd_avx2.inl"
//
#include "block/kernels.inl"
}  // namespace

extern const BlockKernels block_kernels{encode_chunk, decode_chunk, extent};
}  // namespace elbowroom::avx2
