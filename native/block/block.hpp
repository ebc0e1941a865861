// The block codec: chunks of bit planes. docs/format.md, "Block payload".
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/scratch.hpp"
#include "common/types.hpp"
#include "quantise/dither.hpp"

namespace elbowroom {

struct Extent {
    double low, high;     // infinite while there is no finite value
    std::uint64_t count;  // of finite values
};

struct BlockKernels {
    // Bytes written to dst, which has room for block_chunk_capacity().
    std::size_t (*encode)(const Quantiser&, const Geometry&, const void* source, std::size_t first,
                          std::size_t items, std::uint8_t* dst, Scratch&);
    // False if the bytes are not a chunk. `stream`: the target will not be read soon.
    bool (*decode)(const Quantiser&, const Geometry&, const std::uint8_t* in, std::size_t size,
                   std::size_t first, std::size_t items, void* target, bool stream, Scratch&);
    // Widens the extent by n < 2^31 floating-point items.
    void (*extent)(Dtype, const void* source, std::size_t n, Extent&);
};

namespace scalar {
extern const BlockKernels block_kernels;
}
namespace avx2 {
extern const BlockKernels block_kernels;
}
namespace avx512 {
extern const BlockKernels block_kernels;
}

}  // namespace elbowroom
