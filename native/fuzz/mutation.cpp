#include "fuzz/mutation.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dense/dense.hpp"
#include "fuzz/input.hpp"
#include "tests/values.hpp"

namespace fuzz {
namespace {

using elbowroom::Codec;
using elbowroom::Dtype;
using elbowroom::kBlock;
using elbowroom::Predictor;
using elbowroom::Rule;
using values::Random;

template <class T>
T get(const std::uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
void put(std::uint8_t* p, T v) {
    std::memcpy(p, &v, sizeof v);
}

std::uint32_t some_length(Random& random) {
    constexpr std::uint32_t some[] = {0,  1,  2,   3,   4,    5,    7,     8,     16,        17,
                                      31, 32, 64,  65,  100,  128,  256,   257,   1000,      1024,
                                      15, 63, 255, 512, 2048, 4095, 31744, 31745, 0xffffffff};
    return some[random.below(sizeof some / sizeof *some)];
}

// Another value that the format allows, in one field.
void change_field(std::uint8_t* b, Random& random) {
    constexpr std::int16_t weights[] = {0, 64, -64, 32, 1, 127, -128, 32767, -32768};
    switch (random.below(10)) {
        case 0:
            b[0] = static_cast<std::uint8_t>(random.below(8) == 0 ? 0 : 1 + random.below(2));
            break;
        case 1:
            b[1] = static_cast<std::uint8_t>(1 + random.below(13));
            break;
        case 2:
            b[2] = static_cast<std::uint8_t>(random.below(5));
            break;
        case 3:
            b[3] ^= 1;
            break;
        case 4:
            put(b + 8 * (1 + random.below(3)),
                std::ldexp(1.0, static_cast<int>(random.below(270)) - 140));
            break;
        case 5:
            b[32] = static_cast<std::uint8_t>(random.below(7));
            break;
        case 6:
            put(b + 36, some_length(random));
            break;
        case 7:
            put(b + 40, some_length(random));
            break;
        case 8:
            put(b + 44 + 2 * random.below(4), weights[random.below(9)]);
            break;
        default:
            b[52] = static_cast<std::uint8_t>(random.below(3) == 0 ? random.below(23) : 0);
            b[53] = static_cast<std::uint8_t>(static_cast<int>(random.below(41)) - 20);
    }
}

double allowed_number(double v, Dtype dtype) {
    if (!(std::isfinite(v) && v != 0)) v = 0.01;
    v = std::fabs(v);
    if (dtype == Dtype::f64) return v;
    const auto single = static_cast<double>(static_cast<float>(v));
    return std::isfinite(single) && single > 0 ? single : 0.5;
}

// The nearest recipe that is valid.
void repair_recipe(std::uint8_t* b) {
    b[0] %= 3;
    b[1] = static_cast<std::uint8_t>(b[1] >= 1 && b[1] <= 13 ? b[1] : 1 + b[1] % 13);
    const auto dtype = static_cast<Dtype>(b[1]);
    b[2] = values::is_float(dtype) ? b[2] % 5 : 0;
    b[3] = b[2] == 0 ? 0 : b[3] & 1;
    const auto rule = static_cast<Rule>(b[2]);
    if (rule != Rule::dither) put(b + 4, std::uint32_t{0});
    for (const std::size_t at : {8, 16, 24}) {
        const double v = get<double>(b + at);
        put(b + at, rule == Rule::exact ? 0.0 : allowed_number(v, dtype));
    }
    if (rule == Rule::pointwise) {
        const double most = dtype == Dtype::f64 ? 0x1p52 : 0x1p23;
        put(b + 8, std::clamp(std::floor(get<double>(b + 8)), 1.0, most));
    }
    const bool dense = b[0] == 2;
    b[32] %= dense ? 7 : b[0] == 1 ? 4 : 1;
    std::memset(b + 33, 0, 3);
    if (!dense || b[32] == elbowroom::sparse_model) std::memset(b + 44, 0, 10);
    if (dense) b[52] %= 23;
    if (b[32] != 5 || !dense) b[53] = 0;
    const auto gain = static_cast<std::int8_t>(b[53]);
    if (gain < -20 || gain > 20) b[53] = static_cast<std::uint8_t>(gain % 21);
    std::memset(b + 54, 0, 10);
    if (b[0] == 1 && b[32] >= 2 && get<std::uint32_t>(b + 36) == 0) put(b + 36, 5u);
    if (b[0] == 1 && b[32] == 3 && get<std::uint32_t>(b + 40) == 0) put(b + 40, 5u);
}

// The bytes of the payload behind its beginning, as far as they may grow.
struct Rest {
    std::uint8_t* data;
    std::size_t size, most;

    bool resize(std::size_t wanted) {
        if (wanted > most) return false;
        if (wanted > size) std::memset(data + size, 0, wanted - size);
        size = wanted;
        return true;
    }
};

template <class Position>
void sort_positions(std::uint8_t* at, std::size_t count, std::size_t items) {
    for (std::size_t i = 0, next = 0; i < count; ++i, at += sizeof(Position)) {
        const std::size_t last = items - count + i;
        const std::size_t p = std::clamp<std::size_t>(get<Position>(at), next, last);
        put(at, static_cast<Position>(p));
        next = p + 1;
    }
}

// Puts the numbers of a chunk right, `size` being its bytes or more. Returns the bytes it takes,
// 0 if they do not suffice.
std::size_t repair_block(const Stream& s, std::size_t items, std::uint8_t* in, std::size_t size) {
    const auto& q = s.quantiser;
    const std::size_t item = item_bytes(q.dtype);
    const std::size_t n = q.rule == Rule::exact && item == 8 ? 2 * items : items;
    const std::size_t blocks = (n + kBlock - 1) / kBlock, fixed = 4 + (blocks + 3) / 4 * 4;
    if (size < fixed) return 0;
    const bool raw_allowed =
        q.rule != Rule::exact && q.dtype != Dtype::f64 && s.geometry.predictor == Predictor::none;
    std::size_t payload = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        std::uint8_t& h = in[4 + b];
        if (h >= 0xC0) h = raw_allowed ? std::uint8_t{0xC0} : static_cast<std::uint8_t>(h & 0x9F);
        if (h == 0xC0) {
            payload += std::min(kBlock, n - b * kBlock) * item;
            continue;
        }
        if ((h & 63) > 32) h &= 0xDF;
        payload += 8 * (h & 63u) + (h >= 0x80 ? 4 : h >= 0x40 ? 8 : 0);
    }
    std::memset(in + 4 + blocks, 0, fixed - 4 - blocks);
    std::uint32_t failures = q.rule == Rule::exact ? 0 : get<std::uint32_t>(in);
    if (failures > items) failures %= 8;
    if (fixed + payload > size) return 0;
    const std::size_t room = (size - fixed - payload) / (2 + item);
    failures = static_cast<std::uint32_t>(std::min<std::size_t>({failures, room, items}));
    put(in, failures);
    sort_positions<std::uint16_t>(in + fixed + payload, failures, items);
    return fixed + payload + failures * (2 + item);
}

// docs/format.md, "Lanes".
std::size_t steps_of(const Stream& s, std::size_t n, bool words, std::size_t lanes) {
    const std::size_t columns = words ? 0 : s.geometry.columns;
    for (const std::size_t unit : {columns * s.geometry.rows, columns}) {
        if (unit < 1 || unit > n + n / 8) continue;
        const std::size_t steps = (n + lanes * unit - 1) / (lanes * unit) * unit;
        if (lanes * steps <= n + n / 8) return steps;
    }
    return (n + lanes - 1) / lanes;
}

std::size_t repair_dense(const Stream& s, std::size_t items, std::uint8_t* in, std::size_t size) {
    const auto& q = s.quantiser;
    const std::size_t item = item_bytes(q.dtype);
    const bool words = q.rule == Rule::exact && item == 8;
    constexpr std::size_t header = 24;
    if (size < header + 8 + 64) return 0;
    if (in[0] != 11 && in[0] != 12) in[0] = 11;
    in[1] &= 1;
    in[2] = in[3] = 0;
    const std::size_t lanes = in[1] == 0 ? 64 : 16;
    const std::size_t steps = steps_of(s, words ? 2 * items : items, words, lanes);
    put(in + 4, static_cast<std::uint32_t>(steps));
    std::size_t table = get<std::uint32_t>(in + 20) / 8 * 8;
    if (header + table + 4 * lanes > size) return 0;
    std::size_t left = size - header - table - 4 * lanes;
    std::size_t escapes = get<std::uint32_t>(in + 8);
    std::size_t failures = q.rule == Rule::exact ? 0 : get<std::uint32_t>(in + 12);
    escapes = std::min({escapes, left / 4, lanes * steps});
    left -= 4 * escapes;
    failures = std::min({failures, left / (4 + item), items});
    left -= (4 + item) * failures;
    std::size_t count = std::min(left / 2, 3 * lanes * steps);
    put(in + 8, static_cast<std::uint32_t>(escapes));
    put(in + 12, static_cast<std::uint32_t>(failures));
    put(in + 16, static_cast<std::uint32_t>(count));
    put(in + 20, static_cast<std::uint32_t>(table));
    std::uint8_t* const positions = in + header + table + 4 * lanes + 2 * count + 4 * escapes;
    sort_positions<std::uint32_t>(positions, failures, items);
    return header + table + 4 * lanes + 2 * count + 4 * escapes + (4 + item) * failures;
}

std::size_t repair_sparse(const Stream& s, std::size_t items, std::uint8_t* in, std::size_t size) {
    const auto& q = s.quantiser;
    const std::size_t entry = 4 + item_bytes(q.dtype);
    if (size < 4) return 0;
    std::size_t failures = q.rule == Rule::exact ? 0 : get<std::uint32_t>(in);
    if (failures > items) failures %= 8;
    failures = std::min({failures, (size - 4) / entry, items});
    put(in, static_cast<std::uint32_t>(failures));
    std::uint8_t* const positions = in + size - entry * failures;
    if (positions > in + 4 && positions[-1] == 0) positions[-1] = 1;
    sort_positions<std::uint32_t>(positions, failures, items);
    return size;
}

std::size_t repair_chunks(std::uint8_t* data, std::size_t size, std::size_t most, Random& random) {
    Payload payload;
    if (!read_payload(data, size, payload) || payload.sizes.empty()) return size;
    const std::size_t chunks = payload.sizes.size(), length = chunk_items(payload.stream);
    const std::size_t start = head_bytes + 4 * (chunks - 1);
    Rest rest{data + start, size - start, most - start};
    std::size_t at = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
        const std::size_t items = std::min(length, payload.items - c * length);
        // A little more room than there is: a chunk that was cut off becomes whole again.
        const std::size_t missing = random.below(3) == 0 ? random.below(200) : 0;
        if (c + 1 == chunks && !rest.resize(rest.size + missing)) return size;
        std::size_t used = 0;
        if (payload.stream.codec == Codec::block)
            used = repair_block(payload.stream, items, rest.data + at, rest.size - at);
        else if (payload.stream.codec == Codec::dense &&
                 payload.stream.geometry.model == elbowroom::sparse_model)
            used = repair_sparse(payload.stream, items, rest.data + at, rest.size - at);
        else if (payload.stream.codec == Codec::dense)
            used = repair_dense(payload.stream, items, rest.data + at, rest.size - at);
        else
            used = std::min(items * item_bytes(payload.stream.quantiser.dtype), rest.size - at);
        if (used == 0) break;
        if (c + 1 < chunks)
            put(data + head_bytes + 4 * c, static_cast<std::uint32_t>(used));
        else
            rest.resize(at + used);
        at += used;
    }
    return start + rest.size;
}

}  // namespace

std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, std::uint32_t seed,
                   Tail tail, Blind blind) {
    Random random(seed);
    if (size < head_bytes || most < head_bytes) return blind(data, size, most);
    switch (random.below(8)) {
        case 0:
            size = blind(data, size, most);
            if (size < head_bytes) return size;
            break;
        case 1:
            blind(data, recipe_bytes, recipe_bytes);
            break;
        case 2:
            change_field(data, random);
            break;
        case 3: {
            auto number = get<std::uint32_t>(data + recipe_bytes);
            number = random.below(2) == 0
                         ? some_length(random)
                         : number + static_cast<std::uint32_t>(random.below(5)) - 2;
            put(data + recipe_bytes, number);
            break;
        }
        default:
            size = head_bytes + blind(data + head_bytes, size - head_bytes, most - head_bytes);
    }
    if (random.below(8) != 0) repair_recipe(data);
    if (tail == Tail::payload && random.below(4) != 0)
        size = repair_chunks(data, size, most, random);
    return size;
}

}  // namespace fuzz
