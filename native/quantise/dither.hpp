// Uniform numbers of the rule dither: functions of seed and index alone. docs/format.md, "Dither".
//
// u_i = T[i mod 1024] xor R[i div 1024], as 23-bit fractions less a half. For random seeds any two
// of them are independent, which is all that the variance of a sum of errors asks for, and they
// cost a load and two instructions.
#pragma once

#include <array>
#include <cstdint>

#include "common/types.hpp"

namespace elbowroom {

constexpr std::uint32_t dither_page = 1024;

// Two rounds of multiply and xorshift.
constexpr std::uint32_t mix(std::uint32_t h) {
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15)) * 0x846CA68Bu;
    return h ^ (h >> 16);
}
constexpr std::uint32_t dither_entry(std::uint32_t place, std::uint32_t seed) {
    return mix((place * 0x9E3779B1u) ^ seed) >> 9;
}
constexpr std::uint32_t dither_base(std::uint32_t page, std::uint32_t seed) {
    return mix((page * 0x85EBCA6Bu) ^ (seed + 0xC2B2AE35u)) >> 9;
}

// The entries of T with the pattern of 1.0f above them; lives as long as what it is lent to.
class DitherTable {
  public:
    explicit DitherTable(Quantiser& q) {
        if (q.rule != Rule::dither) return;
        for (std::uint32_t i = 0; i < dither_page; ++i)
            entries_[i] = static_cast<std::int32_t>(0x3F800000u | dither_entry(i, q.seed));
        q.shifts = entries_.data();
    }
    DitherTable(const DitherTable&) = delete;
    DitherTable& operator=(const DitherTable&) = delete;

  private:
    std::array<std::int32_t, dither_page> entries_;
};

}  // namespace elbowroom
