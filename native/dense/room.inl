// What encoder and decoder of a chunk share: scratch memory and tiles.

// Scratch memory of a chunk, carved out of one buffer. Sizes: dense_scratch_bytes().
struct Room {
    std::uint16_t* index;        // table * 256 + symbol, in order of time and lane
    std::uint16_t* words;        // coder output, filled from its end
    std::uint32_t* counts;       // sets of [context][symbol]
    std::uint32_t* frequencies;  // [context][symbol]
    std::uint32_t* shares;       // frequency and cumulative frequency
    std::uint32_t* slots;        // decode tables
    float* across;
    std::int32_t* tile;   // [lane][kStride]
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
    carve(r.counts, kCounterSets * kCounters);
    carve(r.frequencies, kFrequencies);
    carve(r.shares, kFrequencies);
    carve(r.slots, static_cast<std::size_t>(kContexts) << 12);
    carve(r.across, (columns + 1) * kGroup);
    carve(r.tile, kGroup * kStride + 64);
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
            transpose_square(tile + l * kStride + t, kStride, rows + t * kGroup + l, kGroup);
    for (; t < steps; ++t)
        for (std::size_t l = 0; l < kGroup; ++l) rows[t * kGroup + l] = tile[l * kStride + t];
}
inline void rows_to_lanes(const std::int32_t* rows, std::size_t steps, std::int32_t* tile) {
    std::size_t t = 0;
    for (; t + kLanes <= steps; t += kLanes)
        for (std::size_t l = 0; l < kGroup; l += kLanes)
            transpose_square(rows + t * kGroup + l, kGroup, tile + l * kStride + t, kStride);
    for (; t < steps; ++t)
        for (std::size_t l = 0; l < kGroup; ++l) tile[l * kStride + t] = rows[t * kGroup + l];
}

// Calls body with the model, and whether it looks at neighbours, as constants.
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
