// How many bits a model would need, from the counts alone.

// log2 in 65536ths, by a table of 256 mantissas: the same integers on every machine.
inline std::uint64_t log2_fixed(std::uint64_t v) {
    const int length = 64 - __builtin_clzll(v);
    const std::uint64_t top = length > 9 ? v >> (length - 9) : v << (9 - length);
    return (static_cast<std::uint64_t>(length - 1) << 16) + kLog2[top - 256];
}

inline std::uint64_t extra_bits(int symbol, int shift) {
    const int level = symbol < 128 ? 128 - symbol : symbol - 128;
    if (level == 0 || level == 128) return 0;
    return static_cast<std::uint64_t>(shift + (level > 64 ? 3 + (level - 65) / 8 : 0));
}

// Entropy of the symbols, the tables, extra bits and escapes.
inline std::uint64_t cost_chunk(const Quantiser& q, const Geometry& g, const void* source,
                                std::size_t items, std::uint64_t table_cost, Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const Cut cut = cut_of(g, has_word_planes(q), n);
    Room room = room_of(scratch.bytes, cut.steps * kGroup, cut.columns);
    Failures failed{scratch.index, 0};
    std::uint32_t escapes = 0;
    with_model(g, [&](auto model, auto looks) {
        escapes = model_chunk<model.value, looks.value>(q, g, cut, source, 0, items, failed, room);
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
            cost += (count * extra_bits(s, g.shift)) << 16;
        }
        if (total > 0) cost += total * log2_fixed(total) + kinds * table_cost;
    }
    cost += (static_cast<std::uint64_t>(escapes) * 32) << 16;
    return cost;
}
