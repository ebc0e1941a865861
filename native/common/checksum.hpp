// A 32-bit checksum that runs at memory speed: sixteen Fletcher lanes, mixed at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace elbowroom {

// Bytes are read as little-endian 32-bit words in rows of sixteen, the last row filled with zeros.
// Lane l keeps a += word and b = rotate(b) + a, modulo 2^32: a single changed bit changes a, a
// changed order or a pair of changes that cancel in a changes b. docs/format.md, "Checksum".
inline std::uint32_t checksum(const std::uint8_t* data, std::size_t size) {
    // Four lanes each, in registers: compilers keep an array of sixteen in memory.
    using Lanes = std::uint32_t __attribute__((vector_size(16)));
    Lanes sums[4] = {}, turns[4] = {};
    const auto add_row = [&](const std::uint8_t* row) {
        for (int i = 0; i < 4; ++i) {
            Lanes words;
            std::memcpy(&words, row + 16 * i, 16);
            sums[i] += words;
            turns[i] = ((turns[i] << 7) | (turns[i] >> 25)) + sums[i];
        }
    };
    std::size_t at = 0;
    for (; at + 64 <= size; at += 64) add_row(data + at);
    if (at < size) {
        std::uint8_t row[64] = {};
        std::memcpy(row, data + at, size - at);
        add_row(row);
    }
    std::uint32_t a[16], b[16];
    std::memcpy(a, sums, 64);
    std::memcpy(b, turns, 64);
    std::uint64_t h = 0x9E3779B97F4A7C15ULL ^ size;
    for (int l = 0; l < 16; ++l) {
        h = (h ^ ((static_cast<std::uint64_t>(b[l]) << 32) | a[l])) * 0xD6E8FEB86659FD93ULL;
        h ^= h >> 32;
    }
    return static_cast<std::uint32_t>(h);
}

}  // namespace elbowroom
