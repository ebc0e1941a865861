// The dense codec at level avx2.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dense/dense.hpp"

namespace elbowroom::avx2 {
namespace {
#include "common/simd_avx2.inl"
//
#include "dense/kernels.inl"
}  // namespace

extern const DenseKernels dense_kernels{encode_chunk, decode_chunk, wide::cost_chunk, sparse_cost,
                                        codes_chunk};
}  // namespace elbowroom::avx2
