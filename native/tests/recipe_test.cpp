#include "codec/recipe.hpp"

#include <cstring>
#include <limits>

#include "check.hpp"
#include "streams.hpp"

using namespace elbowroom;

namespace {

struct Bytes {
    std::uint8_t b[recipe_bytes];

    explicit Bytes(const Stream& s) { write_recipe(s, b); }
    template <class T>
    Bytes with(std::size_t at, T value) const {
        Bytes changed = *this;
        std::memcpy(changed.b + at, &value, sizeof value);
        return changed;
    }
    bool is_valid() const {
        Stream s;
        return read_recipe(b, recipe_bytes, s);
    }
};

const Quantiser plain = streams::make_quantiser(Dtype::f32, Rule::plain, 0.01, true);
const Quantiser exact = streams::make_quantiser(Dtype::f32, Rule::exact, 0, false);
const Quantiser pointwise = streams::make_quantiser(Dtype::f32, Rule::pointwise, 0.01, false);

}  // namespace

TEST(recipes_come_back_as_they_were) {
    for (const Quantiser& q : streams::all_quantisers(0.37)) {
        for (int method = 0; method < 4 + streams::models; ++method) {
            const Stream s = method < 4 ? streams::block_stream(q, streams::all_predictors[method],
                                                                4294967295u, 17)
                                        : streams::dense_stream(q, method - 4, true, 21, 3, 0);
            const Bytes once(s);
            Stream again;
            CHECK(read_recipe(once.b, recipe_bytes, again));
            const Bytes twice(again);
            CHECK(std::memcmp(once.b, twice.b, recipe_bytes) == 0);
        }
    }
}

TEST(recipes_of_another_size_are_refused) {
    const Bytes recipe(streams::block_stream(plain, Predictor::none, 0, 0));
    Stream s;
    CHECK(!read_recipe(recipe.b, recipe_bytes - 1, s));
    CHECK(!read_recipe(recipe.b, 0, s));
}

TEST(fields_out_of_range_are_refused) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Bytes block(streams::block_stream(plain, Predictor::none, 0, 0));
    const Bytes lossless(streams::block_stream(exact, Predictor::none, 0, 0));
    const Bytes patterns(streams::block_stream(pointwise, Predictor::none, 0, 0));
    const Bytes dense(streams::dense_stream(plain, 5, true, 3, 0, 0));
    CHECK(block.is_valid() && lossless.is_valid() && patterns.is_valid() && dense.is_valid());
    const auto byte = [](int v) { return static_cast<std::uint8_t>(v); };
    CHECK(!block.with(0, byte(3)).is_valid());  // codec
    CHECK(!block.with(1, byte(0)).is_valid());  // element type
    CHECK(!block.with(1, byte(14)).is_valid());
    CHECK(!block.with(1, byte(9)).is_valid());  // a lossy rule on integers
    CHECK(!block.with(2, byte(5)).is_valid());  // rule
    CHECK(!block.with(3, byte(2)).is_valid());  // flags
    CHECK(!lossless.with(3, byte(1)).is_valid());
    CHECK(!block.with(4, 1u).is_valid());  // a seed without dither
    CHECK(!lossless.with(4, 1u).is_valid());
    for (const std::size_t at : {8, 16, 24}) {
        for (const double bad :
             {0.0, -1.0, infinity, std::numeric_limits<double>::quiet_NaN(), 0.1, 1e300, 0x1p-200})
            CHECK(!block.with(at, bad).is_valid());
        CHECK(!lossless.with(at, 1.0).is_valid());
        CHECK(block.with(at, 0x1p-149).is_valid());
    }
    for (const double bad : {0.5, 1.5, 0x1p24}) CHECK(!patterns.with(8, bad).is_valid());
    CHECK(patterns.with(8, 0x1p23).is_valid());
    CHECK(!block.with(32, byte(4)).is_valid());  // predictor
    CHECK(!block.with(32, byte(2)).is_valid());  // above, without columns
    CHECK(block.with(32, byte(2)).with(36, 1u).is_valid());
    CHECK(!block.with(32, byte(3)).with(36, 1u).is_valid());  // plane, without rows
    CHECK(block.with(32, byte(3)).with(36, 1u).with(40, 1u).is_valid());
    CHECK(!dense.with(32, byte(7)).is_valid());   // model
    CHECK(!dense.with(52, byte(23)).is_valid());  // shift
    CHECK(!dense.with(53, byte(21)).is_valid());  // gain
    CHECK(!dense.with(53, byte(-21)).is_valid());
    CHECK(!dense.with(32, byte(4)).with(53, byte(1)).is_valid());
    for (std::size_t at = 44; at < 54; ++at) CHECK(!block.with(at, byte(1)).is_valid());
    const Bytes sparse(streams::dense_stream(plain, streams::sparse, false, 0, 0, 0));
    CHECK(sparse.is_valid());
    CHECK(sparse.with(36, 5u).with(40, 6u).is_valid());
    for (std::size_t at = 44; at < 54; ++at) CHECK(!sparse.with(at, byte(1)).is_valid());
    for (const std::size_t at : {33, 54, 55, 63}) CHECK(!dense.with(at, byte(1)).is_valid());
    const auto length = [](int v) { return static_cast<std::uint16_t>(v); };
    for (const int bad : {1, 15, 496, 65535}) CHECK(!dense.with(34, length(bad)).is_valid());
    for (const int good : {0, 16, 495}) CHECK(dense.with(34, length(good)).is_valid());
    CHECK(!block.with(34, length(16)).is_valid());
    Bytes raw = block.with(0, byte(0));
    CHECK(raw.is_valid());
    CHECK(!raw.with(32, byte(1)).is_valid());
}
