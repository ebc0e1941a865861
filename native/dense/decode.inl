// A chunk of the dense codec from bytes to values.

// The parts of a chunk, all inside its bytes.
struct Parts {
    std::uint32_t escapes, failures, words;
    const std::uint8_t *states, *word_bytes, *escape_bytes, *positions;
};

inline bool read_parts(const std::uint8_t* in, std::size_t size, const Cut& cut, Model model,
                       int& bits, std::size_t n, std::size_t items, std::size_t item, Parts& parts,
                       std::uint32_t* slots) {
    if (size < kDenseHeader) return false;
    bits = in[0];
    if (!(bits == 11 || (bits == 12 && n >= 32768)) || in[2] != 0 || in[3] != 0) return false;
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
    const int contexts = model == Model::flat ? 1 : kContexts;
    if (!read_tables(in + kDenseHeader, table_bytes, bits, contexts, slots)) return false;
    parts.states = in + kDenseHeader + table_bytes;
    parts.word_bytes = parts.states + 4 * kGroup;
    parts.escape_bytes = parts.word_bytes + 2 * static_cast<std::size_t>(parts.words);
    parts.positions = parts.escape_bytes + 4 * static_cast<std::size_t>(parts.escapes);
    for (std::size_t l = 0; l < kGroup; ++l)
        if (read_u32(parts.states + 4 * l) < kLowState) return false;
    return positions_ascend(parts.positions, parts.failures, items);
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
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    const std::uint16_t* word = cursor.word;
    std::size_t t = 0;
    for (; t < steps && word <= safe; ++t, clock.tick()) {
        const Place place = clock.place();
        std::int32_t* now = rows + t * kGroup;
        I token[kGroupVectors], guess[kGroupVectors];
        M large{};
#pragma GCC unroll 4
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
#pragma GCC unroll 4
            for (int v = 0; v < kGroupVectors; ++v) level[v] = i_abs(token[v]);
            take_extra(lanes, level, shift, word, extra);
#pragma GCC unroll 4
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
#pragma GCC unroll 4
            for (int v = 0; v < kGroupVectors; ++v) activity[v] = i_abs(token[v]);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kGroupVectors; ++v) {
            I code = token[v];
            if constexpr (M_ != Model::code && Looks) code = i_add(code, guess[v]);
            contexts.update(v, place.column, activity[v]);
            i_store(now + kLanes * v, code);
            if constexpr (Looks) left[v] = f_of_i(code);
        }
    }
    cursor.lanes = lanes;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) carried[v] = left[v];
    cursor.word = word;
    return t == steps;
}

template <Model M_, bool Looks>
inline bool unmodel_chunk(const Quantiser& q, const Geometry& g, const Cut& cut, int bits,
                          std::size_t n, std::size_t first, std::size_t items, const Parts& parts,
                          Room& room, std::int32_t* words_of_items, void* target) {
    Clock clock{cut};
    const Weights w = weights_of(g);
    Contexts<M_> contexts(room.across, cut.columns, g);
    History history{room.history, history_capacity(cut.columns), cut.columns + 1};
    F left[kGroupVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) left[v] = f_set(0.0f);
    Cursor cursor;
#pragma GCC unroll 4
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
            const std::size_t count = begin >= n ? 0 : n - begin < steps ? n - begin : steps;
            for (std::size_t i = count; i < steps; ++i)
                if (room.tile[l * kStride + i] != 0) return false;  // a writer fills with zeros
            if (count == 0) continue;
            // Lanes are far apart: the next tile of this one is asked for while the others have a
            // turn.
            for (std::size_t i = 0; i < steps * item; i += 64)
                __builtin_prefetch(out + (begin + steps) * item + i, 1);
            if (has_word_planes(q))
                std::memcpy(words_of_items + begin, room.tile + l * kStride, 4 * count);
            else
                decode_codes(q, room.tile + l * kStride, first + begin, count, false,
                             out + begin * item);
        }
    }
    if (has_word_planes(q)) items_of_codes(q.dtype, words_of_items, items, target);
    M wrong{};
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v)
        wrong = m_or(
            wrong, m_not(i_equal(cursor.lanes.x[v], i_set(static_cast<std::int32_t>(kLowState)))));
    return m_bits(wrong) == 0 && cursor.word == safe && cursor.escapes_left == 0;
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_chunk(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                         std::size_t size, std::size_t first, std::size_t items, void* target,
                         Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const std::size_t item = item_bytes(q.dtype);
    const Cut cut = cut_of(g, has_word_planes(q), n);
    int bits = 0;
    Room room = room_of(scratch.bytes, cut.steps * kGroup, cut.columns);
    Parts parts;
    if (!read_parts(in, size, cut, static_cast<Model>(g.model), bits, n, items, item, parts,
                    room.slots))
        return false;
    if (q.rule == Rule::exact && parts.failures != 0) return false;
    bool fine = false;
    with_model(g, [&](auto model, auto looks) {
        fine = unmodel_chunk<model.value, looks.value>(q, g, cut, bits, n, first, items, parts,
                                                       room, scratch.codes, target);
    });
    return fine && place_failures(parts.positions, parts.failures, items, item,
                                  static_cast<std::uint8_t*>(target));
}
