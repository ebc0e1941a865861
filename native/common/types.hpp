// The words every stage shares: element types, quantiser rules, geometry.
#pragma once

#include <cstddef>
#include <cstdint>

namespace elbowroom {

// Numbers are part of the format (docs/format.md): never renumber.
enum class Dtype : std::uint8_t {
    f16 = 1,
    bf16 = 2,
    f32 = 3,
    f64 = 4,
    i8 = 5,
    u8 = 6,
    i16 = 7,
    u16 = 8,
    i32 = 9,
    u32 = 10,
    i64 = 11,
    u64 = 12,
    boolean = 13,
};

constexpr std::size_t item_bytes(Dtype d) {
    switch (d) {
        case Dtype::i8:
        case Dtype::u8:
        case Dtype::boolean:
            return 1;
        case Dtype::f16:
        case Dtype::bf16:
        case Dtype::i16:
        case Dtype::u16:
            return 2;
        case Dtype::f32:
        case Dtype::i32:
        case Dtype::u32:
            return 4;
        case Dtype::f64:
        case Dtype::i64:
        case Dtype::u64:
            return 8;
    }
    return 0;
}

// How a value becomes a code.
enum class Rule : std::uint8_t {
    exact = 0,   // a bijection of the bit pattern
    plain = 1,   // nearest multiple of the step
    signs = 2,   // mid-rise bins, zero a code of its own: the sign of every value survives
    dither = 3,  // nearest multiple of the step after a known random shift; zero a code of its own
    pointwise = 4,  // nearest multiple of the divisor on the magnitude's bit pattern
};

struct Quantiser {
    Dtype dtype = Dtype::f32;
    Rule rule = Rule::plain;
    bool negative_zero = false;  // code -1 means -0.0 and negative codes move down by one
    double step = 0;             // distance of two reconstructions (pointwise: divisor of bits)
    double inverse = 0;          // what the encoder multiplies by; rounded 1 / step
    double bound = 0;            // absolute bound (pointwise: share of the magnitude)
    std::uint32_t seed = 0;      // dither
    const std::int32_t* shifts = nullptr;  // dither: lent by a DitherTable while a call lasts
};

// Which neighbours predict a code. Codes are laid out as planes of `rows` rows of `columns`.
enum class Predictor : std::uint8_t {
    none = 0,
    left = 1,   // the code before
    above = 2,  // the code one row earlier
    plane = 3,  // left + above - above left, within a plane
};

struct Geometry {
    Predictor predictor = Predictor::none;  // block
    std::uint8_t model = 0;                 // dense
    std::uint8_t shift = 0;                 // dense: low bits that are not modelled
    std::int8_t gain = 0;                   // dense: power of two for the model grid
    std::uint16_t chunk = 0;                // dense: items of a chunk in 4096s; 0: kDenseChunk
    std::int16_t weights[4] = {};           // dense: left, above, above left, above right, in 64ths
    std::size_t columns = 0;                // length of a row, in codes
    std::size_t rows = 0;                   // rows of a plane
};

constexpr std::size_t kBlock = 64;                  // codes of a block
constexpr std::size_t kRawChunk = 4 * 1024 * 1024;  // items of a chunk that is not encoded
constexpr std::size_t kBlockChunk = 64 * 1024;      // codes of a chunk of the block codec
// Codes of a chunk of the dense codec: lanes 31 x 4 KiB of floats apart do not fight for the same
// cache sets, as lanes a power of two apart would.
constexpr std::size_t kDenseChunk = 31 * 64 * 1024;

// Shorter ones are told in this unit: arrays of a few megabytes then occupy more than one thread.
constexpr std::size_t kChunkUnit = 4096;
constexpr std::uint16_t kLeastChunkUnits = 16;

template <auto V>
struct Constant {
    static constexpr auto value = V;
};

}  // namespace elbowroom
