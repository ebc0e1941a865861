// A chunk of the dense codec: codes through a model into interleaved range coders.

// Scratch memory of a chunk, carved out of one buffer. Sizes: dense_scratch_bytes().
struct Room {
    std::uint16_t* index;        // table * 256 + symbol, in order of time and lane
    std::uint16_t* words;        // coder output, filled from its end
    std::uint32_t* counts;       // four sets of [context][symbol]
    std::uint32_t* frequencies;  // [context][symbol]
    std::uint32_t* shares;       // frequency and cumulative frequency
    std::uint32_t* slots;        // decode tables
    float* across;
    std::int32_t* tile;   // [lane][kSpan]
    std::int32_t* extra;  // extra bits of each symbol that has some
    std::uint32_t* escapes;
    std::uint8_t* has_extra;  // for each time step
    std::int32_t* history;
};

inline Room room_of(std::uint8_t* base, std::size_t padded, std::size_t columns) {
    Room r;
    const auto carve = [&](auto*& p, std::size_t count) {
        using T = std::remove_reference_t<decltype(*p)>;
        p = reinterpret_cast<T*>(base);
        base += (count * sizeof(T) + 127) / 64 * 64;
    };
    carve(r.index, padded + 64);
    carve(r.words, 3 * padded + 256);
    carve(r.counts, 4 * kCounters);
    carve(r.frequencies, kFrequencies);
    carve(r.shares, kFrequencies);
    carve(r.slots, static_cast<std::size_t>(kContexts) << 12);
    carve(r.across, (columns + 1) * kGroup);
    carve(r.tile, kGroup * kSpan + 64);
    carve(r.extra, padded + 64);
    carve(r.escapes, padded + 64);
    carve(r.has_extra, padded / kGroup + 64);
    carve(r.history, (history_capacity(columns) + 1) * kGroup);
    return r;
}

// A tile between [lane][time] and [time][lane].
inline void lanes_to_rows(const std::int32_t* tile, std::size_t steps, std::int32_t* rows) {
    std::size_t t = 0;
    for (; t + kLanes <= steps; t += kLanes)
        for (std::size_t l = 0; l < kGroup; l += kLanes)
            transpose_square(tile + l * kSpan + t, kSpan, rows + t * kGroup + l, kGroup);
    for (; t < steps; ++t)
        for (std::size_t l = 0; l < kGroup; ++l) rows[t * kGroup + l] = tile[l * kSpan + t];
}
inline void rows_to_lanes(const std::int32_t* rows, std::size_t steps, std::int32_t* tile) {
    std::size_t t = 0;
    for (; t + kLanes <= steps; t += kLanes)
        for (std::size_t l = 0; l < kGroup; l += kLanes)
            transpose_square(rows + t * kGroup + l, kGroup, tile + l * kSpan + t, kSpan);
    for (; t < steps; ++t)
        for (std::size_t l = 0; l < kGroup; ++l) tile[l * kSpan + t] = rows[t * kGroup + l];
}

// Codes [begin, begin + count) of a chunk; beyond its n codes they are 0.
inline void codes_of_run(const Quantiser& q, const std::uint8_t* source, std::size_t first,
                         std::size_t items, std::size_t begin, std::size_t count,
                         std::int32_t& carry, Failures& failed, std::int32_t* out) {
    const std::size_t item = item_bytes(q.dtype);
    std::size_t here = 0;
    if (has_word_planes(q)) {
        for (; here < count && begin + here < 2 * items; ++here) {
            const std::size_t at = begin + here;
            std::uint64_t word;
            std::memcpy(&word, source + (at < items ? at : at - items) * 8, 8);
            out[here] = static_cast<std::int32_t>(at < items ? word >> 32 : word);
        }
    } else if (begin < items) {
        here = items - begin < count ? items - begin : count;
        encode_codes(q, source + begin * item, first + begin, begin, here, carry, out, failed);
    }
    for (; here < count; ++here) out[here] = 0;
}

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
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    for (std::size_t t = 0; t < steps; ++t, clock.tick()) {
        const Place place = clock.place();
        const std::int32_t* now = rows + t * kGroup;
        std::uint16_t* index = room.index + at + t * kGroup;
        bool extra = shift > 0;
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
    for (int v = 0; v < kGroupVectors; ++v) carried[v] = left[v];
}

