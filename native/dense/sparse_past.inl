// What the model sparse remembers of the codes before, and of the rows above.

constexpr std::size_t kPiece = 16;  // codes of a quarter of a block

inline std::uint32_t length_of(std::uint32_t v) {
    return 63u - static_cast<std::uint32_t>(__builtin_clzll(2 * std::uint64_t{v} + 1));
}
inline std::uint32_t length_of(std::uint32_t v, std::uint32_t most) {
    const std::uint32_t length = length_of(v);
    return length < most ? length : most;
}
inline std::uint32_t ones_of(std::uint64_t v) {
    return static_cast<std::uint32_t>(__builtin_popcountll(v));
}
inline std::uint32_t size_of(std::int32_t v) { return static_cast<std::uint32_t>(v < 0 ? -v : v); }
inline std::uint32_t step_of(std::int32_t v) { return size_of(v) < 2 ? size_of(v) : 2u; }
inline std::uint32_t sign_of(std::int32_t v) { return v == 0 ? 0u : v > 0 ? 1u : 2u; }

// Bit i: code i of a block is not zero.
inline std::uint64_t nonzero_of(const std::int32_t* codes) {
    if constexpr (kLanes == 1) {
        // Compilers make vectors of this, but not of what follows.
        std::int32_t any = 0;
        for (std::size_t i = 0; i < kBlock; ++i) any |= codes[i];
        if (any == 0) return 0;
    }
    std::uint64_t bits = 0;
    for (int i = 0; i < static_cast<int>(kBlock); i += kLanes)
        bits |= static_cast<std::uint64_t>(m_bits(m_not(i_equal(i_load(codes + i), i_set(0)))))
                << i;
    return bits;
}

// The neighbours of a code, between -127 and 127.
struct Neighbours {
    std::int32_t left, second, above, above_left, above_right;
};

// The share of contexts that a piece's codes owe to what stands above them.
struct Surroundings {
    std::uint16_t sharp[kPiece], broad[kPiece];
};

// Rows of a chunk, as far back as contexts look. Everything lies in order of the codes, and moves
// to the front of its memory when that is full.
struct Past {
    std::int16_t* codes = nullptr;     // between -127 and 127
    std::uint16_t* density = nullptr;  // after each code, how often its column was not zero
    std::uint64_t* nonzero = nullptr;  // a bit for each code
    std::size_t columns = 0;
    std::size_t period = 0;    // columns told apart: the least multiple of a row not below a block
    std::size_t keep = 0;      // how far contexts look back, in whole blocks
    std::size_t capacity = 0;  // more than twice as many
    std::size_t at = 0;

    void begin() {
        at = keep;
        std::memset(codes, 0, keep * sizeof *codes);
        std::memset(density, 0, keep * sizeof *density);
        std::memset(nonzero, 0, keep / 8);
    }

    // Room for a block.
    void extend() {
        if (at + kBlock > capacity) {
            std::memmove(codes, codes + at - keep, keep * sizeof *codes);
            std::memmove(density, density + at - keep, keep * sizeof *density);
            std::memmove(nonzero, nonzero + (at - keep) / kBlock, keep / 8);
            at = keep;
        }
        nonzero[at / kBlock] = 0;
    }

    // Of the `window` codes from the one above on, those before this one that are not zero.
    std::uint32_t count_above(std::size_t window) const {
        const std::size_t from = at - columns, shift = from % kBlock;
        const std::uint64_t* const words = nonzero + from / kBlock;
        std::uint64_t bits = words[0] >> shift;
        if (shift != 0) bits |= words[1] << (kBlock - shift);
        const std::size_t known = window < columns ? window : columns;
        return ones_of(known < 64 ? bits & ((std::uint64_t{1} << known) - 1) : bits);
    }

    template <std::size_t Count>
    void append_zeros() {
        std::memset(codes + at, 0, Count * sizeof *codes);
        thin_out<Count>(0);
        at += Count;
    }

    // Densities of the columns once these codes are known; bit i: code i is not zero.
    template <std::size_t Count>
    void thin_out(std::uint32_t bits) {
        const std::uint16_t* const old = density + at - period;
        std::uint16_t* const now = density + at;
        for (std::size_t i = 0; i < Count; ++i) {
            const std::uint32_t d = old[i];
            const bool more = Count < 32 && (bits >> (i % 32) & 1);
            now[i] = static_cast<std::uint16_t>(more ? d + ((255 - d) >> 4) : d - (d >> 4));
        }
    }

    // The surroundings of codes `from` to `end` of a piece.
    void look(std::size_t from, std::size_t end, Surroundings& s) const {
        const std::int16_t* const above = codes + at - columns;
        const std::uint16_t* const column = density + at - period;
        const auto step = [](std::int16_t v) { return v < 0 ? (v < -1 ? 2 : 1) : v > 1 ? 2 : v; };
        for (std::size_t i = from; i < end; ++i) {
            const int sides = step(above[i - 1]) + step(above[i + 1]), up = step(above[i]);
            const int d = column[i];
            const int some = (d > 15) + (d > 31) + (d > 63);  // length of d >> 4, at most 3
            const int much = (d > 1) + (d > 3) + (d > 7) + some + (d > 127);  // length of d >> 1
            s.sharp[i] = static_cast<std::uint16_t>(((up * 5 + sides) * 4 + some) * 2);
            s.broad[i] = static_cast<std::uint16_t>((much * 5 + up) * 2);
        }
    }

    Neighbours neighbours(std::size_t i, std::int32_t left, std::int32_t second) const {
        const std::int16_t* const above = codes + at + i - columns;
        return {left, second, above[0], above[-1], above[1]};
    }

    void begin_piece() { std::memset(codes + at, 0, kPiece * sizeof *codes); }
    void set(std::size_t i, std::int32_t code) { codes[at + i] = static_cast<std::int16_t>(code); }
    void end_piece(std::uint32_t bits) {
        thin_out<kPiece>(bits);
        nonzero[at / kBlock] |= static_cast<std::uint64_t>(bits) << at % kBlock;
        at += kPiece;
    }
};
