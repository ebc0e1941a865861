// Codes to residuals and back: what a code's neighbours already say is taken away.
//
// All arithmetic is modulo 2^32, so every predictor is a bijection whatever the codes are. Only
// codes of the same chunk take part: chunks decode alone and in any order.

// residual[i] = code[i] - code[i - distance]; the first `distance` codes are kept.
inline void subtract_earlier(const std::int32_t* codes, std::size_t n, std::size_t distance,
                             std::int32_t* residuals) {
    const std::size_t head = distance < n ? distance : n;
    std::size_t i = 0;
    for (; i < head; ++i) residuals[i] = codes[i];
    for (; i + kLanes <= n; i += kLanes)
        i_store(residuals + i, i_sub(i_load(codes + i), i_load(codes + i - distance)));
    for (; i < n; ++i)
        residuals[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(codes[i]) -
                                                 static_cast<std::uint32_t>(codes[i - distance]));
}

// Running sums in place from `from` on: values[i] += values[i - 1].
inline void add_left(std::int32_t* values, std::size_t n, std::uint32_t carry = 0) {
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const I sum =
            i_add(i_prefix_sum(i_load(values + i)), i_set(static_cast<std::int32_t>(carry)));
        i_store(values + i, sum);
        carry = static_cast<std::uint32_t>(values[i + kLanes - 1]);
    }
    for (; i < n; ++i) {
        carry += static_cast<std::uint32_t>(values[i]);
        values[i] = static_cast<std::int32_t>(carry);
    }
}

inline void add_earlier(std::int32_t* values, std::size_t n, std::size_t distance) {
    std::size_t i = distance;
    if (distance >= static_cast<std::size_t>(kLanes))
        for (; i + kLanes <= n; i += kLanes)
            i_store(values + i, i_add(i_load(values + i), i_load(values + i - distance)));
    for (; i < n; ++i)
        values[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(values[i]) +
                                              static_cast<std::uint32_t>(values[i - distance]));
}

// Walks the rows that a chunk of n codes starting at code `first` touches. The first and the last
// may be cut; `top` says that no row of the same plane stands above within the chunk.
template <class Body>
inline void for_rows(const Geometry& g, std::size_t first, std::size_t n, Body&& body) {
    std::size_t at = 0;
    while (at < n) {
        const std::size_t position = first + at;
        const std::size_t column = position % g.columns;
        const std::size_t row = position / g.columns % g.rows;
        const std::size_t left = g.columns - column;
        const std::size_t count = n - at < left ? n - at : left;
        body(at, count, row == 0 || at < g.columns);
        at += count;
    }
}

// Two-dimensional Lorenzo: a difference along rows, then of each row and the one above. Rows whose
// upper neighbour is not wholly in the chunk stay plain differences.
inline void predict_plane(const Geometry& g, const std::int32_t* codes, std::size_t first,
                          std::size_t n, std::int32_t* residuals) {
    for_rows(g, first, n, [&](std::size_t at, std::size_t count, bool top) {
        const std::int32_t* row = codes + at;
        std::int32_t* out = residuals + at;
        if (top) return subtract_earlier(row, count, 1, out);
        const std::int32_t* above = row - g.columns;
        out[0] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[0]) -
                                           static_cast<std::uint32_t>(above[0]));
        std::size_t i = 1;
        for (; i + kLanes <= count; i += kLanes) {
            const I now = i_sub(i_load(row + i), i_load(row + i - 1));
            const I then = i_sub(i_load(above + i), i_load(above + i - 1));
            i_store(out + i, i_sub(now, then));
        }
        for (; i < count; ++i) {
            const auto u = [](std::int32_t v) { return static_cast<std::uint32_t>(v); };
            out[i] = static_cast<std::int32_t>(u(row[i]) - u(row[i - 1]) - u(above[i]) +
                                               u(above[i - 1]));
        }
    });
}

inline void restore_plane(const Geometry& g, std::int32_t* values, std::size_t first,
                          std::size_t n) {
    for_rows(g, first, n, [&](std::size_t at, std::size_t count, bool top) {
        std::int32_t* row = values + at;
        add_left(row, count);
        if (top) return;
        const std::int32_t* above = row - g.columns;
        std::size_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
            i_store(row + i, i_add(i_load(row + i), i_load(above + i)));
        for (; i < count; ++i)
            row[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[i]) +
                                               static_cast<std::uint32_t>(above[i]));
    });
}

// residuals may not alias codes.
inline void predict(const Geometry& g, const std::int32_t* codes, std::size_t first, std::size_t n,
                    std::int32_t* residuals) {
    switch (g.predictor) {
        case Predictor::none:
            std::memcpy(residuals, codes, n * sizeof(std::int32_t));
            return;
        case Predictor::left:
            return subtract_earlier(codes, n, 1, residuals);
        case Predictor::above:
            return subtract_earlier(codes, n, g.columns, residuals);
        case Predictor::plane:
            return predict_plane(g, codes, first, n, residuals);
    }
}

inline void restore(const Geometry& g, std::int32_t* values, std::size_t first, std::size_t n) {
    switch (g.predictor) {
        case Predictor::none:
            return;
        case Predictor::left:
            return add_left(values, n);
        case Predictor::above:
            return add_earlier(values, n, g.columns);
        case Predictor::plane:
            return restore_plane(g, values, first, n);
    }
}
