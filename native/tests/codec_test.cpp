#include "codec/codec.hpp"

#include "check.hpp"
#include "codec/workspace.hpp"
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
    const auto content = values::some_content(seed);
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
        CHECK(holds(streams::dense_stream(q, static_cast<int>(seed % streams::models),
                                          seed % 5 != 0, shift, shape.columns, shape.rows),
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

// Chunks of the model sparse reserve what the other models need, which is more.
TEST(sparse_takes_at_most_nine_bytes_a_code) {
    const Quantiser q = streams::make_quantiser(Dtype::i32, Rule::exact, 0, false);
    values::Random random(5);
    for (int kind = 0; kind < 6; ++kind)
        for (const std::size_t columns : {0, 2, 50})
            for (const std::size_t n : {1, 40, 1000, 50000}) {
                std::vector<std::int32_t> codes(n);
                for (std::size_t i = 0; i < n; ++i) {
                    const auto any = static_cast<std::int32_t>(random.bits());
                    const std::int32_t kinds[] = {
                        any,
                        INT32_MIN,
                        i % 2 == 0 ? 0 : INT32_MAX,
                        any >> random.below(32),
                        random.below(64) == 0 ? any : 0,
                        (i >> 10) % 2 == 0 ? 0 : INT32_MIN + static_cast<std::int32_t>(i % 3)};
                    codes[i] = kinds[kind];
                }
                const Stream s = streams::dense_stream(q, streams::sparse, false, 0, columns, 0);
                CHECK(round_trip::holds(s, codes.data(), n));
                CHECK(coding::encode(s, codes.data(), n).payload.size() <= 9 * n + 2048);
                CHECK(9 * n + 2048 + n * (4 + 4) <= chunk_capacity(s, n));
            }
}

TEST(zeros_take_four_bytes) {
    for (const Quantiser& q : streams::all_quantisers(0.01)) {
        const std::vector<std::uint8_t> zeros(100000 * item_bytes(q.dtype));
        for (const std::size_t columns : {0, 100}) {
            const Stream s = streams::dense_stream(q, streams::sparse, false, 0, columns, 0);
            CHECK(coding::encode(s, zeros.data(), 100000).payload.size() == 4);
            CHECK(round_trip::holds(s, zeros.data(), 100000));
        }
    }
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
    // Above 16 MiB the target is streamed, and only then; how depends on where it begins.
    const std::size_t items = (std::size_t{16} << 20) / 4 + 65;
    std::size_t offset = 0;
    for (const int model : {-1, 1, streams::sparse})
        for (const Rule rule : {Rule::plain, Rule::dither}) {
            const Quantiser q = streams::make_quantiser(Dtype::f32, rule, 0.5, false);
            const Stream s = model >= 0 ? streams::dense_stream(q, model, false, 0, 0, 0)
                                        : streams::block_stream(q, Predictor::none, 0, 0);
            const auto content =
                model == streams::sparse ? values::Content::rare : values::Content::constant;
            const auto bytes = values::make_items(q.dtype, content, items, 3);
            const coding::Encoded encoded = coding::encode(s, bytes.data(), items, 2);
            CHECK(encoded.is_sound);
            for (const Isa isa : coding::all_levels()) {
                const coding::AtLevel level(isa);
                offset = (offset + 4) % 68;
                const coding::Decoded decoded(s, encoded.directory, encoded.payload.data(),
                                              encoded.payload.size(), items, 0xFF, 2,
                                              offset % 3 == 0 ? 0 : offset);
                CHECK(decoded.verdict == Verdict::ok && decoded.target.is_intact());
                CHECK(promise::first_broken(q, bytes.data(), decoded.target.data(), items) ==
                      items);
            }
        }
}

// Scratch memory whose parts are allocations of their own, each of the size that it promises.
TEST(kernels_stay_inside_their_scratch_memory) {
    std::uint64_t seed = 0;
    for (Quantiser q : streams::all_quantisers(0.01)) {
        const DitherTable shifts(q);
        for (int method = 0; method < 4 + streams::models; ++method) {
            const std::size_t items = small_sizes[++seed % 6 + 1];
            const Shape shape = shapes[seed % 5];
            const bool dense = method >= 4;
            const Stream s = dense ? streams::dense_stream(q, method - 4, seed % 3 != 0,
                                                           static_cast<int>(seed % 5) * 5,
                                                           shape.columns, shape.rows)
                                   : streams::block_stream(q, streams::all_predictors[method],
                                                           shape.columns, shape.rows);
            const std::size_t n = has_word_planes(q) ? 2 * items : items;
            const std::size_t whole = ((n + kBlock - 1) / kBlock + 1) * kBlock * 4;
            const std::size_t blocks = (n + kBlock - 1) / kBlock;
            const coding::Guarded codes(whole, 0xAA), residuals(whole, 0xAA), index(whole, 0xAA),
                rest(dense ? dense_scratch_bytes(n, shape.columns) : blocks, 0xAA);
            Scratch scratch{reinterpret_cast<std::int32_t*>(codes.data()),
                            reinterpret_cast<std::int32_t*>(residuals.data()),
                            reinterpret_cast<std::uint32_t*>(index.data()), rest.data()};
            const auto bytes = values::make_items(q.dtype, values::some_content(seed), items, seed);
            const coding::Guarded source(bytes.data(), bytes.size());
            const coding::Guarded chunk(chunk_capacity(s, items), 0x11);
            const coding::Guarded target(bytes.size(), 0x22);
            for (const Isa isa : coding::all_levels()) {
                const coding::AtLevel level(isa);
                const auto encoding = dense ? dense_kernels().encode : block_kernels().encode;
                const auto decoding = dense ? dense_kernels().decode : block_kernels().decode;
                const std::size_t size =
                    encoding(q, s.geometry, source.data(), 0, items, chunk.data(), scratch);
                CHECK(size <= chunk.size());
                const coding::Guarded exact(chunk.data(), size);
                CHECK(decoding(q, s.geometry, exact.data(), size, 0, items, target.data(),
                               seed % 2 == 0, scratch));
                CHECK(promise::first_broken(q, source.data(), target.data(), items) == items);
                CHECK(codes.is_intact() && residuals.is_intact() && index.is_intact());
                CHECK(rest.is_intact() && chunk.is_intact() && target.is_intact());
            }
        }
    }
}

TEST(more_than_one_dense_chunk_keeps_its_promise) {
    const Quantiser lossy = streams::make_quantiser(Dtype::f32, Rule::dither, 0.25, true);
    const Quantiser words = streams::make_quantiser(Dtype::i64, Rule::exact, 0, false);
    const Stream rows = streams::dense_stream(lossy, 4, true, 0, 300, 7);
    const Stream planes = streams::dense_stream(words, 2, false, 0, 0, 0);
    CHECK(holds(rows, chunk_items(rows) + 12345, 5, 2));
    CHECK(holds(planes, chunk_items(planes) + 1, 6, 2));
    for (const Quantiser& q : {lossy, words}) {
        const Stream s = streams::dense_stream(q, streams::sparse, false, 0, 300, 7);
        const std::size_t items = chunk_items(s) + 4711;
        const auto bytes = values::make_items(q.dtype, values::Content::rare, items, 8);
        CHECK(round_trip::holds(s, bytes.data(), items, 2));
    }
}
