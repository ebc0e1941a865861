// A look at a few values before anything else is known.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/choose.hpp"
#include "common/float_env.hpp"

namespace elbowroom {
namespace {

double magnitude_of(Dtype d, const std::uint8_t* p, bool& negative_zero) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, p, item_bytes(d));
    const int width = static_cast<int>(8 * item_bytes(d));
    negative_zero |= bits == std::uint64_t{1} << (width - 1);
    switch (d) {
        case Dtype::f32: {
            float v;
            std::memcpy(&v, p, 4);
            return std::fabs(static_cast<double>(v));
        }
        case Dtype::bf16: {
            const auto wide = static_cast<std::uint32_t>(bits) << 16;
            float v;
            std::memcpy(&v, &wide, 4);
            return std::fabs(static_cast<double>(v));
        }
        case Dtype::f16: {
            const int exponent = static_cast<int>((bits >> 10) & 31);
            const auto mantissa = static_cast<double>(bits & 1023);
            if (exponent == 31) return HUGE_VAL;
            return exponent == 0 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024.0 + mantissa, exponent - 25);
        }
        case Dtype::f64: {
            double v;
            std::memcpy(&v, p, 8);
            return std::fabs(v);
        }
        default:
            return 0;
    }
}

}  // namespace

Sampled sample(Dtype dtype, const void* source, std::size_t items) noexcept {
    const DefaultFloatEnv float_env;
    Sampled s{0, false};
    const std::size_t item = item_bytes(dtype);
    // Runs of 64 items: neighbours share a cache line.
    const std::size_t runs = std::clamp<std::size_t>(items / 1024, 1, 32);
    for (std::size_t r = 0; r < runs; ++r) {
        const std::size_t start = items / runs * r;
        for (std::size_t i = start; i < std::min(items, start + 64); ++i) {
            const double m = magnitude_of(
                dtype, static_cast<const std::uint8_t*>(source) + i * item, s.negative_zero);
            if (m > s.largest && m < HUGE_VAL) s.largest = m;
        }
    }
    return s;
}

}  // namespace elbowroom
