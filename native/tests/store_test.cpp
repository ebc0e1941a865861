#include "store/store.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "common/float_env.hpp"
#include "common/isa.hpp"
#include "values.hpp"

using namespace elbowroom;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Answer {
    std::size_t nbytes;
    const char* digest;
};

// Of the bytes of pattern(), as the reference implementation of XXH3 gives them.
constexpr Answer answers[] = {
    {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
    {2, "d6de848bda4aa8a8a2e80f4217545398"},    {3, "f8cfbacb21772857c19c6d4a3361e6e6"},
    {4, "250d9f75d86bc15440eddf2d782be5af"},    {7, "83115acf4ea8d4f489b79f844403727d"},
    {8, "8f5fb2350623ee49ac158416ae8e554a"},    {9, "dc14eb88ed0bbd97d03078994e9e7976"},
    {15, "1f729018601cdb10da4ce4c9f5b906fb"},   {16, "488a734acf80441f9332c23dfeaa4d8c"},
    {17, "96e31aadcaa14c21dbc316507ffbde3e"},   {31, "bb388c95d601dd7099d02e83e6bae91a"},
    {32, "a9fe644175b239976260cb2f32dc0960"},   {33, "7ecceaa7846c32393704b2e708c706a4"},
    {64, "9bf41d576b7c09d765e7a9047b571e94"},   {65, "15057f7dd83153559f1b71fca6701e5a"},
    {96, "429dfa2d77ea18c4bb852d4158099fc8"},   {97, "622ce2a89f55b2ac66790fcf2e6bf6b9"},
    {128, "5386ff3d6bbba4a9d72d42676d9a8354"},  {129, "7a9c5a8b799b88947e68bf90baeda2c1"},
    {159, "f6f8ce6effedaf2d986b48858e3d5874"},  {160, "d9dc5700d5f77f6428ffbc487a25f774"},
    {239, "d176999618fb249d68246e46596ebc19"},  {240, "fc775a4103bd8bf8f56d8a942526dda6"},
    {241, "15e3f2d84cb3604e78aea0eed965dce5"},  {256, "4e5fa4d487abf5a6fcb7ee1fe91d357c"},
    {1023, "94fa75779f97ad7e1276cb1569eeac2b"}, {1024, "fbbfb5d8e7c40c19b18f80ff13c57c41"},
    {1025, "cd4891225425426adb8186f63012acf8"}, {1088, "2ec0d7fc3afd2ca069794a719ada3356"},
    {2048, "6467642fb7a7178f2f27aa3fb4de0d5d"}, {4097, "4df465a0c4c3984d3431bac425fb1f1c"},
};

Bytes pattern(std::size_t n) {
    Bytes bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i * 151 + (i >> 8));
    return bytes;
}

std::string hex(const std::uint8_t* digest) {
    std::string text;
    for (std::size_t i = 0; i < digest_bytes; ++i) {
        text += "0123456789abcdef"[digest[i] >> 4];
        text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
}

template <class Body>
void at_every_level(Body&& body) {
    const Isa before = current();
    for (int level = 0; level <= static_cast<int>(detect()); ++level) {
        set_isa(static_cast<Isa>(level));
        body();
    }
    set_isa(before);
}

Bytes digests_of(const Bytes& data, std::size_t part_bytes, unsigned threads) {
    Bytes out((data.size() + part_bytes - 1) / part_bytes * digest_bytes);
    hash_parts(data.data(), data.size(), part_bytes, out.data(), threads);
    return out;
}

Bytes any_bytes(std::size_t n, std::uint64_t seed) {
    return values::make_items(Dtype::u8, values::Content::bits, n, seed);
}

Bytes planes_of(Relation relation, const Bytes& now, const Bytes& before) {
    Bytes out(now.size());
    split_planes(relation, now.data(), before.data(), now.size() / relation.item, out.data());
    return out;
}

// Planes that each lie in memory of their own size.
Bytes items_of(Relation relation, const Bytes& planes, const Bytes& before) {
    const std::size_t count = planes.size() / relation.item;
    std::vector<Bytes> apart;
    const std::uint8_t* places[most_planes];
    for (std::size_t p = 0; p < relation.item; ++p) {
        const auto first = planes.begin() + static_cast<std::ptrdiff_t>(p * count);
        apart.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
        places[p] = apart.back().data();
    }
    Bytes target = before;
    join_planes(relation, places, count, target.data());
    return target;
}

constexpr Difference differences[] = {Difference::plain, Difference::flipped, Difference::distance,
                                      Difference::scaled};

template <class Body>
void for_every_relation(Body&& body) {
    for (const Difference difference : differences)
        for (const std::size_t item : {1, 2, 4, 8})
            if (difference != Difference::scaled || item >= 4)
                body(Relation{difference, item, 0.9900449});
}

}  // namespace

