// The eight 64-bit lanes of XXH3 in portable C++. Included inside the namespace of its level.

struct Lanes {
    std::uint64_t v[8];
};

inline std::uint64_t lane_at(const std::uint8_t* p, int lane) {
    std::uint64_t v;
    std::memcpy(&v, p + 8 * lane, 8);
    return v;
}
inline Lanes lanes_load(const std::uint64_t* p) {
    Lanes x;
    std::memcpy(x.v, p, sizeof x.v);
    return x;
}
inline void lanes_store(std::uint64_t* p, const Lanes& x) { std::memcpy(p, x.v, sizeof x.v); }

// Each lane gets its neighbour's data, and the product of the halves of its own, keyed.
inline void lanes_add(Lanes& x, const std::uint8_t* data, const std::uint8_t* secret) {
    for (int lane = 0; lane < 8; ++lane) {
        const std::uint64_t key = lane_at(data, lane) ^ lane_at(secret, lane);
        x.v[lane] += lane_at(data, lane ^ 1) + (key & 0xffffffffu) * (key >> 32);
    }
}
inline void lanes_scramble(Lanes& x, const std::uint8_t* secret, std::uint32_t factor) {
    for (int lane = 0; lane < 8; ++lane)
        x.v[lane] = (x.v[lane] ^ (x.v[lane] >> 47) ^ lane_at(secret, lane)) * factor;
}

// One line of 64 bytes; there is no portable way past the caches.
inline void line_past(const std::uint8_t* from, std::uint8_t* to) { std::memcpy(to, from, 64); }
inline void lines_end() {}
