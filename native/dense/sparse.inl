// A chunk of the model sparse: failure count, the range coder's bytes, failed values.

constexpr std::size_t kMostColumns = 31744;
constexpr std::size_t kSparseTile = 4096;

// Codes of a row that contexts look across, 0 if there is none.
inline std::size_t row_of(const Quantiser& q, const Geometry& g) {
    return has_word_planes(q) || g.columns < 2 || g.columns > kMostColumns ? 0 : g.columns;
}

// Takes less than the tables of the other models, which dense_scratch_bytes() has room for.
struct SparseRoom {
    Bins* bins;
    std::int32_t* tile;
    Past past;
};

inline SparseRoom sparse_room_of(std::uint8_t* base, std::size_t columns) {
    SparseRoom r;
    const auto carve = [&](auto*& p, std::size_t count) {
        using T = std::remove_reference_t<decltype(*p)>;
        p = reinterpret_cast<T*>(base);
        base += (count * sizeof(T) + 127) / 64 * 64;
    };
    carve(r.bins, 1);
    carve(r.tile, kSparseTile);
    if (columns == 0) return r;
    Past& past = r.past;
    past.columns = columns;
    past.period = (kBlock + columns - 1) / columns * columns;
    past.keep = (past.period + 2 * kBlock) / kBlock * kBlock;
    past.capacity = 2 * past.keep + kSparseTile;
    carve(past.codes, past.capacity);
    carve(past.density, past.capacity);
    carve(past.nonzero, past.capacity / kBlock);
    return r;
}

// Calls body with the model of a chunk and room for a tile of codes.
template <class Body>
inline void with_sparse_model(const Quantiser& q, const Geometry& g, Scratch& scratch,
                              Body&& body) {
    const SparseRoom room = sparse_room_of(scratch.bytes, row_of(q, g));
    if (row_of(q, g) == 0) {
        SparseModel<false> model(room.bins, room.past);
        body(model, room.tile);
    } else {
        SparseModel<true> model(room.bins, room.past);
        body(model, room.tile);
    }
}

template <class Coder, class Model>
inline void code_items(const Quantiser& q, const void* source, std::size_t first, std::size_t items,
                       Model& model, std::int32_t* tile, Coder& coder, Failures& failed) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    std::int32_t carry = 0;
    for (std::size_t at = 0; at < n; at += kSparseTile) {
        // Whole blocks: beyond the last code there are zeros.
        codes_of_run(q, static_cast<const std::uint8_t*>(source), first, items, at, kSparseTile,
                     carry, failed, tile);
        const std::size_t count = n - at < kSparseTile ? n - at : kSparseTile;
        model.tile(coder, tile, count);
    }
}

inline std::size_t encode_sparse(const Quantiser& q, const Geometry& g, const void* source,
                                 std::size_t first, std::size_t items, std::uint8_t* dst,
                                 Scratch& scratch) {
    const std::size_t item = item_bytes(q.dtype);
    Failures failed{scratch.index, 0};
    DecisionWriter writer(dst + 4);
    with_sparse_model(q, g, scratch, [&](auto& model, std::int32_t* tile) {
        code_items(q, source, first, items, model, tile, writer, failed);
    });
    std::uint8_t* out = writer.finish();
    write_u32(dst, failed.count);
    for (std::uint32_t i = 0; i < failed.count; ++i, out += 4) write_u32(out, failed.index[i]);
    for (std::uint32_t i = 0; i < failed.count; ++i, out += item)
        std::memcpy(out, static_cast<const std::uint8_t*>(source) + failed.index[i] * item, item);
    return static_cast<std::size_t>(out - dst);
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_sparse(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                          std::size_t size, std::size_t first, std::size_t items, void* target,
                          bool stream, Scratch& scratch) {
    const std::size_t n = has_word_planes(q) ? 2 * items : items;
    const std::size_t item = item_bytes(q.dtype);
    if (size < 4) return false;
    const std::size_t failures = read_u32(in);
    if (failures > (q.rule == Rule::exact ? 0 : items)) return false;
    if (size - 4 < failures * (4 + item)) return false;
    const std::size_t coded = size - 4 - failures * (4 + item);
    const std::uint8_t* const positions = in + 4 + coded;
    if (!positions_ascend(positions, failures, items)) return false;
    DecisionReader reader(in + 4, coded);
    if (reader.is_lost()) return false;
    auto* out = static_cast<std::uint8_t*>(target);
    with_sparse_model(q, g, scratch, [&](auto& model, std::int32_t* tile) {
        for (std::size_t at = 0; at < n; at += kSparseTile) {
            const std::size_t count = n - at < kSparseTile ? n - at : kSparseTile;
            std::int32_t* const codes = has_word_planes(q) ? scratch.codes + at : tile;
            std::memset(codes, 0, 4 * count);
            model.tile(reader, codes, count);
            if (!has_word_planes(q))
                decode_codes(q, codes, first + at, count, stream, out + at * item);
        }
    });
    if (has_word_planes(q)) items_of_codes(q.dtype, scratch.codes, items, target);
    stream_fence();
    return reader.is_finished() && place_failures(positions, failures, items, item, out);
}

// What a sample would take, by the bins as they are at a chunk's start and as they are later on.
inline SparseCost sparse_cost(const Quantiser& q, const Geometry& g, const void* source,
                              std::size_t items, Scratch& scratch) {
    DecisionMeter fresh, learned;
    with_sparse_model(q, g, scratch, [&](auto& model, std::int32_t* tile) {
        for (int pass = 0; pass < 2; ++pass) {
            DecisionMeter& meter = pass == 0 ? fresh : learned;
            Failures failed{scratch.index, 0};
            model.begin();
            code_items(q, source, 0, items, model, tile, meter, failed);
        }
    });
    return {fresh.cost, learned.cost};
}
