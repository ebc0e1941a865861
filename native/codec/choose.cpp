#include "codec/choose.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/fit.hpp"
#include "codec/workspace.hpp"
#include "common/float_env.hpp"

namespace elbowroom {
namespace {

// Pieces to look at: one for each lane of a trial chunk of the dense codec. The block codec is as
// fast as a look at so much would be, and has three choices to make.
constexpr std::size_t dense_pieces = 64;
constexpr std::size_t block_pieces = 16;

// Pieces of the array, end to end in one buffer.
struct Windows {
    Buffer<std::uint8_t> bytes;
    Geometry geometry;       // of the pieces
    std::size_t length = 0;  // items of a piece
    std::size_t count = 0;

    std::size_t items() const { return length * count; }
};

constexpr std::size_t narrow_columns = 64;
constexpr std::size_t narrow_rows = 16;

// Planes or rows that fit are taken whole; of longer rows a strip of neighbouring columns is cut,
// tall enough for what stands above to be weighed.
bool take_windows(const Geometry& g, std::size_t item, const void* source, std::size_t items,
                  std::size_t pieces, Windows& w) {
    const auto* from = static_cast<const std::uint8_t*>(source);
    const std::size_t budget = std::clamp<std::size_t>(items / 16, 8192, 65536);
    const std::size_t base = std::max<std::size_t>(budget / dense_pieces, 1);
    const std::size_t plane = g.columns * g.rows;
    const std::size_t height = g.columns == 0 ? 0 : items / g.columns;
    w.geometry = g;
    w.count = pieces;
    if (g.columns > 2 * narrow_columns && height >= 2 * narrow_rows) {
        w.geometry.columns = narrow_columns;
        w.geometry.rows = 0;
        w.length = narrow_columns * narrow_rows;
        w.bytes = make_buffer<std::uint8_t>(w.items() * item);
        if (!w.bytes) return false;
        for (std::size_t i = 0; i < pieces; ++i) {
            const std::size_t row = (height - narrow_rows) * i / (pieces - 1);
            // Strips wander over the columns in steps that visit all parts.
            const std::size_t column =
                (g.columns - narrow_columns) * (i * 29 % pieces) / (pieces - 1);
            for (std::size_t r = 0; r < narrow_rows; ++r)
                std::memcpy(w.bytes.get() + (i * w.length + r * narrow_columns) * item,
                            from + ((row + r) * g.columns + column) * item, narrow_columns * item);
        }
        return true;
    }
    std::size_t unit = 1;
    if (plane > 0 && plane <= 4 * base)
        unit = plane;
    else if (g.columns > 0 && g.columns <= 4 * base)
        unit = g.columns;
    w.length = (base + unit - 1) / unit * unit;
    if (unit == g.columns && unit > 1) w.length = std::max(w.length, 4 * unit);
    if (w.length * pieces > items) {
        // Small arrays are taken whole.
        w.count = 1;
        w.length = items;
    }
    w.bytes = make_buffer<std::uint8_t>(w.items() * item);
    if (!w.bytes) return false;
    for (std::size_t i = 0; i < w.count; ++i) {
        std::size_t start = w.count == 1 ? 0 : (items - w.length) * i / (w.count - 1);
        start -= start % unit;
        std::memcpy(w.bytes.get() + i * w.length * item, from + start * item, w.length * item);
    }
    return true;
}

template <class Visit>
void visit_neighbours(const std::int32_t* codes, const Windows& w, std::size_t columns,
                      Visit&& visit) {
    const std::size_t begin = columns == 0 ? 1 : columns + 1;
    for (std::size_t i = 0; i < w.count; ++i) {
        const std::int32_t* c = codes + i * w.length;
        for (std::size_t t = begin; t < w.length; t += 3) {
            double x[4] = {static_cast<double>(c[t - 1]), 0, 0, 0};
            if (columns > 0) {
                const std::size_t column = t % columns;
                if (column == 0 || column + 1 == columns) continue;
                x[1] = c[t - columns];
                x[2] = c[t - columns - 1];
                x[3] = c[t - columns + 1];
            }
            visit(x, static_cast<double>(c[t]));
        }
    }
}

// The smallest shift that leaves fewer than one value in 1024 to escapes, and the mean size.
class Sizes {
  public:
    void add(double v) {
        const double size = std::fabs(v);
        int s = 0;
        for (double most = 15360.0; s < 22 && size > most; most *= 2.0) ++s;
        ++needs_[s];
        ++total_;
        sum_ += size;
    }
    std::uint8_t shift() const {
        std::size_t over = total_ - needs_[0];
        std::uint8_t s = 0;
        while (s < 22 && over * 1024 >= total_ && over > 0) over -= needs_[++s];
        return s;
    }
    // The power of two that brings the mean, above the shift, near 2.
    std::int8_t gain() const {
        const double mean = std::ldexp(sum_ / static_cast<double>(total_ + 1), -shift());
        if (!(mean > 0)) return 0;
        return static_cast<std::int8_t>(std::clamp(std::lrint(1.0 - std::log2(mean)), -20L, 20L));
    }

