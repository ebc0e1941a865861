#include "fuzz/input.hpp"

#include <cmath>
#include <cstring>

#include "common/checksum.hpp"
#include "tests/values.hpp"

namespace fuzz {
namespace {

using elbowroom::Dtype;
using elbowroom::item_bytes;
using elbowroom::Quantiser;
using elbowroom::Rule;

constexpr std::uint32_t many_times = 80;
// All of them set: choosing and many items cost too much to be drawn often.
constexpr std::uint32_t choice_bits = 7 << 3;
constexpr std::uint32_t many_bits = 1023 << 10;

std::uint32_t read_u32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

void append_u32(std::vector<std::uint8_t>& out, std::uint32_t v) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(&v);
    out.insert(out.end(), p, p + 4);
}

std::vector<std::uint8_t> head_of(const Stream& stream, std::uint32_t number) {
    std::vector<std::uint8_t> out(recipe_bytes);
    write_recipe(stream, out.data());
    append_u32(out, number);
    return out;
}

// Where rounding, the bound and the ends of a type's range decide.
double edge(const Quantiser& q, values::Random& random) {
    const double step = q.rule == Rule::exact || q.rule == Rule::pointwise ? 1.0 : q.step;
    const double k = static_cast<double>(random.below(64)) - 32.0;
    const double offsets[] = {0.0, 0.5, -0.5, 0x1p-24, -0x1p-24, 0.5 + 0x1p-24, 0.5 - 0x1p-24};
    double v = (k + offsets[random.below(7)]) * step;
    switch (random.below(8)) {
        case 0:
            v = std::ldexp(v, static_cast<int>(random.below(400)) - 200);
            break;
        case 1:
            v += q.bound;
            break;
        case 2:
            v = step * std::ldexp(1.0 + k / 64, 28 + static_cast<int>(random.below(5)));
            break;
        case 3:
            return values::special(random);
        default:
            break;
    }
    return v;
}

void put_whole(Dtype d, double v, std::uint8_t* to) {
    if (values::is_float(d)) return values::put_number(d, v, to);
    const auto whole = std::fabs(v) < 0x1p62 ? static_cast<std::int64_t>(v) : std::int64_t{-1};
    std::memcpy(to, &whole, item_bytes(d));
}

void make_items(const Quantiser& q, Making making, const std::uint8_t* from, std::size_t length,
                std::size_t items, std::vector<std::uint8_t>& out) {
    const std::size_t item = item_bytes(q.dtype);
    out.resize(items * item);
    if (out.empty()) return;
    values::Random random(elbowroom::checksum(from, length));
    const double size =
        std::ldexp(q.rule == Rule::exact || q.rule == Rule::pointwise ? 1.0 : q.step,
                   length > 0 ? from[0] % 40 - 8 : 0);
    double sum = 0;
    for (std::size_t i = 0; i < items; ++i) {
        std::uint8_t* const to = out.data() + i * item;
        const auto byte = [&](std::size_t at) {
            return length == 0 ? std::uint8_t{0} : from[at % length];
        };
        const auto copy = [&](std::size_t at) {
            for (std::size_t j = 0; j < item; ++j) to[j] = byte(at + j);
        };
        switch (making) {
            case Making::walk:
                sum += size * static_cast<std::int8_t>(byte(i + 1));
                put_whole(q.dtype, sum, to);
                break;
            case Making::noise:
                put_whole(q.dtype, size * random.bell(), to);
                break;
            case Making::mixture:
                put_whole(q.dtype, size * random.bell(), to);
                if (random.below(16) == 0) copy(random.below(length + 1));
                break;
            case Making::edges:
                put_whole(q.dtype, edge(q, random), to);
                break;
            default:
                copy(i * item);
        }
    }
}

}  // namespace

bool read_payload(const std::uint8_t* data, std::size_t size, Payload& payload) {
    if (size < head_bytes || !read_recipe(data, recipe_bytes, payload.stream)) return false;
    payload.items = read_u32(data + recipe_bytes);
    if (payload.items > most_items) payload.items %= few_items;
    const std::size_t chunks = chunk_count(payload.stream, payload.items);
    const std::uint8_t* at = data + head_bytes;
    std::size_t left = size - head_bytes;
    const std::size_t listed = chunks == 0 ? 0 : 4 * (chunks - 1);
    if (left < listed) return false;
    left -= listed;
    payload.bytes = at + listed;
    payload.size = chunks == 0 ? 0 : left;
    payload.sizes.clear();
    for (std::size_t c = 0; c < chunks; ++c) {
        std::size_t bytes = left;
        if (c + 1 < chunks) bytes = std::min<std::size_t>(read_u32(at + 4 * c), left);
        payload.sizes.push_back(static_cast<std::uint32_t>(bytes));
        left -= bytes;
    }
    return true;
}

std::vector<std::uint8_t> write_payload(const Stream& stream, std::size_t items,
                                        const std::vector<std::uint32_t>& sizes,
                                        const std::vector<std::uint8_t>& bytes) {
    std::vector<std::uint8_t> out = head_of(stream, static_cast<std::uint32_t>(items));
    for (std::size_t c = 0; c + 1 < sizes.size(); ++c) append_u32(out, sizes[c]);
    out.insert(out.end(), bytes.begin(), bytes.end());
    return out;
}

bool read_values(const std::uint8_t* data, std::size_t size, Values& values) {
    if (size < head_bytes || !read_recipe(data, recipe_bytes, values.stream)) return false;
    const std::uint32_t number = read_u32(data + recipe_bytes);
    values.items = number % few_items;
    const auto rest = static_cast<std::uint32_t>(number / few_items);
    const auto making = static_cast<Making>(rest & 7);
    values.choosing = (rest & choice_bits) == choice_bits;
    if ((rest & many_bits) == many_bits) values.items *= many_times;
    make_items(values.stream.quantiser, making, data + head_bytes, size - head_bytes, values.items,
               values.bytes);
    return true;
}

std::vector<std::uint8_t> write_values(const Stream& stream, std::size_t items, Making making,
                                       bool choosing, const std::vector<std::uint8_t>& bytes) {
    std::uint32_t rest = static_cast<std::uint32_t>(making) | (choosing ? choice_bits : 0);
    if (items >= few_items) {
        items /= many_times;
        rest |= many_bits;
    }
    const auto number = static_cast<std::uint32_t>(items % few_items + rest * few_items);
    std::vector<std::uint8_t> out = head_of(stream, number);
    out.insert(out.end(), bytes.begin(), bytes.end());
    return out;
}

}  // namespace fuzz