TEST(digests_are_those_of_xxh3) {
    at_every_level([] {
        for (const Answer& answer : answers) {
            const Bytes data = pattern(answer.nbytes);
            std::uint8_t digest[digest_bytes];
            hash_whole(data.data(), data.size(), digest);
            CHECK(hex(digest) == answer.digest);
        }
    });
}

TEST(digests_of_parts_are_those_of_the_parts_alone) {
    const Bytes data = any_bytes(300007, 1);
    at_every_level([&] {
        for (const std::size_t part : {std::size_t{1000}, std::size_t{16384}, std::size_t{300007},
                                       std::size_t{1} << 20, ~std::size_t{0}}) {
            const std::size_t parts = (data.size() - 1) / part + 1;
            Bytes out(parts * digest_bytes), alone(out.size());
            for (std::size_t i = 0; i < parts; ++i) {
                // Alone in memory, so that a sanitizer sees what is read beyond.
                const std::size_t end = parts == 1 ? data.size() : (i + 1) * part;
                const auto first = data.begin() + static_cast<std::ptrdiff_t>(i * part);
                const auto last = end < data.size()
                                      ? data.begin() + static_cast<std::ptrdiff_t>(end)
                                      : data.end();
                const Bytes piece(first, last);
                hash_whole(piece.data(), piece.size(), alone.data() + i * digest_bytes);
            }
            for (const unsigned threads : {1u, 3u}) {
                hash_parts(data.data(), data.size(), part, out.data(), threads);
                CHECK(out == alone);
            }
        }
    });
}

TEST(many_tiny_parts_have_the_same_digests_on_many_threads) {
    const Bytes data = any_bytes((std::size_t{1} << 21) + 5, 2);
    const Bytes one = digests_of(data, 32, 1);
    CHECK(one == digests_of(data, 32, 4));
    CHECK(one.size() == ((std::size_t{1} << 16) + 1) * digest_bytes);
    hash_parts(nullptr, 0, 32, nullptr, 4);
}

TEST(digests_are_the_same_at_every_level_and_place) {
    const Bytes data = any_bytes(5000, 3);
    for (std::size_t n = 0; n < 1400; n += n < 300 ? 1 : 37) {
        std::uint8_t expected[digest_bytes], digest[digest_bytes];
        const Bytes alone(data.begin() + 3, data.begin() + 3 + static_cast<std::ptrdiff_t>(n));
        hash_whole(alone.data(), n, expected);
        at_every_level([&] {
            hash_whole(data.data() + 3, n, digest);
            CHECK(std::memcmp(digest, expected, digest_bytes) == 0);
        });
    }
}

TEST(pairs_of_digests_have_digests_up_to_the_root) {
    CHECK(digests_above(0) == 0 && digests_above(1) == 0 && digests_above(2) == 1);
    CHECK(digests_above(5) == 3 + 2 + 1);
    for (const std::size_t count : {0, 1, 2, 3, 5, 8, 37}) {
        const Bytes leaves = any_bytes(count * digest_bytes, count);
        Bytes expected, below = leaves;
        while (below.size() > digest_bytes) {
            const std::size_t paired = below.size() / (2 * digest_bytes) * (2 * digest_bytes);
            const Bytes pairs(below.begin(), below.begin() + static_cast<std::ptrdiff_t>(paired));
            Bytes above = digests_of(pairs, 2 * digest_bytes, 1);
            above.insert(above.end(), below.begin() + static_cast<std::ptrdiff_t>(paired),
                         below.end());
            expected.insert(expected.end(), above.begin(), above.end());
            below = above;
        }
        at_every_level([&] {
            Bytes found(digests_above(count) * digest_bytes);
            hash_pairs(leaves.data(), count, found.data());
            CHECK(found == expected);
        });
    }
}

