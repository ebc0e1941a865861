// Masks at level avx512.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "masks/masks.hpp"

namespace elbowroom::avx512 {
namespace {
#include "common/simd_avx512.inl"
//
#include "masks/kernels.inl"
}  // namespace

extern const MaskKernels mask_kernels{positive, either, expand};
}  // namespace elbowroom::avx512
