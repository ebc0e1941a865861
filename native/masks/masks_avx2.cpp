// Masks at level avx2.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "masks/masks.hpp"

namespace elbowroom::avx2 {
namespace {
#include "common/simd_avx2.inl"
//
#include "masks/kernels.inl"
}  // namespace

extern const MaskKernels mask_kernels{positive, either, expand};
}  // namespace elbowroom::avx2
