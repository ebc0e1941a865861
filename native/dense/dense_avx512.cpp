// The dense codec at level avx512.
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dense/dense.hpp"

namespace elbowroom::avx512 {
namespace {
#include "common/simd_avx512.inl"
//
#include "dense/kernels.inl"
}  // namespace

extern const DenseKernels dense_kernels{encode_chunk, decode_chunk, wide::cost_chunk, sparse_cost,
                                        codes_chunk};
}  // namespace elbowroom::avx512
