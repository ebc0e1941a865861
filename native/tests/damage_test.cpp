// Chunks that no encoder wrote: refused, or decoded without leaving any memory.
#include <algorithm>

#include "check.hpp"
#include "round_trip.hpp"

using namespace elbowroom;

namespace {

// Streams whose chunks have every part: tables, escapes, extra bits, failed items, raw blocks.
std::vector<Stream> various_streams() {
    std::vector<Stream> all;
    std::size_t i = 0;
    for (const Quantiser& q : streams::all_quantisers(0.01)) {
        all.push_back(streams::block_stream(q, streams::all_predictors[i % 4], 40, 5));
        all.push_back(streams::dense_stream(q, static_cast<int>(i % streams::models), i % 2 == 0,
                                            i % 5 == 0 ? 4 : 0, 40, 5));
        all.push_back(streams::dense_stream(q, streams::sparse, false, 0, i % 3 * 20, 5));
        ++i;
    }
    return all;
}

// Decodes one chunk with a checksum that fits, at every level; they have to agree.
bool survives(const Stream& s, const std::vector<std::uint8_t>& chunk, std::size_t items) {
    const std::vector<ChunkEntry> directory = {
        {static_cast<std::uint32_t>(chunk.size()), checksum(chunk.data(), chunk.size())}};
    Verdict first = Verdict::ok;
    for (const Isa isa : coding::all_levels()) {
        const coding::AtLevel level(isa);
        const coding::Decoded d(s, directory, chunk.data(), chunk.size(), items, 0x33);
        if (!d.target.is_intact()) return round_trip::complain(s, items, isa, "left its target");
        if (d.verdict == Verdict::bad_checksum || d.verdict == Verdict::no_memory)
            return round_trip::complain(s, items, isa, "unexpected verdict");
        if (isa == Isa::scalar) first = d.verdict;
        if (d.verdict != first) return round_trip::complain(s, items, isa, "another verdict");
    }
    return true;
}

bool is_refused(const Stream& s, const std::vector<std::uint8_t>& chunk, std::size_t items) {
    const std::vector<ChunkEntry> directory = {
        {static_cast<std::uint32_t>(chunk.size()), checksum(chunk.data(), chunk.size())}};
    const coding::Decoded d(s, directory, chunk.data(), chunk.size(), items, 0x33);
    return d.verdict == Verdict::bad_chunk && d.bad_chunk == 0 && d.target.is_intact();
}

}  // namespace

TEST(chunks_of_another_length_are_refused) {
    for (const Stream& s : various_streams()) {
        const std::size_t items = 500;
        const auto bytes =
            values::make_items(s.quantiser.dtype, values::Content::specials, items, 7);
        const std::vector<std::uint8_t> chunk = coding::encode(s, bytes.data(), items).payload;
        // Every number is one that the model sparse could have written: where it ends, zeros
        // follow.
        const bool any_length = s.codec == Codec::dense && s.geometry.model == streams::sparse;
        for (std::size_t size = 0; size < chunk.size();
             size += size < 64 ? 1 : 1 + chunk.size() / 40) {
            const std::vector<std::uint8_t> cut(chunk.begin(),
                                                chunk.begin() + static_cast<long>(size));
            CHECK(any_length && size >= 4 ? survives(s, cut, items) : is_refused(s, cut, items));
        }
        for (const int more : {1, 2, 8, 4096}) {
            std::vector<std::uint8_t> longer = chunk;
            longer.insert(longer.end(), static_cast<std::size_t>(more), std::uint8_t{0});
            CHECK(any_length && more < 4096 ? survives(s, longer, items)
                                            : is_refused(s, longer, items));
        }
        CHECK(survives(s, chunk, items + 1));
        CHECK(survives(s, chunk, items - 1));
        CHECK(survives(s, chunk, 1));
        CHECK(survives(s, chunk, 30000));
    }
}

TEST(changed_chunks_are_refused_or_decoded_in_bounds) {
    values::Random random(11);
    for (const Stream& s : various_streams()) {
        const std::size_t items = 300 + random.below(300);
        const auto content = values::some_content(random.bits());
        const auto bytes = values::make_items(s.quantiser.dtype, content, items, random.bits());
        const std::vector<std::uint8_t> chunk = coding::encode(s, bytes.data(), items).payload;
        for (int i = 0; i < 40; ++i) {
            std::vector<std::uint8_t> changed = chunk;
            // The front holds what the rest is read by.
            const std::size_t front = std::min<std::size_t>(chunk.size(), 64);
            const std::size_t at = random.below(i % 2 == 0 ? front : chunk.size());
            const std::size_t run = std::min<std::size_t>(1 + random.below(4), chunk.size() - at);
            for (std::size_t j = 0; j < run; ++j)
                changed[at + j] =
                    i % 3 == 0 ? std::uint8_t{0xFF} : static_cast<std::uint8_t>(random.bits());
            CHECK(survives(s, changed, items));
        }
    }
}

TEST(a_flipped_bit_does_not_pass_the_checksum) {
    const Quantiser q = streams::make_quantiser(Dtype::f32, Rule::plain, 0.01, false);
    for (const Stream& s : {streams::block_stream(q, Predictor::left, 0, 0),
                            streams::dense_stream(q, 2, true, 0, 0, 0),
                            streams::dense_stream(q, streams::sparse, false, 0, 0, 0)}) {
        const auto bytes = values::make_items(q.dtype, values::Content::wave, 400, 2);
        const coding::Encoded encoded = coding::encode(s, bytes.data(), 400);
        for (std::size_t bit = 0; bit < 8 * encoded.payload.size(); ++bit) {
            std::vector<std::uint8_t> changed = encoded.payload;
            changed[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
            const coding::Decoded d(s, encoded.directory, changed.data(), changed.size(), 400, 0);
            CHECK(d.verdict == Verdict::bad_checksum);
        }
    }
}

TEST(the_first_bad_chunk_is_named) {
    const Quantiser q = streams::make_quantiser(Dtype::f32, Rule::plain, 0.01, false);
    const Stream s = streams::block_stream(q, Predictor::none, 0, 0);
    const std::size_t items = 4 * 65536;
    const auto bytes = values::make_items(q.dtype, values::Content::noise, items, 2);
    const coding::Encoded encoded = coding::encode(s, bytes.data(), items);
    for (const unsigned threads : {1u, 3u}) {
        std::vector<std::uint8_t> changed = encoded.payload;
        changed[encoded.directory[0].bytes] ^= 1;
        changed.back() ^= 1;
        const coding::Decoded d(s, encoded.directory, changed.data(), changed.size(), items, 0,
                                threads);
        CHECK(d.verdict == Verdict::bad_checksum && d.bad_chunk == 1);
    }
}
