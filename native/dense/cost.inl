// How many bits a model would need, from the counts alone.

// log2 in 65536ths, by a table of 256 mantissas: the same integers on every machine.
inline std::uint64_t log2_fixed(std::uint64_t v) {
    const int length = 64 - __builtin_clzll(v);
    const std::uint64_t top = length > 9 ? v >> (length - 9) : v << (9 - length);
    return (static_cast<std::uint64_t>(length - 1) << 16) + kLog2[top - 256];
}

// Entropy of the symbols, the tables, extra bits and escapes.
inline std::uint64_t cost_chunk(const Quantiser& q, const Geometry& g, const void* source,
                                std::size_t items, std::uint64_t table_cost, Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const Cut cut = cut_of(g, has_word_planes(q), n);
    Room room = room_of(scratch.bytes, cut.steps * kGroup, cut.columns);
    Failures failed{scratch.index, 0};
    Tally tally;
    with_model(g, [&](auto model, auto looks) {
        tally = model_chunk<model.value, looks.value>(q, g, cut, source, 0, items, failed, room);
    });
    std::uint64_t cost = 0;
    for (int c = 0; c < kContexts; ++c) {
        std::uint64_t total = 0, kinds = 0;
        for (int s = 0; s < kSymbols; ++s) {
            const std::uint64_t count = room.counts[c * kSymbols + s];
            if (count == 0) continue;
            total += count;
            ++kinds;
            cost -= count * log2_fixed(count);
        }
        if (total > 0) cost += total * log2_fixed(total) + kinds * table_cost;
    }
    cost += (static_cast<std::uint64_t>(tally.fields) * g.shift) << 16;
    cost += (static_cast<std::uint64_t>(tally.escapes) * 32) << 16;
    return cost;
}

inline void codes_chunk(const Quantiser& q, const void* source, std::size_t items,
                        std::int32_t* codes, Scratch& scratch) {
    Failures failed{scratch.index, 0};
    std::int32_t carry = 0;
    encode_codes(q, source, 0, 0, items, carry, codes, failed);
}
