// What the neighbours of a code say about it: a prediction and the context that picks its table.

constexpr int kBuckets = 24;
constexpr std::size_t kSpan = 256;           // time steps of a tile
constexpr std::size_t kStride = kSpan + 16;  // a power of two would crowd the same cache sets

enum class Model : std::uint8_t { code = 0, flat = 1, along = 2, across = 3, both = 4, grid = 5 };

constexpr bool has_along(Model m) {
    return m == Model::along || m == Model::both || m == Model::grid;
}
constexpr bool has_across(Model m) {
    return m == Model::across || m == Model::both || m == Model::grid;
}

// How a chunk is cut into lanes.
struct Cut {
    std::size_t steps = 0;    // T
    std::size_t columns = 0;  // 0: no rows
    std::size_t rows = 0;     // 0: planes are not told apart
};

inline Cut cut_of(const Geometry& g, bool word_planes, std::size_t n) {
    const std::size_t columns = word_planes ? 0 : g.columns;
    const std::size_t most = n + n / 8;
    const auto steps_for = [n](std::size_t unit) {
        const std::size_t whole = kGroup * unit;
        return (n + whole - 1) / whole * unit;
    };
    // The product is below 2^64: both factors are 32-bit numbers.
    const std::size_t units[2] = {columns * g.rows, columns};
    for (const std::size_t unit : units) {
        if (unit <= 1 || unit > most) continue;
        const std::size_t steps = steps_for(unit);
        if (steps * kGroup <= most) return {steps, columns, unit == columns * g.rows ? g.rows : 0};
    }
    return {steps_for(1), 0, 0};
}

// Two buckets an octave, for z >= 1: exponent and first mantissa bit.
inline I bucket_of(F z, int last) {
    return i_min(i_sub(i_shr<22>(f_bits(z)), i_set(254)), i_set(last));
}

// Codes of the recent past, a row of all lanes for each time step, as floats would see them.
struct History {
    std::int32_t* rows;    // room for `capacity` rows
    std::size_t capacity;  // at least columns + 1 + 2 kSpan
    std::size_t keep;      // rows a prediction may look back
    std::size_t end = 0;   // rows held

    // Room for one more tile; returns where it goes.
    std::int32_t* extend() {
        if (end + kSpan > capacity) {
            std::memmove(rows, rows + (end - keep) * kGroup, keep * kGroup * sizeof(std::int32_t));
            end = keep;
        }
        std::int32_t* at = rows + end * kGroup;
        end += kSpan;
        return at;
    }
};

inline std::size_t history_capacity(std::size_t columns) { return 4 * (columns + 1) + 2 * kSpan; }

inline float power_of_two(int exponent) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);
}

struct Weights {
    F left, above, above_left, above_right;
    bool any;
};

// The model `code` needs its prediction only as a context: the context's power of two goes into the
// weights, where it changes no rounding.
inline Weights weights_of(const Geometry& g) {
    const float scale =
        power_of_two(static_cast<Model>(g.model) == Model::code ? -4 - g.shift : -6);
    const auto w = [&](int i) { return f_set(static_cast<float>(g.weights[i]) * scale); };
    const bool any = (g.weights[0] | g.weights[1] | g.weights[2] | g.weights[3]) != 0;
    return {w(0), w(1), w(2), w(3), any};
}

// Where a time step lies in its row and plane; the same for all lanes.
struct Place {
    bool rows;   // there are rows at all
    bool top;    // no row above
    bool first;  // first column
    bool last;   // last column
    std::size_t column;
};

struct Clock {
    const Cut cut;
    std::size_t t = 0, column = 0, row = 0;

    Place place() const {
        if (cut.columns == 0) return {false, true, t == 0, false, 0};
        return {true, row == 0, column == 0, column + 1 == cut.columns, column};
    }
    void tick() {
        ++t;
        if (cut.columns == 0 || ++column < cut.columns) return;
        column = 0;
        ++row;
        if (cut.rows != 0 && row == cut.rows) row = 0;
    }
};

// The running means of one chunk and the rules that turn them into contexts. Means of activity + 1:
// they fall towards 1, never into denormals.
template <Model M_>
struct Contexts {
    F along[kGroupVectors];
    float* across;  // a row of all lanes for each column
    F gain;         // grid: brings usual activities to the middle

    Contexts(float* columns_state, std::size_t columns, const Geometry& g)
        : across(columns_state), gain(f_set(power_of_two(g.gain))) {
        for (int v = 0; v < kGroupVectors; ++v) along[v] = f_set(1.0f);
        if constexpr (has_across(M_))
            for (std::size_t i = 0; i < (columns == 0 ? 1 : columns) * kGroup; ++i)
                across[i] = 1.0f;
    }

    // 1 + factor (mean - 1): what a mean that starts at 0 would give, without its denormals.
    static F grow(F mean, F factor) {
        return f_sub(f_mul(mean, factor), f_sub(factor, f_set(1.0f)));
    }

    I at(int v, std::size_t column, F p) const {
        if constexpr (M_ == Model::code) {
            const I negative = i_and(i_sar<31>(f_bits(p)), i_set(kBuckets));
            return i_add(bucket_of(f_add(f_abs(p), f_set(1.0f)), kBuckets - 1), negative);
        } else if constexpr (M_ == Model::flat) {
            return i_set(0);
        } else if constexpr (M_ == Model::along) {
            return bucket_of(grow(along[v], f_set(8.0f)), kContexts - 1);
        } else {
            const F down = f_load(across + column * kGroup + kLanes * v);
            if constexpr (M_ == Model::across)
                return bucket_of(grow(down, f_set(8.0f)), kContexts - 1);
            if constexpr (M_ == Model::both)
                return bucket_of(f_sub(f_mul(f_add(along[v], down), f_set(4.0f)), f_set(7.0f)),
                                 kContexts - 1);
            const I row = bucket_of(grow(along[v], gain), 5);
            return i_add(i_shl<3>(row), bucket_of(grow(down, gain), 7));
        }
    }

    void update(int v, std::size_t column, I activity) {
        const F a = f_of_i(i_add(activity, i_set(1)));
        const F rate = f_set(0.125f);
        if constexpr (has_along(M_)) along[v] = f_add(along[v], f_mul(f_sub(a, along[v]), rate));
        if constexpr (has_across(M_)) {
            float* state = across + column * kGroup + kLanes * v;
            const F old = f_load(state);
            f_store(state, f_add(old, f_mul(f_sub(a, old), rate)));
        }
    }
};

// p = ((wU U + wUL UL) + wUR UR) + wL L, in that order. `now` points at this step's row.
inline F prediction(const Weights& w, const Place& place, std::size_t columns,
                    const std::int32_t* now, int v, F left) {
    const auto code = [&](std::size_t back) {
        return f_of_i(i_load(now - back * kGroup + kLanes * v));
    };
    F above, above_left, above_right;
    if (__builtin_expect(place.top, 0)) {
        if (place.first) left = f_set(0.0f);
        above = place.rows ? left : f_set(0.0f);
        above_left = above;
        above_right = above;
    } else {
        above = code(columns);
        above_left = place.first ? above : code(columns + 1);
        above_right = place.last ? above : code(columns - 1);
        if (place.first) left = above;
    }
    const F high = f_add(f_mul(w.above, above), f_mul(w.above_left, above_left));
    return f_add(f_add(high, f_mul(w.above_right, above_right)), f_mul(w.left, left));
}