  private:
    std::size_t needs_[23] = {};
    std::size_t total_ = 0;
    double sum_ = 0;
};

// How many decisions the model sparse would make of a sample, and how few blocks are not zero.
struct Sparsity {
    std::size_t decisions = 0;
    bool is_extreme;

    Sparsity(const std::int32_t* codes, std::size_t n) {
        constexpr std::size_t piece = 16;
        std::size_t blocks = 0, nonzero = 0;
        // Beyond one decision a code the answer is clear.
        for (std::size_t at = 0; at < n && decisions <= n; at += kBlock, ++blocks) {
            const std::size_t end = std::min(n, at + kBlock);
            ++decisions;
            if (is_zero(codes, at, end)) continue;
            ++nonzero;
            for (std::size_t i = at; i < end; i += piece) {
                ++decisions;
                const std::size_t last = std::min(end, i + piece);
                if (is_zero(codes, i, last)) continue;
                decisions += last - i;
                // Lengths in unary, the bits below, signs.
                for (std::size_t j = i; j < last; ++j)
                    decisions += 2 * static_cast<std::size_t>(std::bit_width(size_of(codes[j])));
            }
        }
        is_extreme = 64 * nonzero < blocks;
    }

  private:
    static bool is_zero(const std::int32_t* codes, std::size_t at, std::size_t end) {
        std::int32_t any = 0;
        for (; at < end; ++at) any |= codes[at];
        return any == 0;
    }
    static std::uint32_t size_of(std::int32_t code) {
        const auto bits = static_cast<std::uint32_t>(code);
        return code < 0 ? 0u - bits : bits;
    }
};

// What the model sparse has to be beaten by, in 65536ths of a bit. `sampled` of a chunk's items
// were seen.
std::uint64_t price(const SparseCost& cost, const Sparsity& sparsity, std::size_t n,
                    std::size_t sampled, std::size_t chunk) {
    const std::size_t whole = std::max(chunk, sampled);
    // What it learns it pays for once a chunk.
    const std::uint64_t learning = cost.fresh > cost.learned ? cost.fresh - cost.learned : 0;
    std::uint64_t bits = cost.learned + learning * sampled / whole;
    // Pieces show less of what it can learn than the whole does: an eighth is usual on gradients,
    // weights and activations.
    bits -= bits / 8 / whole * (whole - sampled);
    // Header and states of the other models, which their estimates leave out.
    const std::uint64_t others = std::uint64_t{(24 + 8 + 64) * 8 * 65536} * sampled / whole;
    bits -= std::min(bits, others);
    // Decisions come one after another: one a code has to save a quarter.
    return bits + bits / (4 * n) * sparsity.decisions;
}

// Who is content with so many bytes a chunk has threads in mind, or memory, and not size alone.
constexpr std::size_t shared_worth = std::size_t{64} << 10;

// Items of a chunk, in units, so that threads have equal parts of a middling array, and need less
// memory to work in: 0 where a part would be too small for what each chunk says of itself.
// `payload` is what all of it will take.
std::uint16_t chunk_units(const Stream& stream, std::size_t items, std::uint64_t payload,
                          std::size_t worth) {
    const Geometry& g = stream.geometry;
    // Long arrays make more parts of about the same length, the longest shorter ones: there the
    // memory to work in counts for more than a percent of the bytes.
    const std::size_t times = items / (2 * kDenseChunk) + 1;
    const bool is_long = times > 2 && worth <= shared_worth;
    if (is_long) worth /= 2;
    for (std::size_t parts = is_long ? 8 : 4; parts >= 2; parts /= 2) {
        const std::size_t even = (items + parts * times - 1) / (parts * times);
        // Two halves at once gain more than what each says of itself.
        const bool is_pair = parts * times == 2 && worth <= shared_worth;
        if (payload / (parts * times) < (is_pair ? worth / 3 : worth)) continue;
        for (const std::size_t unit : {g.columns * g.rows, g.columns, std::size_t{1}}) {
            const std::size_t step = 64 * unit;
            if (unit < 1 || step > even) continue;
            const std::size_t length = (even + step - 1) / step * step;
            const std::size_t units = (length + kChunkUnit - 1) / kChunkUnit;
            if (units >= kLeastChunkUnits && units * kChunkUnit < kDenseChunk)
                return static_cast<std::uint16_t>(units);
        }
    }
    return 0;
}

bool choose_model(Stream& stream, const void* source, std::size_t items, std::size_t worth) {
    Geometry& g = stream.geometry;
    const Quantiser& q = stream.quantiser;
    const std::size_t item = item_bytes(q.dtype);
    const bool words = has_word_planes(q);
    Windows windows;
    if (!take_windows(g, item, source, items, dense_pieces, windows)) return false;
    Workspace work;
    if (!work.reserve(stream, windows.items(), true)) return false;
    const DenseKernels& kernels = dense_kernels();

    const std::size_t n = windows.items() * (words ? 2 : 1);
    Buffer<std::int32_t> codes = make_buffer<std::int32_t>(n + 2 * kBlock);
    if (!codes) return false;
    kernels.codes(q, windows.bytes.get(), windows.items(), codes.get(), work.scratch);
    Geometry chosen;
    chosen.model = sparse_model;
    chosen.columns = g.columns;
    chosen.rows = g.rows;
    const Sparsity sparsity(codes.get(), n);
    // Zeros as far as one looks: nothing else comes near.
    if (sparsity.is_extreme) {
        g = chosen;
        return true;
    }
    const std::size_t columns =
        !words && windows.geometry.columns > 2 && windows.length >= 3 * windows.geometry.columns
            ? windows.geometry.columns
            : 0;
    Fit fit;
    fit.terms = columns > 0 ? 4 : 1;
    visit_neighbours(codes.get(), windows, columns,
                     [&](const double* x, double y) { fit.add(x, y); });
    std::int16_t weights[4] = {};
    bool fitted = fit.solve(weights);
    const auto is_little = [](std::int16_t w) { return w >= -6 && w <= 6; };
    if (fitted && fit.terms == 4 && is_little(weights[1]) && is_little(weights[2]) &&
        is_little(weights[3])) {
        // A sample's noise rather than what the row above knows; and one neighbour is faster.
        fit.terms = 1;
        fitted = fit.solve(weights);
    }
    fitted = fitted && (weights[0] | weights[1] | weights[2] | weights[3]) != 0;
    Sizes of_codes, of_residuals;
    for (std::size_t i = 0; i < n; i += 3) of_codes.add(codes.get()[i]);
    visit_neighbours(codes.get(), windows, columns, [&](const double* x, double y) {
        double p = 0;
        for (int i = 0; i < 4; ++i) p += weights[i] / 64.0 * x[i];
        of_residuals.add(y - std::nearbyint(p));
    });

    // A table is told once a chunk, and a chunk is larger than the sample.
    const std::size_t chunk = std::min(items, chunk_items(stream));
    const std::uint64_t table_cost =
        std::uint64_t{8 * 65536} * windows.items() / std::max(chunk, windows.items());
    struct Candidate {
        std::uint8_t model;
        bool weighted;
    };
    // Cheaper ones first: a later one has to win by a quarter of a percent.
    constexpr Candidate candidates[] = {{1, false}, {2, false}, {0, true},  {3, false}, {2, true},
                                        {4, false}, {4, true},  {5, false}, {5, true}};
    std::uint64_t best = ~std::uint64_t{0};
    if (sparsity.decisions <= n)
        best = price(kernels.sparse_cost(q, windows.geometry, windows.bytes.get(), windows.items(),
                                         work.scratch),
                     sparsity, n, windows.items(), chunk);
    for (const Candidate& c : candidates) {
        if (c.weighted && !fitted) continue;
        if (c.model >= 3 && columns == 0) continue;
        Geometry trial = windows.geometry;
        trial.model = c.model;
        for (int i = 0; i < 4; ++i) trial.weights[i] = c.weighted ? weights[i] : std::int16_t{0};
        const Sizes& sizes = c.weighted && c.model != 0 ? of_residuals : of_codes;
        trial.shift = sizes.shift();
        trial.gain = c.model == 5 ? sizes.gain() : std::int8_t{0};
        const std::uint64_t cost =
            kernels.cost(q, trial, windows.bytes.get(), windows.items(), table_cost, work.scratch);
        if (cost < best - best / 400) {
            best = cost;
            chosen = trial;
        }
    }
    chosen.columns = g.columns;
    chosen.rows = g.rows;
    g = chosen;
    // What the model sparse has learnt in one chunk it would have to learn again in the next.
    if (g.model != sparse_model && !words)
        g.chunk = chunk_units(stream, items, best / (8 * 65536) * items / windows.items(), worth);
    return true;
}

bool choose_predictor(Stream& stream, const void* source, std::size_t items) {
    Geometry& g = stream.geometry;
    Windows windows;
    const std::size_t item = item_bytes(stream.quantiser.dtype);
    if (!take_windows(g, item, source, items, block_pieces, windows)) return false;
    const std::size_t length = std::min(windows.items(), chunk_items(stream));
    Workspace work;
    if (!work.reserve(stream, length, true)) return false;
    Buffer<std::uint8_t> out = make_buffer<std::uint8_t>(chunk_capacity(stream, length));
    if (!out) return false;
    std::size_t best = ~std::size_t{0};
    Predictor chosen = Predictor::none;
    for (const Predictor p : {Predictor::none, Predictor::plane, Predictor::left}) {
        // Of strips cut from rows the planes are not known: what stands above still is.
        if (p == Predictor::plane && (g.columns < 2 || g.rows < 2)) continue;
        Geometry trial = windows.geometry;
        trial.predictor = p;
        if (trial.rows == 0) trial.rows = windows.length / std::max<std::size_t>(trial.columns, 1);
        const std::size_t size = block_kernels().encode(
            stream.quantiser, trial, windows.bytes.get(), 0, length, out.get(), work.scratch);
        // Prediction costs speed: it has to win by five percent.
        if (size < best - best / 20) {
            best = size;
            chosen = p;
        }
    }
    g.predictor = chosen;
    return true;
}

}  // namespace

bool choose(Stream& stream, const void* source, std::size_t items, std::size_t worth) noexcept {
    const DefaultFloatEnv float_env;
    if (items == 0) return true;
    const DitherTable shifts(stream.quantiser);
    bool done = true;
    if (stream.codec == Codec::dense) done = choose_model(stream, source, items, worth);
    if (stream.codec == Codec::block) done = choose_predictor(stream, source, items);
    stream.quantiser.shifts = nullptr;
    return done;
}

}  // namespace elbowroom
