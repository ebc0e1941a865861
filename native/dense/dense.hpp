// The dense codec: codes through a context model into range coders. docs/format.md, "Dense
// payload".
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/scratch.hpp"
#include "common/types.hpp"
#include "quantise/dither.hpp"

namespace elbowroom {

// The model whose chunks have no lanes. The numbers of the others: dense/model.inl.
constexpr std::uint8_t sparse_model = 6;

// Bits in 65536ths that a sample takes with that model, while it learns and once it has.
struct SparseCost {
    std::uint64_t fresh, learned;
};

struct DenseKernels {
    std::size_t (*encode)(const Quantiser&, const Geometry&, const void* source, std::size_t first,
                          std::size_t items, std::uint8_t* dst, Scratch&);
    bool (*decode)(const Quantiser&, const Geometry&, const std::uint8_t* in, std::size_t size,
                   std::size_t first, std::size_t items, void* target, bool stream, Scratch&);
    // Estimated payload bits of a chunk, in 65536ths, a table entry weighing `table_cost` of them.
    // Not for the model sparse.
    std::uint64_t (*cost)(const Quantiser&, const Geometry&, const void* source, std::size_t items,
                          std::uint64_t table_cost, Scratch&);
    SparseCost (*sparse_cost)(const Quantiser&, const Geometry&, const void* source,
                              std::size_t items, Scratch&);
    // The codes of a chunk in order, into whole blocks.
    void (*codes)(const Quantiser&, const void* source, std::size_t items, std::int32_t* codes,
                  Scratch&);
};

namespace scalar {
extern const DenseKernels dense_kernels;
}
namespace avx2 {
extern const DenseKernels dense_kernels;
}
namespace avx512 {
extern const DenseKernels dense_kernels;
}

// Chunks shorter than this are tried with fewer lanes too.
constexpr std::size_t small_dense_chunk = 8192;

// Bytes of Scratch::bytes for chunks of n codes.
std::size_t dense_scratch_bytes(std::size_t n, std::size_t columns) noexcept;
// No chunk of n codes takes more bytes than this.
std::size_t dense_chunk_capacity(std::size_t n, std::size_t item) noexcept;

// Ascending, in place. Here because kernels of a level must not share templates with other levels.
void sort_positions(std::uint32_t* index, std::size_t count) noexcept;

}  // namespace elbowroom
