// Masks at level scalar.
#include <bit>
#include <cstdint>
#include <cstring>

#include "masks/masks.hpp"

namespace elbowroom::scalar {
namespace {
#include "common/simd_scalar.inl"
//
#include "masks/kernels.inl"
}  // namespace

extern const MaskKernels mask_kernels{positive, either, expand};
}  // namespace elbowroom::scalar
