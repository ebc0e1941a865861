// A chunk of the dense codec: codes through a model into interleaved range coders.

inline void write_u32(std::uint8_t* p, std::uint32_t v) { std::memcpy(p, &v, 4); }
inline std::uint32_t read_u32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

inline bool has_word_planes(const Quantiser& q) {
    return q.rule == Rule::exact && item_bytes(q.dtype) == 8;
}

constexpr std::size_t kDenseHeader = 28;

// A set of counters and a little more: sets a multiple of 4 KiB apart would look alike to the
// processor's store buffer.
constexpr std::size_t kCounters = kFrequencies + 336;

// Scratch memory of a chunk, carved out of one buffer. Sizes: dense_scratch_bytes().
struct Room {
    std::uint16_t* index;        // table * 256 + symbol, in order of time and lane
    std::uint16_t* words;        // coder output, filled from its end
    std::uint32_t* counts;       // four sets of [context][symbol]
    std::uint32_t* frequencies;  // [context][symbol]
    std::uint32_t* shares;       // frequency and cumulative frequency
    std::uint32_t* slots;        // decode tables
    float* across;
    std::int32_t* tile;          // [lane][kSpan]
    std::int32_t* fields;        // extra bits
    std::uint32_t* escapes;
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
    carve(r.words, padded + 128);
    carve(r.counts, 4 * kCounters);
    carve(r.frequencies, kFrequencies);
    carve(r.shares, kFrequencies);
    carve(r.slots, static_cast<std::size_t>(kContexts) << 12);
    carve(r.across, (columns + 1) * kGroup);
    carve(r.tile, kGroup * kSpan + 64);
    carve(r.fields, padded + 64);
    carve(r.escapes, padded + 64);
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

struct Tally {
    std::uint32_t escapes = 0, fields = 0;
};

// Steps of one tile through the model: symbols with their tables, extra bits, escapes.
template <Model M_, bool Looks, bool Shifted>
inline void model_tile(const Weights& w, Clock& clock, std::size_t steps, int shift,
                       const std::int32_t* rows, Contexts<M_>& contexts, F* carried,
                       std::uint16_t* index, Room& room, Tally& tally) {
    const I zero = i_set(0);
    const I mask = i_set(static_cast<std::int32_t>((1u << shift) - 1));
    F left[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    for (std::size_t t = 0; t < steps; ++t, clock.tick()) {
        const Place place = clock.place();
        const std::int32_t* now = rows + t * kGroup;
        for (int v = 0; v < kGroupVectors; ++v) {
            const F p = Looks ? prediction(w, place, clock.cut.columns, now, v, left[v])
                              : f_set(0.0f);
            const I code = i_load(now + kLanes * v);
            if constexpr (Looks) left[v] = f_of_i(code);
            I value = code;
            if constexpr (M_ != Model::code && Looks) value = i_sub(code, i_of_f(p));
            const I context = contexts.at(v, place.column, p);
            const I size = i_abs(value);
            const I below = i_sub(size, i_set(1));
            I level = size;
            if constexpr (Shifted) {
                const I high = i_add(i_shr(below, shift), i_set(1));
                level = i_select(i_equal(size, zero), zero, high);
            }
            const M escape = m_not(i_equal(i_shr<7>(level), zero));
            I token = value;
            if constexpr (Shifted)
                token = i_select(i_less(value, zero), i_sub(zero, level), level);
            I symbol = i_add(token, i_set(128));
            I activity = level;
            if (__builtin_expect(m_bits(escape) != 0, 0)) {
                symbol = i_select(escape, zero, symbol);
                activity = i_select(escape, i_set(127), activity);
                std::int32_t values[kLanes];
                i_store(values, value);
                for (int l = 0; l < kLanes; ++l)
                    if ((m_bits(escape) >> l) & 1)
                        room.escapes[tally.escapes++] = static_cast<std::uint32_t>(values[l]);
            }
            if constexpr (Shifted) {
                const M keep = m_not(m_or(i_equal(size, zero), escape));
                store_packed(room.fields + tally.fields, i_and(below, mask), keep);
                tally.fields += static_cast<std::uint32_t>(__builtin_popcount(m_bits(keep)));
            }
            contexts.update(v, place.column, activity);
            i_store_u16(index + t * kGroup + kLanes * v, i_add(i_shl<8>(context), symbol));
        }
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

template <Model M_, bool Looks>
inline Tally model_chunk(const Quantiser& q, const Geometry& g, const Cut& cut, const void* source,
                         std::size_t first, std::size_t items, Failures& failed, Room& room) {
    Tally tally;
    Clock clock{cut};
    const Weights w = weights_of(g);
    Contexts<M_> contexts(room.across, cut.columns);
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
        std::uint16_t* index = room.index + t * kGroup;
        if (g.shift == 0)
            model_tile<M_, Looks, false>(w, clock, steps, 0, rows, contexts, left, index, room,
                                         tally);
        else
            model_tile<M_, Looks, true>(w, clock, steps, g.shift, rows, contexts, left, index,
                                        room, tally);
        count_symbols(index, steps * kGroup, room.counts);
    }
    for (std::size_t i = 0; i < kFrequencies; ++i)
        room.counts[i] += room.counts[kCounters + i] + room.counts[2 * kCounters + i] +
                          room.counts[3 * kCounters + i];
    return tally;
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
    }
}

// Small tables stay in fast memory; fine ones cost less where many symbols share them.
inline int table_bits(const std::uint32_t* counts, std::size_t n) {
    if (n < 32768) return 11;
    std::size_t kinds = 0, contexts = 0;
    for (int c = 0; c < kContexts; ++c) {
        std::size_t here = 0;
        for (int s = 0; s < kSymbols; ++s) here += counts[c * kSymbols + s] != 0;
        kinds += here;
        contexts += here != 0;
    }
    return kinds <= 32 * contexts ? 11 : 12;
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
    Tally tally;
    with_model(g, [&](auto model, auto looks) {
        tally = model_chunk<model.value, looks.value>(q, g, cut, source, first, items, failed, room);
    });
    const int bits = table_bits(room.counts, n);
    const std::uint64_t used = make_tables(room, bits);

    std::uint16_t* const words_end = room.words + padded + 32;
    std::uint16_t* p = words_end;
    Lanes lanes = fresh_lanes();
    for (std::size_t t = cut.steps; t-- > 0;)
        put_group(lanes, room.shares, room.index + t * kGroup, bits, p);
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
    BitWriter extra{out};
    for (std::uint32_t i = 0; i < tally.fields; ++i)
        extra.put(static_cast<std::uint32_t>(room.fields[i]), g.shift);
    extra.flush();
    out = extra.out;
    std::memcpy(out, room.escapes, 4 * static_cast<std::size_t>(tally.escapes));
    out += 4 * static_cast<std::size_t>(tally.escapes);
    sort_positions(failed.index, failed.count);  // they came in order of time
    for (std::uint32_t i = 0; i < failed.count; ++i, out += 4) write_u32(out, failed.index[i]);
    for (std::uint32_t i = 0; i < failed.count; ++i, out += item)
        std::memcpy(out, static_cast<const std::uint8_t*>(source) + failed.index[i] * item, item);

    dst[0] = static_cast<std::uint8_t>(bits);
    dst[1] = dst[2] = dst[3] = 0;
    write_u32(dst + 4, static_cast<std::uint32_t>(cut.steps));
    write_u32(dst + 8, tally.escapes);
    write_u32(dst + 12, tally.fields);
    write_u32(dst + 16, failed.count);
    write_u32(dst + 20, static_cast<std::uint32_t>(words));
    write_u32(dst + 24, table_bytes);
    return static_cast<std::size_t>(out - dst);
}

// The parts of a chunk, all inside its bytes.
struct Parts {
    std::uint32_t escapes, fields, failures, words;
    const std::uint8_t *states, *word_bytes, *extra, *escape_bytes, *positions, *values, *end;
};

inline bool read_parts(const std::uint8_t* in, std::size_t size, const Cut& cut, int shift,
                       int& bits, std::size_t items, std::size_t item, Parts& parts,
                       std::uint32_t* slots) {
    if (size < kDenseHeader) return false;
    bits = in[0];
    if ((bits != 11 && bits != 12) || in[1] != 0 || in[2] != 0 || in[3] != 0) return false;
    const std::size_t padded = cut.steps * kGroup;
    if (read_u32(in + 4) != cut.steps) return false;
    parts.escapes = read_u32(in + 8);
    parts.fields = read_u32(in + 12);
    parts.failures = read_u32(in + 16);
    parts.words = read_u32(in + 20);
    const std::size_t table_bytes = read_u32(in + 24);
    if (parts.escapes > padded || parts.fields > padded || parts.failures > items ||
        parts.words > padded)
        return false;
    if (shift == 0 && parts.fields != 0) return false;
    const std::size_t extra_bytes = (static_cast<std::size_t>(parts.fields) * shift + 7) / 8;
    const std::size_t expected = kDenseHeader + table_bytes + 4 * kGroup +
                                 2 * static_cast<std::size_t>(parts.words) + extra_bytes +
                                 4 * static_cast<std::size_t>(parts.escapes) +
                                 (4 + item) * static_cast<std::size_t>(parts.failures);
    if (expected != size) return false;
    if (!read_tables(in + kDenseHeader, table_bytes, bits, slots)) return false;
    parts.states = in + kDenseHeader + table_bytes;
    parts.word_bytes = parts.states + 4 * kGroup;
    parts.extra = parts.word_bytes + 2 * static_cast<std::size_t>(parts.words);
    parts.escape_bytes = parts.extra + extra_bytes;
    parts.positions = parts.escape_bytes + 4 * static_cast<std::size_t>(parts.escapes);
    parts.values = parts.positions + 4 * static_cast<std::size_t>(parts.failures);
    parts.end = in + size;
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
    std::uint32_t fields_used = 0;
    std::uint32_t fields;
};

template <Model M_, bool Looks>
inline bool unmodel_tile(const Weights& w, Clock& clock, std::size_t steps, int shift, int bits,
                         const std::uint32_t* slots, std::int32_t* rows, Contexts<M_>& contexts,
                         F* carried, const std::int32_t* fields, Cursor& cursor,
                         const std::uint16_t* safe) {
    const I zero = i_set(0);
    Lanes lanes = cursor.lanes;
    F left[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) left[v] = carried[v];
    const std::uint16_t* word = cursor.word;
    std::size_t t = 0;
    for (; t < steps && word <= safe; ++t, clock.tick()) {
        const Place place = clock.place();
        std::int32_t* now = rows + t * kGroup;
        for (int v = 0; v < kGroupVectors; ++v) {
            const F p = Looks ? prediction(w, place, clock.cut.columns, now, v, left[v])
                              : f_set(0.0f);
            const I context = contexts.at(v, place.column, p);
            const I symbol = take_vector(lanes.x[v], slots, context, bits, word);
            const I token = i_sub(symbol, i_set(128));
            I level = i_abs(token);
            I size = level;
            const M escape = i_equal(symbol, zero);
            if (shift > 0) {
                const M keep = m_not(m_or(i_equal(level, zero), escape));
                const I extra = load_spread(fields + cursor.fields_used, keep);
                cursor.fields_used += static_cast<std::uint32_t>(__builtin_popcount(m_bits(keep)));
                if (cursor.fields_used > cursor.fields) return false;
                const I high = i_shl(i_sub(level, i_set(1)), shift);
                size = i_select(keep, i_add(i_or(high, extra), i_set(1)), zero);
            }
            I value = i_select(i_less(token, zero), i_sub(zero, size), size);
            if (__builtin_expect(m_bits(escape) != 0, 0)) {
                std::int32_t values[kLanes];
                i_store(values, value);
                for (int l = 0; l < kLanes; ++l) {
                    if (!((m_bits(escape) >> l) & 1)) continue;
                    if (cursor.escapes_left == 0) return false;
                    --cursor.escapes_left;
                    std::memcpy(values + l, cursor.escape, 4);
                    cursor.escape += 4;
                }
                value = i_load(values);
                level = i_select(escape, i_set(127), level);
            }
            if constexpr (M_ != Model::code && Looks) value = i_add(value, i_of_f(p));
            contexts.update(v, place.column, level);
            i_store(now + kLanes * v, value);
            if constexpr (Looks) left[v] = f_of_i(value);
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
                          Room& room, std::int32_t* words_of_items, void* target) {
    Clock clock{cut};
    const Weights w = weights_of(g);
    Contexts<M_> contexts(room.across, cut.columns);
    History history{room.history, history_capacity(cut.columns), cut.columns + 1};
    F left[kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) left[v] = f_set(0.0f);
    BitReader extra{parts.extra, parts.escape_bytes};
    for (std::uint32_t i = 0; i < parts.fields; ++i)
        room.fields[i] = static_cast<std::int32_t>(extra.take(g.shift));
    if (!extra.ends_clean()) return false;

    Cursor cursor;
    for (int v = 0; v < kGroupVectors; ++v) {
        std::int32_t states[kLanes];
        std::memcpy(states, parts.states + v * sizeof states, sizeof states);
        cursor.lanes.x[v] = i_load(states);
    }
    cursor.escape = parts.escape_bytes;
    cursor.escapes_left = parts.escapes;
    cursor.fields = parts.fields;
    // A copy with room behind it: a group may read 64 words and look at 16 more.
    std::memcpy(room.words, parts.word_bytes, 2 * static_cast<std::size_t>(parts.words));
    std::memset(room.words + parts.words, 0, 96 * sizeof(std::uint16_t));
    cursor.word = room.words;
    const std::uint16_t* const safe = room.words + parts.words;

    const std::size_t item = item_bytes(q.dtype);
    auto* out = static_cast<std::uint8_t*>(target);
    for (std::size_t t = 0; t < cut.steps; t += kSpan) {
        const std::size_t steps = cut.steps - t < kSpan ? cut.steps - t : kSpan;
        std::int32_t* rows = history.extend();
        if (!unmodel_tile<M_, Looks>(w, clock, steps, g.shift, bits, room.slots, rows, contexts,
                                     left, room.fields, cursor, safe))
            return false;
        rows_to_lanes(rows, steps, room.tile);
        for (std::size_t l = 0; l < kGroup; ++l) {
            const std::size_t begin = l * cut.steps + t;
            if (begin >= n) break;
            const std::size_t count = n - begin < steps ? n - begin : steps;
            if (has_word_planes(q))
                std::memcpy(words_of_items + begin, room.tile + l * kSpan, 4 * count);
            else
                decode_codes(q, room.tile + l * kSpan, first + begin, count, out + begin * item);
        }
    }
    if (has_word_planes(q)) items_of_codes(q.dtype, words_of_items, items, target);
    M wrong{};
    for (int v = 0; v < kGroupVectors; ++v)
        wrong = m_or(wrong, m_not(i_equal(cursor.lanes.x[v],
                                          i_set(static_cast<std::int32_t>(kLowState)))));
    return m_bits(wrong) == 0 && cursor.word == safe && cursor.escapes_left == 0 &&
           cursor.fields_used == parts.fields;
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_chunk(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                         std::size_t size, std::size_t first, std::size_t items, void* target,
                         bool, Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const std::size_t item = item_bytes(q.dtype);
    const Cut cut = cut_of(g, has_word_planes(q), n);
    int bits = 0;
    Room room = room_of(scratch.bytes, cut.steps * kGroup, cut.columns);
    Parts parts;
    if (!read_parts(in, size, cut, g.shift, bits, items, item, parts, room.slots)) return false;
    if (q.rule == Rule::exact && parts.failures != 0) return false;
    bool fine = false;
    with_model(g, [&](auto model, auto looks) {
        fine = unmodel_chunk<model.value, looks.value>(q, g, cut, bits, n, first, items, parts,
                                                       room, scratch.codes, target);
    });
    if (!fine) return false;
    auto* out = static_cast<std::uint8_t*>(target);
    for (std::uint32_t i = 0; i < parts.failures; ++i)
        std::memcpy(out + read_u32(parts.positions + 4 * i) * item, parts.values + i * item, item);
    return true;
}
