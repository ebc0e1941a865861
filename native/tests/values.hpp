// Items of every element type for tests: waves, noise, special values, any bits at all.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "common/types.hpp"

namespace values {

using elbowroom::Dtype;

// A small generator of its own: the same numbers with every standard library.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15ULL;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t end) { return end == 0 ? 0 : bits() % end; }
    // Of a bell's shape, between -6 and 6.
    double bell() {
        double sum = 0;
        for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits() >> 11) * 0x1p-53;
        return sum - 6.0;
    }

  private:
    std::uint64_t state_;
};

constexpr bool is_float(Dtype d) { return d <= Dtype::f64; }

inline std::uint64_t pattern_of(Dtype d, const std::uint8_t* item) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, item, item_bytes(d));
    return bits;
}

// The value of a floating-point item, exactly.
inline double number_of(Dtype d, const std::uint8_t* item) {
    const std::uint64_t bits = pattern_of(d, item);
    if (d == Dtype::f64) return __builtin_bit_cast(double, bits);
    if (d == Dtype::f32) return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits));
    if (d == Dtype::bf16) return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const auto mantissa = static_cast<double>(bits & 1023);
    double v =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, exponent - 25);
    if (exponent == 31) v = mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
    return (bits >> 15) != 0 ? -v : v;
}

// A floating-point item near the number: towards zero, infinite beyond the type's range.
inline void put_number(Dtype d, double v, std::uint8_t* item) {
    if (d == Dtype::f64) {
        std::memcpy(item, &v, 8);
        return;
    }
    const auto single = static_cast<float>(v);
    const auto bits = __builtin_bit_cast(std::uint32_t, single);
    if (d == Dtype::f32) {
        std::memcpy(item, &bits, 4);
        return;
    }
    std::uint32_t half = bits >> 16;
    if (d == Dtype::f16) {
        const std::uint32_t sign = half & 0x8000;
        const double size = std::fabs(static_cast<double>(single));
        if (std::isnan(single))
            half = 0x7e01;
        else if (size >= 65536.0)
            half = 0x7c00;
        else if (size < 0x1p-14)
            half = static_cast<std::uint32_t>(size * 0x1p24);
        else
            half = ((bits & 0x7fffffffu) - 0x38000000u) >> 13;
        half |= sign;
    }
    const auto narrow = static_cast<std::uint16_t>(half);
    std::memcpy(item, &narrow, 2);
}

enum class Content { wave, noise, specials, constant, bits, rare };
constexpr Content contents[] = {Content::wave,     Content::noise, Content::specials,
                                Content::constant, Content::bits,  Content::rare};
inline Content some_content(std::uint64_t seed) { return contents[seed % std::size(contents)]; }

inline double special(Random& random) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double some[] = {0.0,
                           -0.0,
                           infinity,
                           -infinity,
                           std::numeric_limits<double>::quiet_NaN(),
                           0x1p-149,
                           -0x1p-149,
                           0x1p-1074,
                           0x1p-24,
                           65504.0,
                           -65504.0,
                           0x1.fffffep127,
                           -0x1.fffffep127,
                           0x1.fffffffffffffp1023,
                           0x1p-126,
                           0x1p30,
                           -0x1p31,
                           1e-30,
                           1.0};
    return some[random.below(sizeof some / sizeof *some)];
}

inline std::vector<std::uint8_t> make_items(Dtype d, Content content, std::size_t count,
                                            std::uint64_t seed) {
    Random random(seed);
    const std::size_t item = item_bytes(d);
    std::vector<std::uint8_t> bytes(count * item);
    const double fixed = random.bell();
    for (std::size_t i = 0; i < count; ++i) {
        std::uint8_t* const to = bytes.data() + i * item;
        if (content == Content::bits) {
            const std::uint64_t any = random.bits();
            std::memcpy(to, &any, item);
        } else {
            double v = random.bell();
            if (content == Content::wave)
                v = 40.0 * std::sin(0.01 * static_cast<double>(i)) + v / 8;
            if (content == Content::constant) v = fixed;
            // Mostly zero, and where it is not, its neighbours are often not either.
            if (content == Content::rare && (random.below(8) != 0 || i / 40 % 5 != 0)) v = 0;
            if (content == Content::specials && random.below(4) == 0) v = special(random);
            if (is_float(d)) {
                put_number(d, v, to);
            } else {
                // Whole numbers of the same shape; what is not finite becomes an extreme.
                const bool small = std::fabs(v) < 1e6;
                const auto whole = small ? static_cast<std::int64_t>(v * (item == 1 ? 2.0 : 100.0))
                                         : (v > 0 ? std::numeric_limits<std::int64_t>::max()
                                                  : std::numeric_limits<std::int64_t>::min());
                std::memcpy(to, &whole, item);
            }
        }
        if (d == Dtype::boolean && content != Content::bits) *to &= 1;
    }
    return bytes;
}

}  // namespace values
