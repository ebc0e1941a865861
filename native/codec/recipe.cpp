#include "codec/recipe.hpp"

#include <cmath>
#include <cstring>

#include "dense/dense.hpp"

namespace elbowroom {
namespace {

template <class T>
T get(const std::uint8_t* bytes, std::size_t at) {
    T v;
    std::memcpy(&v, bytes + at, sizeof v);
    return v;
}

bool is_positive_zero(double v) { return v == 0 && !std::signbit(v); }
bool is_float32(double v) { return static_cast<double>(static_cast<float>(v)) == v; }

bool is_float(Dtype d) {
    return d == Dtype::f16 || d == Dtype::bf16 || d == Dtype::f32 || d == Dtype::f64;
}

bool check_quantiser(const Quantiser& q) {
    if (q.rule == Rule::exact)
        return is_positive_zero(q.step) && is_positive_zero(q.inverse) &&
               is_positive_zero(q.bound) && !q.negative_zero && q.seed == 0;
    if (!is_float(q.dtype)) return false;
    for (const double v : {q.step, q.inverse, q.bound}) {
        if (!(std::isfinite(v) && v > 0)) return false;
        if (q.dtype != Dtype::f64 && !(is_float32(v) && std::isfinite(static_cast<float>(v))))
            return false;
    }
    if (q.rule != Rule::dither && q.seed != 0) return false;
    if (q.rule == Rule::pointwise) {
        const double most = q.dtype == Dtype::f64 ? 0x1p52 : 0x1p23;
        if (q.step != std::floor(q.step) || q.step > most) return false;
    }
    return true;
}

}  // namespace

bool read_recipe(const std::uint8_t* b, std::size_t size, Stream& s) noexcept {
    if (size != recipe_bytes) return false;
    if (b[0] > 2 || b[1] < 1 || b[1] > 13 || b[2] > 4 || b[3] > 1) return false;
    s.codec = static_cast<Codec>(b[0]);
    Quantiser& q = s.quantiser;
    q.dtype = static_cast<Dtype>(b[1]);
    q.rule = static_cast<Rule>(b[2]);
    q.negative_zero = b[3] != 0;
    q.seed = get<std::uint32_t>(b, 4);
    q.step = get<double>(b, 8);
    q.inverse = get<double>(b, 16);
    q.bound = get<double>(b, 24);
    if (!check_quantiser(q)) return false;
    const std::uint8_t method = b[32];
    Geometry& g = s.geometry;
    if (b[33] != 0) return false;
    g.chunk = get<std::uint16_t>(b, 34);
    if (g.chunk != 0 && (s.codec != Codec::dense || g.chunk < kLeastChunkUnits ||
                         g.chunk * kChunkUnit >= kDenseChunk))
        return false;
    g.columns = get<std::uint32_t>(b, 36);
    g.rows = get<std::uint32_t>(b, 40);
    std::memcpy(g.weights, b + 44, sizeof g.weights);
    g.shift = b[52];
    g.gain = static_cast<std::int8_t>(b[53]);
    for (std::size_t i = 54; i < recipe_bytes; ++i)
        if (b[i] != 0) return false;
    const bool plain = g.weights[0] == 0 && g.weights[1] == 0 && g.weights[2] == 0 &&
                       g.weights[3] == 0 && g.shift == 0 && g.gain == 0;
    g.predictor = Predictor::none;
    g.model = 0;
    switch (s.codec) {
        case Codec::raw:
            return method == 0 && plain;
        case Codec::block:
            if (method > 3 || !plain) return false;
            g.predictor = static_cast<Predictor>(method);
            if (g.predictor == Predictor::above || g.predictor == Predictor::plane)
                if (g.columns < 1) return false;
            return g.predictor != Predictor::plane || g.rows >= 1;
        case Codec::dense:
            g.model = method;
            if (method == sparse_model) return plain;
            return method < sparse_model && g.shift <= 22 && g.gain >= -20 && g.gain <= 20 &&
                   (method == 5 || g.gain == 0);
    }
    return false;
}

void write_recipe(const Stream& s, std::uint8_t* b) noexcept {
    std::memset(b, 0, recipe_bytes);
    const Quantiser& q = s.quantiser;
    const Geometry& g = s.geometry;
    b[0] = static_cast<std::uint8_t>(s.codec);
    b[1] = static_cast<std::uint8_t>(q.dtype);
    b[2] = static_cast<std::uint8_t>(q.rule);
    b[3] = q.negative_zero ? 1 : 0;
    const auto columns = static_cast<std::uint32_t>(g.columns);
    const auto rows = static_cast<std::uint32_t>(g.rows);
    std::memcpy(b + 4, &q.seed, 4);
    std::memcpy(b + 8, &q.step, 8);
    std::memcpy(b + 16, &q.inverse, 8);
    std::memcpy(b + 24, &q.bound, 8);
    b[32] = s.codec == Codec::dense ? g.model : static_cast<std::uint8_t>(g.predictor);
    std::memcpy(b + 34, &g.chunk, 2);
    std::memcpy(b + 36, &columns, 4);
    std::memcpy(b + 40, &rows, 4);
    std::memcpy(b + 44, g.weights, sizeof g.weights);
    b[52] = g.shift;
    b[53] = static_cast<std::uint8_t>(g.gain);
}

}  // namespace elbowroom
