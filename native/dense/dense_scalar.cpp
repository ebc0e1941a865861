// The dense codec at level scalar.
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dense/dense.hpp"

namespace elbowroom::scalar {
namespace {
#include "common/simd_scalar.inl"
//
#include "dense/kernels.inl"
}  // namespace

extern const DenseKernels dense_kernels{encode_chunk, decode_chunk, wide::cost_chunk, sparse_cost,
                                        codes_chunk};
}  // namespace elbowroom::scalar
