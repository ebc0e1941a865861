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
    std::uint32_t a[16] = {}, b[16] = {};
    std::size_t at = 0;
    for (; at + 64 <= size; at += 64) {
        std::uint32_t w[16];
        std::memcpy(w, data + at, 64);
        for (int l = 0; l < 16; ++l) {
            a[l] += w[l];
            b[l] = ((b[l] << 7) | (b[l] >> 25)) + a[l];
        }
    }
    if (at < size) {
        std::uint32_t w[16] = {};
        std::memcpy(w, data + at, size - at);
        for (int l = 0; l < 16; ++l) {
            a[l] += w[l];
            b[l] = ((b[l] << 7) | (b[l] >> 25)) + a[l];
        }
    }
    std::uint64_t h = 0x9E3779B97F4A7C15ULL ^ size;
    for (int l = 0; l < 16; ++l) {
        h = (h ^ ((static_cast<std::uint64_t>(b[l]) << 32) | a[l])) * 0xD6E8FEB86659FD93ULL;
        h ^= h >> 32;
    }
    return static_cast<std::uint32_t>(h);
}

}  // namespace elbowroom
