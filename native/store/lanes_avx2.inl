// The eight 64-bit lanes of XXH3 in two vectors. Included inside the namespace of its level.

struct Lanes {
    __m256i low, high;
};

inline __m256i four_at(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Lanes lanes_load(const std::uint64_t* p) { return {four_at(p), four_at(p + 4)}; }
inline void lanes_store(std::uint64_t* p, const Lanes& x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 4), x.high);
}

// Each lane gets its neighbour's data, and the product of the halves of its own, keyed.
inline __m256i four_more(__m256i x, __m256i data, __m256i secret) {
    const __m256i key = _mm256_xor_si256(data, secret);
    const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    return _mm256_add_epi64(x, _mm256_add_epi64(_mm256_shuffle_epi32(data, 0x4e), product));
}
inline void lanes_add(Lanes& x, const std::uint8_t* data, const std::uint8_t* secret) {
    x.low = four_more(x.low, four_at(data), four_at(secret));
    x.high = four_more(x.high, four_at(data + 32), four_at(secret + 32));
}
inline __m256i four_scrambled(__m256i x, __m256i secret, __m256i factor) {
    const __m256i y = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, 47)), secret);
    const __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(y, 32), factor);
    return _mm256_add_epi64(_mm256_mul_epu32(y, factor), _mm256_slli_epi64(upper, 32));
}
inline void lanes_scramble(Lanes& x, const std::uint8_t* secret, std::uint32_t factor) {
    const __m256i f = _mm256_set1_epi64x(factor);
    x.low = four_scrambled(x.low, four_at(secret), f);
    x.high = four_scrambled(x.high, four_at(secret + 32), f);
}

// One line of 64 bytes to where one begins, without the line being read or kept in a cache.
inline void line_past(const std::uint8_t* from, std::uint8_t* to) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), four_at(from));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), four_at(from + 32));
}
inline void lines_end() { _mm_sfence(); }
