#include "codec/codec.hpp"

#include "check.hpp"
#include "round_trip.hpp"

using namespace elbowroom;

namespace {

constexpr std::size_t small_sizes[] = {0, 1, 3, 63, 64, 65, 1000};
constexpr std::size_t large_size = 65537;

struct Shape {
    std::size_t columns, rows;
};
// Rows that do and do not fit lanes, blocks and chunks.
constexpr Shape shapes[] = {{1, 1}, {7, 3}, {64, 4}, {200, 5}, {4000000000u, 4000000000u}};

bool holds(const Stream& s, std::size_t items, std::uint64_t seed, unsigned threads = 1) {
    const auto content = values::contents[seed % 5];
    const auto bytes = values::make_items(s.quantiser.dtype, content, items, seed);
    return round_trip::holds(s, bytes.data(), items, threads);
}

}  // namespace

TEST(block_keeps_its_promise_for_every_type_rule_and_predictor) {
    std::uint64_t seed = 0;
    for (const double limit : {1e-3, 0.3})
        for (const Quantiser& q : streams::all_quantisers(limit))
            for (const Predictor p : streams::all_predictors)
                for (const std::size_t items : small_sizes)
                    for (int i = 0; i < 2; ++i, ++seed) {
                        const Shape shape = shapes[seed % 5];
                        CHECK(holds(streams::block_stream(q, p, shape.columns, shape.rows), items,
                                    seed));
                    }
}

TEST(dense_keeps_its_promise_for_every_type_rule_and_model) {
    std::uint64_t seed = 0;
    for (const Quantiser& q : streams::all_quantisers(1e-3))
        for (int model = 0; model < streams::models; ++model)
            for (const bool weighted : {false, true})
                for (const std::size_t items : small_sizes) {
                    ++seed;
                    const Shape shape = shapes[seed % 5];
                    const int shift = seed % 3 == 0 ? static_cast<int>(seed % 23) : 0;
                    CHECK(holds(
                        streams::dense_stream(q, model, weighted, shift, shape.columns, shape.rows),
                        items, seed));
                }
}

TEST(more_than_one_block_chunk_keeps_its_promise) {
    std::uint64_t seed = 0;
    for (const Quantiser& q : streams::all_quantisers(0.01)) {
        const Predictor p = streams::all_predictors[++seed % 4];
        const Shape shape = shapes[seed % 5];
        CHECK(holds(streams::block_stream(q, p, shape.columns, shape.rows), large_size, seed, 2));
    }
}

TEST(long_dense_chunks_keep_their_promise) {
    std::uint64_t seed = 0;
    for (const Quantiser& q : streams::all_quantisers(0.01)) {
        const Shape shape = shapes[++seed % 5];
        const int shift = seed % 4 == 0 ? 3 : 0;
        CHECK(holds(streams::dense_stream(q, static_cast<int>(seed % 6), seed % 5 != 0, shift,
                                          shape.columns, shape.rows),
                    large_size, seed, 2));
    }
}

TEST(every_shift_and_gain_keeps_its_promise) {
    const Quantiser q = streams::make_quantiser(Dtype::i32, Rule::exact, 0, false);
    for (int shift = 0; shift <= 22; ++shift)
        for (int gain = -20; gain <= 20; gain += 4) {
            Stream s = streams::dense_stream(q, 5, shift % 2 == 0, shift, 10, 10);
            s.geometry.gain = static_cast<std::int8_t>(gain);
            CHECK(holds(s, 700, static_cast<std::uint64_t>(shift * 100 + gain + 20)));
        }
}

TEST(codes_of_any_size_survive_the_levels) {
    // Every power of two and its neighbours, both signs: octaves, extra bits and escapes.
    std::vector<std::int32_t> codes;
    for (int bit = 0; bit < 32; ++bit)
        for (int near = -1; near <= 1; ++near) {
            const auto v = static_cast<std::uint32_t>((std::int64_t{1} << bit) + near);
            codes.push_back(static_cast<std::int32_t>(v));
            codes.push_back(static_cast<std::int32_t>(0u - v));
        }
    const Quantiser q = streams::make_quantiser(Dtype::i32, Rule::exact, 0, false);
    for (int shift = 0; shift <= 22; ++shift)
        for (int model = 0; model < streams::models; ++model)
            for (const bool weighted : {false, true})
                CHECK(round_trip::holds(streams::dense_stream(q, model, weighted, shift, 16, 2),
                                        codes.data(), codes.size()));
    for (const Predictor p : streams::all_predictors)
        CHECK(round_trip::holds(streams::block_stream(q, p, 16, 2), codes.data(), codes.size()));
}

TEST(raw_keeps_every_bit) {
    for (const Dtype d : streams::all_dtypes()) {
        Stream s;
        s.codec = Codec::raw;
        s.quantiser = streams::make_quantiser(d, Rule::exact, 0, false);
        for (const std::size_t items : small_sizes) CHECK(holds(s, items, items + 4));
    }
}

TEST(threads_do_not_change_the_bytes) {
    const Quantiser q = streams::make_quantiser(Dtype::f32, Rule::dither, 0.01, true);
    const Stream s = streams::block_stream(q, Predictor::plane, 100, 9);
    const std::size_t items = 5 * 65536 + 17;
    const auto bytes = values::make_items(q.dtype, values::Content::specials, items, 1);
    const coding::Encoded one = coding::encode(s, bytes.data(), items, 1);
    for (const unsigned threads : {2u, 3u, 8u}) {
        CHECK(coding::encode(s, bytes.data(), items, threads) == one);
        CHECK(round_trip::holds(s, bytes.data(), items, threads));
    }
}

TEST(writing_around_the_caches_changes_nothing) {
    // Above 16 MiB the target is streamed, and only then.
    const std::size_t items = (std::size_t{16} << 20) / 4 + 65;
    for (const bool dense : {false, true})
        for (const Rule rule : {Rule::plain, Rule::dither}) {
            const Quantiser q = streams::make_quantiser(Dtype::f32, rule, 0.5, false);
            const Stream s = dense ? streams::dense_stream(q, 1, false, 0, 0, 0)
                                   : streams::block_stream(q, Predictor::none, 0, 0);
            const auto bytes = values::make_items(q.dtype, values::Content::constant, items, 3);
            const coding::Encoded encoded = coding::encode(s, bytes.data(), items, 2);
            CHECK(encoded.is_sound);
            const coding::Decoded decoded(s, encoded.directory, encoded.payload.data(),
                                          encoded.payload.size(), items, 0xFF, 2);
            CHECK(decoded.verdict == Verdict::ok && decoded.target.is_intact());
            CHECK(promise::first_broken(q, bytes.data(), decoded.target.data(), items) == items);
        }
}
