#include "dense/dense.hpp"

#include <algorithm>

namespace elbowroom {

std::size_t dense_scratch_bytes(std::size_t n, std::size_t columns) noexcept {
    // Lanes round up to at most n + n / 8, or to a multiple of 64.
    const std::size_t padded = n + n / 8 + 64;
    // Rows count only where every lane holds a whole one.
    const std::size_t width = std::min(columns, padded / 16 + 1);
    const std::size_t tables = (std::size_t{48} * 256 * 7 + (std::size_t{48} << 12)) * 4;
    const std::size_t per_code = 2 + 6 + 4 + 4 + 1;
    // 64 lanes of 4 bytes: running means, then a history of 4 (columns + 1) + 2048 steps and one;
    // then a tile.
    const std::size_t per_column = (width + 1) * 256 + (4 * (width + 1) + 2049) * 256;
    // The model sparse needs 9 bytes for each of at most 31744 columns and 60 KiB: less than
    // tables.
    return padded * per_code + tables + per_column + 64 * 1040 * 4 + 64 * 4096;
}

std::size_t dense_chunk_capacity(std::size_t n, std::size_t item) noexcept {
    const std::size_t padded = n + n / 8 + 64;
    // Header, tables of 48 contexts with 256 frequencies of at most 16 bits, states, at most three
    // words and one escape a code, every item failed. The model sparse takes less: 36 decisions a
    // code at 1.04 bits, 29 plain bits, and 5 bits once for each of its 5000 bins.
    return small_dense_chunk + 24 + 8 + 48 * (2 + 512) + 8 + 256 + padded * (6 + 4) +
           n * (4 + item) + 64;
}

void sort_positions(std::uint32_t* index, std::size_t count) noexcept {
    std::sort(index, index + count);
}

}  // namespace elbowroom