TEST(runs_are_copied_and_nothing_beside_them) {
    const Bytes source = any_bytes((std::size_t{5} << 20) + 777, 21);
    const std::size_t sizes[] = {
        0, 1, 63, 64, 65, 4095, 4096, 4097, 4096 + 300, (3u << 20) + 5, 1u << 20};
    for (const std::size_t shift : {0, 1, 13, 64}) {
        at_every_level([&] {
            for (const unsigned threads : {1u, 3u}) {
                Bytes target(source.size() + 8192, 0xa5), expected = target;
                std::vector<Run> runs;
                std::size_t from = shift, to = shift / 2;
                for (const std::size_t n : sizes) {
                    runs.push_back({source.data() + from, target.data() + to, n});
                    std::memcpy(expected.data() + to, source.data() + from, n);
                    from += n;
                    to += n + 7 + n % 3;
                }
                copy_runs(runs, threads);
                CHECK(target == expected);
            }
        });
    }
    copy_runs({}, 2);
}

TEST(planes_hold_equal_bytes_side_by_side) {
    const Bytes now = {1, 2, 3, 4, 5, 6}, before = {1, 1, 1, 1, 6, 6};
    at_every_level([&] {
        CHECK(planes_of({Difference::plain, 2}, now, before) == Bytes{1, 3, 5, 2, 4, 6});
        CHECK(planes_of({Difference::flipped, 2}, now, before) == Bytes{0, 2, 3, 3, 5, 0});
        // 0x0100, 0x0302 and -1, each doubled; the last less one.
        CHECK(planes_of({Difference::distance, 2}, now, before) == Bytes{0, 4, 1, 2, 6, 0});
    });
}

TEST(planes_come_back_as_items) {
    for_every_relation([](Relation relation) {
        for (const std::size_t count : {0, 1, 2, 15, 64, 1023, 1024, 1025, 3001}) {
            const std::size_t n = count * relation.item;
            const Bytes now = any_bytes(n, count), before = any_bytes(n, count + 1);
            const Bytes planes = planes_of(relation, now, before);
            at_every_level([&] {
                CHECK(planes_of(relation, now, before) == planes);
                CHECK(items_of(relation, planes, before) == now);
            });
        }
    });
}

TEST(what_decays_by_the_factor_leaves_nothing) {
    Bytes now(4000), before(4000);
    values::Random random(7);
    for (std::size_t i = 0; i < 1000; ++i) {
        const auto old = static_cast<float>(random.bell());
        const float decayed = old * 0.875f;
        std::memcpy(before.data() + 4 * i, &old, 4);
        std::memcpy(now.data() + 4 * i, &decayed, 4);
    }
    at_every_level([&] {
        CHECK(planes_of({Difference::scaled, 4, 0.875}, now, before) == Bytes(4000));
        const Bytes same = planes_of({Difference::distance, 4}, now, before);
        CHECK(planes_of({Difference::scaled, 4, 1.0}, now, before) == same);
    });
}

TEST(scaled_planes_do_not_depend_on_the_host) {
    // Denormals, infinities, numbers that are none, and what overflows.
    for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
        const auto before = values::make_items(dtype, values::Content::specials, 5000, 11);
        const auto now = values::make_items(dtype, values::Content::bits, 5000, 12);
        for (const double factor : {1.0, 0.3486784401, 1.5, least_factor, most_factor}) {
            const Relation relation{Difference::scaled, item_bytes(dtype), factor};
            const Bytes planes = planes_of(relation, now, before);
            at_every_level([&] {
                CHECK(planes_of(relation, now, before) == planes);
                CHECK(items_of(relation, planes, before) == now);
#if defined(__x86_64__)
                const unsigned host = _mm_getcsr();
                _mm_setcsr(host | 0xE040);  // flush to zero, denormals are zero, round to zero
                const bool same = planes_of(relation, now, before) == planes &&
                                  items_of(relation, planes, before) == now;
                _mm_setcsr(host);
                CHECK(same);
#endif
            });
        }
    }
}
