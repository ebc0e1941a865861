// A chunk of the dense codec from values to bytes.

// The level of each value, and the value's size above the shift (0 for zero).
struct Levels {
    I level, size;
    M escape;
};

inline Levels levels_of(I value, int shift) {
    const I zero = i_set(0);
    const I size = i_abs(value);
    const I below = i_shr(i_sub(size, i_set(1)), shift);
    // Octave and the three bits below the leading one, from the pattern of a float: 64 gives 65.
    const I tail = i_sub(i_shr<20>(f_bits(f_of_i(below))), i_set(133 * 8 - 65));
    const M none = i_equal(size, zero);
    Levels l;
    l.size = i_select(none, zero, i_add(below, i_set(1)));
    l.level = i_select(m_and(i_less(i_set(63), below), m_not(none)), tail, l.size);
    l.escape = i_less(i_set(127), l.level);
    return l;
}

// Steps of one tile through the model: symbols with their tables, extra bits, escapes.
template <Model M_, bool Looks>
inline void model_tile(const Weights& w, Clock& clock, std::size_t steps, int shift,
                       const std::int32_t* rows, Contexts<M_>& contexts, F* carried, std::size_t at,
                       Room& room, std::uint32_t& escapes) {
    F left[kGroupVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    for (std::size_t t = 0; t < steps; ++t, clock.tick()) {
        const Place place = clock.place();
        const std::int32_t* now = rows + t * kGroup;
        std::uint16_t* index = room.index + at + t * kGroup;
        bool extra = shift > 0;
#pragma GCC unroll 4
        for (int v = 0; v < kGroupVectors; ++v) {
            const F p =
                Looks ? prediction(w, place, clock.cut.columns, now, v, left[v]) : f_set(0.0f);
            const I code = i_load(now + kLanes * v);
            if constexpr (Looks) left[v] = f_of_i(code);
            I value = code;
            if constexpr (M_ != Model::code && Looks) value = i_sub(code, i_of_f(p));
            const I context = contexts.at(v, place.column, p);
            // Most vectors hold small values only: these are their own levels.
            I activity = i_abs(value);
            I symbol = i_add(value, i_set(128));
            const M large = m_or(i_less(i_set(64), activity), i_less(activity, i_set(0)));
            if (shift > 0 || m_bits(large) != 0) {
                extra = true;
                const Levels l = levels_of(value, shift);
                const M negative = i_less(value, i_set(0));
                symbol = i_add(i_select(negative, i_sub(i_set(0), l.level), l.level), i_set(128));
                symbol = i_select(l.escape, i_set(0), symbol);
                i_store(room.extra + at + t * kGroup + kLanes * v, i_sub(i_abs(value), i_set(1)));
                activity = i_min(l.size, i_set(kMostActive));
                activity = i_select(l.escape, i_set(kMostActive), activity);
                if (m_bits(l.escape) != 0) {
                    std::int32_t values[kLanes];
                    i_store(values, value);
                    for (int i = 0; i < kLanes; ++i)
                        if ((m_bits(l.escape) >> i) & 1)
                            room.escapes[escapes++] = static_cast<std::uint32_t>(values[i]);
                }
            }
            contexts.update(v, place.column, activity);
            i_store_u16(index + kLanes * v, i_add(i_shl<8>(context), symbol));
        }
        room.has_extra[at / kGroup + t] = extra;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) carried[v] = left[v];
}

inline void count_symbols(const std::uint16_t* index, std::size_t n, std::uint32_t* counts) {
    // Several sets of counters, so that runs of one symbol do not wait for their own additions.
    for (std::size_t i = 0; i < n; i += kCounterSets) {
        std::uint64_t four;
        std::memcpy(&four, index + i, 8);
        ++counts[four & 0xffff];
        ++counts[kCounters + ((four >> 16) & 0xffff)];
        ++counts[2 * kCounters + ((four >> 32) & 0xffff)];
        ++counts[3 * kCounters + (four >> 48)];
    }
}

// Returns the number of escapes.
template <Model M_, bool Looks>
inline std::uint32_t model_chunk(const Quantiser& q, const Geometry& g, const Cut& cut,
                                 const void* source, std::size_t first, std::size_t items,
                                 Failures& failed, Room& room) {
    std::uint32_t escapes = 0;
    Clock clock{cut};
    const Weights w = weights_of(g);
    Contexts<M_> contexts(room.across, cut.columns, g);
    History history{room.history, history_capacity(cut.columns), cut.columns + 1};
    F left[kGroupVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) left[v] = f_set(0.0f);
    std::int32_t carry[kGroup] = {};
    std::memset(room.counts, 0, kCounterSets * kCounters * sizeof(std::uint32_t));
    for (std::size_t t = 0; t < cut.steps; t += kSpan) {
        const std::size_t steps = cut.steps - t < kSpan ? cut.steps - t : kSpan;
        for (std::size_t l = 0; l < kGroup; ++l)
            codes_of_run(q, static_cast<const std::uint8_t*>(source), first, items,
                         l * cut.steps + t, steps, carry[l], failed, room.tile + l * kStride);
        std::int32_t* rows = history.extend();
        lanes_to_rows(room.tile, steps, rows);
        model_tile<M_, Looks>(w, clock, steps, g.shift, rows, contexts, left, t * kGroup, room,
                              escapes);
        count_symbols(room.index + t * kGroup, steps * kGroup, room.counts);
    }
    for (std::size_t set = 1; set < kCounterSets; ++set)
        for (std::size_t i = 0; i < kFrequencies; ++i)
            room.counts[i] += room.counts[set * kCounters + i];
    return escapes;
}

inline std::uint64_t make_tables(Room& room, int bits) {
    std::uint64_t used = 0;
    for (int c = 0; c < kContexts; ++c) {
        const std::uint32_t* counts = room.counts + c * kSymbols;
        std::uint32_t any = 0;
        for (int s = 0; s < kSymbols; ++s) any |= counts[s];
        std::uint32_t* frequencies = room.frequencies + c * kSymbols;
        if (any == 0) continue;
        used |= std::uint64_t{1} << c;
        normalise(counts, bits, frequencies);
        std::uint32_t below = 0;
        for (int s = 0; s < kSymbols; ++s) {
            const std::uint32_t f = frequencies[s];
            room.shares[c * kSymbols + s] = f | (below << 16);
            below += f;
        }
    }
    return used;
}

inline std::size_t encode_chunk(const Quantiser& q, const Geometry& g, const void* source,
                                std::size_t first, std::size_t items, std::uint8_t* dst,
                                Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const std::size_t item = item_bytes(q.dtype);
    const Cut cut = cut_of(g, has_word_planes(q), n);
    const std::size_t padded = cut.steps * kGroup;
    Room room = room_of(scratch.bytes, padded, cut.columns);
    Failures failed{scratch.index, 0};
    std::uint32_t escapes = 0;
    with_model(g, [&](auto model, auto looks) {
        escapes =
            model_chunk<model.value, looks.value>(q, g, cut, source, first, items, failed, room);
    });
    const int bits = table_bits(room.counts, n);
    const std::uint64_t used = make_tables(room, bits);

    std::uint16_t* const words_end = room.words + 3 * padded + 32;
    std::uint16_t* p = words_end;
    Lanes lanes = fresh_lanes();
    for (std::size_t t = cut.steps; t-- > 0;) {
        const std::uint16_t* index = room.index + t * kGroup;
        if (room.has_extra[t]) put_extra(lanes, index, room.extra + t * kGroup, g.shift, p);
        put_group(lanes, room.shares, index, bits, p);
    }
    const auto words = static_cast<std::size_t>(words_end - p);

    std::uint8_t* out = dst + kDenseHeader;
    std::uint8_t* const tables_end = write_tables(room.frequencies, used, out);
    const auto table_bytes = static_cast<std::uint32_t>(tables_end - out);
    out = tables_end;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
        std::int32_t states[kLanes];
        i_store(states, lanes.x[v]);
        std::memcpy(out, states, sizeof states);
        out += sizeof states;
    }
    std::memcpy(out, p, 2 * words);
    out += 2 * words;
    std::memcpy(out, room.escapes, 4 * static_cast<std::size_t>(escapes));
    out += 4 * static_cast<std::size_t>(escapes);
    sort_positions(failed.index, failed.count);  // they came in order of time
    for (std::uint32_t i = 0; i < failed.count; ++i, out += 4) write_u32(out, failed.index[i]);
    for (std::uint32_t i = 0; i < failed.count; ++i, out += item)
        std::memcpy(out, static_cast<const std::uint8_t*>(source) + failed.index[i] * item, item);

    dst[0] = static_cast<std::uint8_t>(bits);
    dst[1] = kGroup == 64 ? 0 : 1;
    dst[2] = dst[3] = 0;
    write_u32(dst + 4, static_cast<std::uint32_t>(cut.steps));
    write_u32(dst + 8, escapes);
    write_u32(dst + 12, failed.count);
    write_u32(dst + 16, static_cast<std::uint32_t>(words));
    write_u32(dst + 20, table_bytes);
    return static_cast<std::size_t>(out - dst);
}