inline void count_symbols(const std::uint16_t* index, std::size_t n, std::uint32_t* counts) {
    // Four sets of counters, so that runs of one symbol do not wait for their own additions.
    for (std::size_t i = 0; i < n; i += 4) {
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
    for (int v = 0; v < kGroupVectors; ++v) left[v] = f_set(0.0f);
    std::int32_t carry[kGroup] = {};
    std::memset(room.counts, 0, 4 * kCounters * sizeof(std::uint32_t));
    for (std::size_t t = 0; t < cut.steps; t += kSpan) {
        const std::size_t steps = cut.steps - t < kSpan ? cut.steps - t : kSpan;
        for (std::size_t l = 0; l < kGroup; ++l)
            codes_of_run(q, static_cast<const std::uint8_t*>(source), first, items,
                         l * cut.steps + t, steps, carry[l], failed, room.tile + l * kSpan);
        std::int32_t* rows = history.extend();
        lanes_to_rows(room.tile, steps, rows);
        model_tile<M_, Looks>(w, clock, steps, g.shift, rows, contexts, left, t * kGroup, room,
                              escapes);
        count_symbols(room.index + t * kGroup, steps * kGroup, room.counts);
    }
    for (std::size_t i = 0; i < kFrequencies; ++i)
        room.counts[i] += room.counts[kCounters + i] + room.counts[2 * kCounters + i] +
                          room.counts[3 * kCounters + i];
    return escapes;
}

template <class Body>
inline void with_model(const Geometry& g, Body&& body) {
    const bool looks = (g.weights[0] | g.weights[1] | g.weights[2] | g.weights[3]) != 0;
    const auto pick = [&](auto model) {
        if (looks)
            body(model, Constant<true>{});
        else
            body(model, Constant<false>{});
    };
    switch (static_cast<Model>(g.model)) {
        case Model::code:
            return pick(Constant<Model::code>{});
        case Model::flat:
            return pick(Constant<Model::flat>{});
        case Model::along:
            return pick(Constant<Model::along>{});
        case Model::across:
            return pick(Constant<Model::across>{});
        case Model::both:
            return pick(Constant<Model::both>{});
        case Model::grid:
            return pick(Constant<Model::grid>{});
    }
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

// The parts of a chunk, all inside its bytes.
struct Parts {
    std::uint32_t escapes, failures, words;
    const std::uint8_t *states, *word_bytes, *escape_bytes, *positions, *values;
};

inline bool read_parts(const std::uint8_t* in, std::size_t size, const Cut& cut, int& bits,
                       std::size_t items, std::size_t item, Parts& parts, std::uint32_t* slots) {
    if (size < kDenseHeader) return false;
    bits = in[0];
    if ((bits != 11 && bits != 12) || in[2] != 0 || in[3] != 0) return false;
    const std::size_t padded = cut.steps * kGroup;
    if (read_u32(in + 4) != cut.steps) return false;
    parts.escapes = read_u32(in + 8);
    parts.failures = read_u32(in + 12);
    parts.words = read_u32(in + 16);
    const std::size_t table_bytes = read_u32(in + 20);
    if (parts.escapes > padded || parts.failures > items || parts.words > 3 * padded) return false;
    const std::size_t expected = kDenseHeader + table_bytes + 4 * kGroup +
                                 2 * static_cast<std::size_t>(parts.words) +
                                 4 * static_cast<std::size_t>(parts.escapes) +
                                 (4 + item) * static_cast<std::size_t>(parts.failures);
    if (expected != size) return false;
    if (!read_tables(in + kDenseHeader, table_bytes, bits, slots)) return false;
    parts.states = in + kDenseHeader + table_bytes;
    parts.word_bytes = parts.states + 4 * kGroup;
    parts.escape_bytes = parts.word_bytes + 2 * static_cast<std::size_t>(parts.words);
    parts.positions = parts.escape_bytes + 4 * static_cast<std::size_t>(parts.escapes);
    parts.values = parts.positions + 4 * static_cast<std::size_t>(parts.failures);
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < parts.failures; ++i) {
        const std::size_t at = read_u32(parts.positions + 4 * i);
        if (at < next || at >= items) return false;
        next = at + 1;
    }
    return true;
}

// What a decoder walks through while time goes by.
struct Cursor {
    Lanes lanes;
    const std::uint16_t* word;
    const std::uint8_t* escape;
    std::uint32_t escapes_left;
};

// The size above the shift, and the whole size, of levels with their extra bits.
inline void sizes_of(I level, I extra, int shift, I& size, I& whole) {
    const I past = i_sub(level, i_set(65));
    const I base = i_shlv(i_add(i_and(past, i_set(7)), i_set(8)), i_add(i_shr<3>(past), i_set(3)));
    const M tail = i_less(i_set(64), level);
    const I below = i_select(tail, base, i_sub(level, i_set(1)));
    // The extra bits start below the shift; those above it belong to the octave.
    size = i_add(i_or(below, i_shr(extra, shift)), i_set(1));
    whole = i_add(i_or(i_shl(below, shift), extra), i_set(1));
    const M none = i_equal(level, i_set(0));
    size = i_select(none, i_set(0), size);
    whole = i_select(none, i_set(0), whole);
}

template <Model M_, bool Looks>
inline bool unmodel_tile(const Weights& w, Clock& clock, std::size_t steps, int shift, int bits,
                         const std::uint32_t* slots, std::int32_t* rows, Contexts<M_>& contexts,
                         F* carried, Cursor& cursor, const std::uint16_t* safe) {
    const I zero = i_set(0);
    Lanes lanes = cursor.lanes;
    F left[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    const std::uint16_t* word = cursor.word;
    std::size_t t = 0;
    for (; t < steps && word <= safe; ++t, clock.tick()) {
        const Place place = clock.place();
        std::int32_t* now = rows + t * kGroup;
        I token[kGroupVectors], guess[kGroupVectors];
        M large{};
        for (int v = 0; v < kGroupVectors; ++v) {
            const F p =
                Looks ? prediction(w, place, clock.cut.columns, now, v, left[v]) : f_set(0.0f);
            if constexpr (M_ != Model::code && Looks) guess[v] = i_of_f(p);
            const I context = contexts.at(v, place.column, p);
            const I symbol = take_vector(lanes.x[v], slots, context, bits, word);
            token[v] = i_sub(symbol, i_set(128));
            large = m_or(large, i_less(i_set(64), i_abs(token[v])));
        }
        I activity[kGroupVectors];
        if (shift > 0 || m_bits(large) != 0) {
            I level[kGroupVectors], extra[kGroupVectors];
            for (int v = 0; v < kGroupVectors; ++v) level[v] = i_abs(token[v]);
            take_extra(lanes, level, shift, word, extra);
            for (int v = 0; v < kGroupVectors; ++v) {
                I size, whole;
                sizes_of(level[v], extra[v], shift, size, whole);
                activity[v] = i_min(size, i_set(kMostActive));
                const M escape = i_equal(level[v], i_set(128));
                token[v] = i_select(i_less(token[v], zero), i_sub(zero, whole), whole);
                if (m_bits(escape) == 0) continue;
                std::int32_t values[kLanes];
                i_store(values, token[v]);
                for (int i = 0; i < kLanes; ++i) {
                    if (!((m_bits(escape) >> i) & 1)) continue;
                    if (cursor.escapes_left == 0) return false;
                    --cursor.escapes_left;
                    std::memcpy(values + i, cursor.escape, 4);
                    cursor.escape += 4;
                }
                token[v] = i_load(values);
                activity[v] = i_select(escape, i_set(kMostActive), activity[v]);
            }
        } else {
            for (int v = 0; v < kGroupVectors; ++v) activity[v] = i_abs(token[v]);
        }
        for (int v = 0; v < kGroupVectors; ++v) {
            I code = token[v];
            if constexpr (M_ != Model::code && Looks) code = i_add(code, guess[v]);
            contexts.update(v, place.column, activity[v]);
            i_store(now + kLanes * v, code);
            if constexpr (Looks) left[v] = f_of_i(code);
        }
    }
    cursor.lanes = lanes;
    for (int v = 0; v < kGroupVectors; ++v) carried[v] = left[v];
    cursor.word = word;
    return t == steps;
}

template <Model M_, bool Looks>
inline bool unmodel_chunk(const Quantiser& q, const Geometry& g, const Cut& cut, int bits,
                          std::size_t n, std::size_t first, std::size_t items, const Parts& parts,
                          Room& room, std::int32_t* words_of_items, bool stream, void* target) {
    Clock clock{cut};
    const Weights w = weights_of(g);
    Contexts<M_> contexts(room.across, cut.columns, g);
    History history{room.history, history_capacity(cut.columns), cut.columns + 1};
    F left[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) left[v] = f_set(0.0f);
    Cursor cursor;
    for (int v = 0; v < kGroupVectors; ++v) {
        std::int32_t states[kLanes];
        std::memcpy(states, parts.states + v * sizeof states, sizeof states);
        cursor.lanes.x[v] = i_load(states);
    }
    cursor.escape = parts.escape_bytes;
    cursor.escapes_left = parts.escapes;
    // A copy with room behind it: a group may read 192 words and look at 16 more.
    std::memcpy(room.words, parts.word_bytes, 2 * static_cast<std::size_t>(parts.words));
    std::memset(room.words + parts.words, 0, 224 * sizeof(std::uint16_t));
    cursor.word = room.words;
    const std::uint16_t* const safe = room.words + parts.words;

    const std::size_t item = item_bytes(q.dtype);
    auto* out = static_cast<std::uint8_t*>(target);
    for (std::size_t t = 0; t < cut.steps; t += kSpan) {
        const std::size_t steps = cut.steps - t < kSpan ? cut.steps - t : kSpan;
        std::int32_t* rows = history.extend();
        if (!unmodel_tile<M_, Looks>(w, clock, steps, g.shift, bits, room.slots, rows, contexts,
                                     left, cursor, safe))
            return false;
        rows_to_lanes(rows, steps, room.tile);
        for (std::size_t l = 0; l < kGroup; ++l) {
            const std::size_t begin = l * cut.steps + t;
            if (begin >= n) break;
            const std::size_t count = n - begin < steps ? n - begin : steps;
            if (has_word_planes(q))
                std::memcpy(words_of_items + begin, room.tile + l * kSpan, 4 * count);
            else
                decode_codes(q, room.tile + l * kSpan, first + begin, count, stream,
                             out + begin * item);
        }
    }
    if (has_word_planes(q)) items_of_codes(q.dtype, words_of_items, items, target);
    M wrong{};
    for (int v = 0; v < kGroupVectors; ++v)
        wrong = m_or(
            wrong, m_not(i_equal(cursor.lanes.x[v], i_set(static_cast<std::int32_t>(kLowState)))));
    return m_bits(wrong) == 0 && cursor.word == safe && cursor.escapes_left == 0;
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_chunk(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                         std::size_t size, std::size_t first, std::size_t items, void* target,
                         bool stream, Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const std::size_t item = item_bytes(q.dtype);
    const Cut cut = cut_of(g, has_word_planes(q), n);
    int bits = 0;
    Room room = room_of(scratch.bytes, cut.steps * kGroup, cut.columns);
    Parts parts;
    if (!read_parts(in, size, cut, bits, items, item, parts, room.slots)) return false;
    if (q.rule == Rule::exact && parts.failures != 0) return false;
    bool fine = false;
    with_model(g, [&](auto model, auto looks) {
        fine = unmodel_chunk<model.value, looks.value>(q, g, cut, bits, n, first, items, parts,
                                                       room, scratch.codes, stream, target);
    });
    stream_fence();
    if (!fine) return false;
    auto* out = static_cast<std::uint8_t*>(target);
    for (std::uint32_t i = 0; i < parts.failures; ++i)
        std::memcpy(out + read_u32(parts.positions + 4 * i) * item, parts.values + i * item, item);
    return true;
}
