// Streams of every element type, rule, predictor and model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/codec.hpp"
#include "values.hpp"

namespace streams {

using elbowroom::Codec;
using elbowroom::Dtype;
using elbowroom::Geometry;
using elbowroom::Predictor;
using elbowroom::Quantiser;
using elbowroom::Rule;
using elbowroom::Stream;

constexpr int models = 7;
constexpr int sparse = 6;

inline std::vector<Dtype> all_dtypes() {
    std::vector<Dtype> all;
    for (std::uint8_t d = 1; d <= 13; ++d) all.push_back(static_cast<Dtype>(d));
    return all;
}

// `limit` is the bound; step and inverse as a writer would choose them.
inline Quantiser make_quantiser(Dtype dtype, Rule rule, double limit, bool negative_zero) {
    Quantiser q;
    q.dtype = dtype;
    q.rule = rule;
    if (rule == Rule::exact) return q;
    const bool wide = dtype == Dtype::f64;
    const auto fit = [wide](double v) {
        return wide ? v : static_cast<double>(static_cast<float>(v));
    };
    q.negative_zero = negative_zero;
    q.bound = fit(limit);
    if (rule == Rule::pointwise) {
        const double patterns = wide ? 0x1p52 : 0x1p23;
        const double step = 2 * limit * patterns * (1 - 0x1p-10);
        q.step = step < 1          ? 1
                 : step > patterns ? patterns
                                   : static_cast<double>(static_cast<std::int64_t>(step));
    } else {
        q.step = fit(2 * q.bound * (1 - 0x1p-10));
    }
    q.inverse = fit(1 / q.step);
    if (rule == Rule::dither) q.seed = 0x5EED1234u;
    return q;
}

inline std::vector<Quantiser> all_quantisers(double limit) {
    std::vector<Quantiser> all;
    for (const Dtype d : all_dtypes()) {
        all.push_back(make_quantiser(d, Rule::exact, limit, false));
        if (!values::is_float(d)) continue;
        for (const Rule r : {Rule::plain, Rule::signs, Rule::dither, Rule::pointwise})
            for (const bool negative_zero : {false, true})
                all.push_back(make_quantiser(d, r, limit, negative_zero));
    }
    return all;
}

inline Stream block_stream(const Quantiser& q, Predictor predictor, std::size_t columns,
                           std::size_t rows) {
    Stream s;
    s.codec = Codec::block;
    s.quantiser = q;
    s.geometry.predictor = predictor;
    s.geometry.columns = columns;
    s.geometry.rows = rows;
    return s;
}

inline Stream dense_stream(const Quantiser& q, int model, bool weighted, int shift,
                           std::size_t columns, std::size_t rows) {
    Stream s;
    s.codec = Codec::dense;
    s.quantiser = q;
    Geometry& g = s.geometry;
    g.model = static_cast<std::uint8_t>(model);
    g.columns = columns;
    g.rows = rows;
    if (model == sparse) return s;  // which has nothing else
    g.shift = static_cast<std::uint8_t>(shift);
    g.gain = static_cast<std::int8_t>(model == 5 ? 1 - shift : 0);
    constexpr std::int16_t some[4] = {38, 45, -29, 9};
    for (int i = 0; i < 4; ++i) g.weights[i] = weighted ? some[i] : std::int16_t{0};
    return s;
}

constexpr Predictor all_predictors[] = {Predictor::none, Predictor::left, Predictor::above,
                                        Predictor::plane};
}  // namespace streams
