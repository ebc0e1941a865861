// What decoding may return for an array, judged apart from the kernels and their arithmetic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/types.hpp"
#include "values.hpp"

namespace promise {

using elbowroom::Dtype;
using elbowroom::Quantiser;
using elbowroom::Rule;

// Whether |x - y| <= most, without rounding: the two-sum's second part decides a draw.
inline bool is_within(double x, double y, double most) {
    const double difference = x - y;
    const double size = std::fabs(difference);
    if (size != most) return size < most;
    const double moved = difference - x;
    const double rest = (x - (difference - moved)) + (-y - moved);
    return !((difference < 0 ? -rest : rest) > 0);
}

inline bool is_kept(const Quantiser& q, const std::uint8_t* before, const std::uint8_t* after) {
    if (q.dtype == Dtype::boolean) return *after == (*before != 0 ? 1 : 0);
    if (values::pattern_of(q.dtype, before) == values::pattern_of(q.dtype, after)) return true;
    if (q.rule == Rule::exact || !values::is_float(q.dtype)) return false;
    const double x = values::number_of(q.dtype, before);
    const double y = values::number_of(q.dtype, after);
    // Failed values are stored as they are and zeros have codes of their own: bit for bit.
    if (!std::isfinite(x) || x == 0.0 || !std::isfinite(y)) return false;
    if (q.rule == Rule::signs && (y == 0.0 || std::signbit(x) != std::signbit(y))) return false;
    if (q.rule != Rule::pointwise) return is_within(x, y, q.bound);
    // Products of two f32 numbers are exact here; for f64 one unit in the last place is allowed.
    const double slack = q.dtype == Dtype::f64 ? 0x1p-52 : 0.0;
    return is_within(x, y, q.bound * std::fabs(x) * (1.0 + slack));
}

// The first item that is not what was promised; `items` if all are.
inline std::size_t first_broken(const Quantiser& q, const void* x, const void* y,
                                std::size_t items) {
    const std::size_t item = item_bytes(q.dtype);
    const auto* before = static_cast<const std::uint8_t*>(x);
    const auto* after = static_cast<const std::uint8_t*>(y);
    for (std::size_t i = 0; i < items; ++i)
        if (!is_kept(q, before + i * item, after + i * item)) return i;
    return items;
}

}  // namespace promise
