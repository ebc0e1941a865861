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
