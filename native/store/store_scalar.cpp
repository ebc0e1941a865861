// Digests, planes and copies at level scalar.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "store/store.hpp"

namespace elbowroom::scalar {
namespace {
#include "store/lanes_scalar.inl"
//
#include "store/copy.inl"
//
#include "store/xxh3.inl"
//
#include "store/planes.inl"
}  // namespace

extern const StoreKernels store_kernels{hash, split, join, copy};
}  // namespace elbowroom::scalar
