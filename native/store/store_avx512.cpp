// Digests, planes and copies at level avx512.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "store/store.hpp"

namespace elbowroom::avx512 {
namespace {
#include "store/lanes_avx512.inl"
//
#include "store/copy.inl"
//
#include "store/xxh3.inl"
//
#include "store/planes.inl"
}  // namespace

extern const StoreKernels store_kernels{hash, split, join, copy};
}  // namespace elbowroom::avx512
