// What does not depend on the number of lanes.

inline void write_u32(std::uint8_t* p, std::uint32_t v) { std::memcpy(p, &v, 4); }
inline std::uint32_t read_u32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

inline bool has_word_planes(const Quantiser& q) {
    return q.rule == Rule::exact && item_bytes(q.dtype) == 8;
}

constexpr std::size_t kDenseHeader = 24;
constexpr std::int32_t kMostActive = 16384;

// A set of counters and a little more: sets a multiple of 4 KiB apart would look alike to the
// processor's store buffer.
constexpr std::size_t kCounterSets = 4;
constexpr std::size_t kCounters = kFrequencies + 336;

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
        // Lanes are far apart: the next tile of this one is asked for while the others have a turn.
        const std::uint8_t* next = source + (begin + count) * item;
        for (std::size_t i = 0; i < count * item; i += 64) __builtin_prefetch(next + i);
        encode_codes(q, source + begin * item, first + begin, begin, here, carry, out, failed);
    }
    for (; here < count; ++here) out[here] = 0;
}

// Positions of failed items ascend and lie among the items.
inline bool positions_ascend(const std::uint8_t* positions, std::size_t count, std::size_t items) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = read_u32(positions + 4 * i);
        if (at < next || at >= items) return false;
        next = at + 1;
    }
    return true;
}

// Items that failed, behind their positions. False when a position that was right is not any more:
// the bytes may lie where the target was just written.
inline bool place_failures(const std::uint8_t* positions, std::size_t count, std::size_t items,
                           std::size_t item, std::uint8_t* target) {
    const std::uint8_t* const values = positions + 4 * count;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = read_u32(positions + 4 * i);
        if (at >= items) return false;
        std::memcpy(target + at * item, values + i * item, item);
    }
    return true;
}
