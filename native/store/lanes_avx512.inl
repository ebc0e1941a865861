// The eight 64-bit lanes of XXH3 in one vector. Included inside the namespace of its level.

struct Lanes {
    __m512i v;
};

inline Lanes lanes_load(const std::uint64_t* p) { return {_mm512_loadu_si512(p)}; }
inline void lanes_store(std::uint64_t* p, const Lanes& x) { _mm512_storeu_si512(p, x.v); }

// Each lane gets its neighbour's data, and the product of the halves of its own, keyed.
inline void lanes_add(Lanes& x, const std::uint8_t* data, const std::uint8_t* secret) {
    const __m512i d = _mm512_loadu_si512(data);
    const __m512i key = _mm512_xor_si512(d, _mm512_loadu_si512(secret));
    const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    x.v = _mm512_add_epi64(x.v, _mm512_add_epi64(_mm512_shuffle_epi32(d, _MM_PERM_BADC), product));
}
inline void lanes_scramble(Lanes& x, const std::uint8_t* secret, std::uint32_t factor) {
    const __m512i f = _mm512_set1_epi64(factor);
    const __m512i y = _mm512_xor_si512(_mm512_xor_si512(x.v, _mm512_srli_epi64(x.v, 47)),
                                       _mm512_loadu_si512(secret));
    const __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(y, 32), f);
    x.v = _mm512_add_epi64(_mm512_mul_epu32(y, f), _mm512_slli_epi64(upper, 32));
}

// One line of 64 bytes to where one begins, without the line being read or kept in a cache.
inline void line_past(const std::uint8_t* from, std::uint8_t* to) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
inline void lines_end() { _mm_sfence(); }
