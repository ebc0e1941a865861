// Digests, planes and copies at level avx2.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "store/store.hpp"

namespace elbowroom::avx2 {
namespace {
#include "store/lanes_avx2.inl"
//
#include "store/copy.inl"
//
#include "store/xxh3.inl"
//
#include "store/planes.inl"
}  // namespace

extern const StoreKernels store_kernels{hash, split, join, copy};
}  // namespace elbowroom::avx2
