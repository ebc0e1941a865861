// Eight 32-bit lanes on AVX2 with F16C. Included inside the namespace of its level.

constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;
struct M {
    __m256i v;  // all ones in the lanes that are set
    M() : v(_mm256_setzero_si256()) {}
    explicit M(__m256i x) : v(x) {}
};

inline F f_set(float v) { return _mm256_set1_ps(v); }
inline F f_load(const float* p) { return _mm256_loadu_ps(p); }
inline void f_store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline void f_stream(float* p, F v) { _mm256_stream_ps(p, v); }
// For targets that are aligned to 16 bytes only.
inline void f_stream_pieces(float* p, F v) {
    _mm_stream_ps(p, _mm256_castps256_ps128(v));
    _mm_stream_ps(p + 4, _mm256_extractf128_ps(v, 1));
}
inline void stream_fence() { _mm_sfence(); }
inline F f_add(F a, F b) { return _mm256_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F f_abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F f_floor(F a) { return _mm256_floor_ps(a); }
inline M f_less(F a, F b) { return M(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ))); }
inline I f_bits(F a) { return _mm256_castps_si256(a); }
inline F f_of_bits(I a) { return _mm256_castsi256_ps(a); }
inline I i_of_f(F a) { return _mm256_cvtps_epi32(a); }
inline F f_of_i(I a) { return _mm256_cvtepi32_ps(a); }

inline I i_set(std::int32_t v) { return _mm256_set1_epi32(v); }
inline I i_iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline I i_load(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void i_store(std::int32_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline I i_add(I a, I b) { return _mm256_add_epi32(a, b); }
inline I i_sub(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I i_mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
inline I i_and(I a, I b) { return _mm256_and_si256(a, b); }
inline I i_or(I a, I b) { return _mm256_or_si256(a, b); }
inline I i_xor(I a, I b) { return _mm256_xor_si256(a, b); }
inline I i_min(I a, I b) { return _mm256_min_epi32(a, b); }
inline I i_max(I a, I b) { return _mm256_max_epi32(a, b); }
inline I i_abs(I a) { return _mm256_abs_epi32(a); }
template <int S>
inline I i_shl(I a) {
    return _mm256_slli_epi32(a, S);
}
template <int S>
inline I i_shr(I a) {
    return _mm256_srli_epi32(a, S);
}
template <int S>
inline I i_sar(I a) {
    return _mm256_srai_epi32(a, S);
}
inline I i_shl(I a, int s) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_shr(I a, int s) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_sar(I a, int s) { return _mm256_sra_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_shlv(I a, I s) { return _mm256_sllv_epi32(a, s); }
inline I i_shrv(I a, I s) { return _mm256_srlv_epi32(a, s); }
inline M i_equal(I a, I b) { return M(_mm256_cmpeq_epi32(a, b)); }
inline M i_less(I a, I b) { return M(_mm256_cmpgt_epi32(b, a)); }
inline __m128i narrow_min(I a) {
    __m128i v = _mm_min_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    v = _mm_min_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_min_epi32(v, _mm_shuffle_epi32(v, 0xb1));
}
inline __m128i narrow_max(I a) {
    __m128i v = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
}
inline M i_below_2_16(I a) { return i_equal(i_shr<16>(a), i_set(0)); }
inline void i_reduce(I low, I high, std::int32_t& lowest, std::int32_t& highest) {
    lowest = _mm_cvtsi128_si32(narrow_min(low));
    highest = _mm_cvtsi128_si32(narrow_max(high));
}

inline I i_prefix_sum(I a) {
    a = _mm256_add_epi32(a, _mm256_slli_si256(a, 4));
    a = _mm256_add_epi32(a, _mm256_slli_si256(a, 8));
    const I carry = _mm256_permute2x128_si256(_mm256_shuffle_epi32(a, 0xff), a, 0x08);
    return _mm256_add_epi32(a, carry);
}

inline M m_and(M a, M b) { return M(_mm256_and_si256(a.v, b.v)); }
inline M m_or(M a, M b) { return M(_mm256_or_si256(a.v, b.v)); }
inline M m_xor(M a, M b) { return M(_mm256_xor_si256(a.v, b.v)); }
inline M m_not(M a) { return M(_mm256_xor_si256(a.v, _mm256_set1_epi32(-1))); }
inline std::uint32_t m_bits(M a) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(a.v)));
}
inline F f_select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m.v)); }
inline I i_select(M m, I yes, I no) { return _mm256_blendv_epi8(no, yes, m.v); }

// Both halves convert exactly and their sum rounds once: what a direct conversion would give.
inline F f_of_u(I a) {
    const F high = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16));
    const F low = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)));
    return _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low);
}
inline F f_inverse(F a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
inline I i_truncate(F a) { return _mm256_cvttps_epi32(a); }
inline I i_gather(const std::uint32_t* table, I index) {
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index, 4);
}
inline I i_load_u8(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline I i_load_u16(const std::uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The low 16 bits of every lane.
inline __m128i low_halves(I v) {
    const I low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_castsi256_si128(packed);
}
inline void i_store_u16(std::uint16_t* p, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), low_halves(v));
}
inline void i_store_u8(std::uint8_t* p, I v) {
    const __m128i half = _mm_and_si128(low_halves(v), _mm_set1_epi16(0xff));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(half, half));
}
inline M m_of_bits(std::uint32_t bits) {
    const I bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const I v = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), bit);
    return M(_mm256_cmpeq_epi32(v, bit));
}

// Lane orders that pack the set lanes to the front, and that spread the front to the set lanes.
struct LaneOrders {
    alignas(32) std::int32_t pack[256][8];
    alignas(32) std::int32_t spread[256][8];
    constexpr LaneOrders() : pack(), spread() {
        for (int m = 0; m < 256; ++m)
            for (int lane = 0, next = 0; lane < 8; ++lane)
                if ((m >> lane) & 1) {
                    pack[m][next] = lane;
                    spread[m][lane] = next++;
                }
    }
};
constexpr LaneOrders kLaneOrders{};

inline I pack_lanes(I v, std::uint32_t bits) {
    return _mm256_permutevar8x32_epi32(v, i_load(kLaneOrders.pack[bits]));
}
inline I spread_lanes(I v, std::uint32_t bits) {
    return _mm256_permutevar8x32_epi32(v, i_load(kLaneOrders.spread[bits]));
}
// Lanes in `need` take the next 16-bit words in lane order below their own bits. Reads 16 bytes.
inline I take_words(I x, M need, const std::uint16_t*& p) {
    const std::uint32_t bits = m_bits(need);
    const I words = spread_lanes(i_load_u16(p), bits);
    p += __builtin_popcount(bits);
    return i_select(need, i_or(i_shl<16>(x), words), x);
}
// The low halves of the lanes in `give`, in lane order, end where p pointed; p moves to their
// start.
inline void give_words(I x, M give, std::uint16_t*& p) {
    const std::uint32_t bits = m_bits(give);
    const int count = __builtin_popcount(bits);
    std::uint16_t words[8];
    i_store_u16(words, pack_lanes(x, bits));
    p -= count;
    std::memcpy(p, words, static_cast<std::size_t>(count) * 2);
}
inline F f_load_half(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m128i half_of_f(F v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline void f_store_half(std::uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half_of_f(v));
}
inline F f_round_half(F v) { return _mm256_cvtph_ps(half_of_f(v)); }

// Bit planes of 64 codes held in eight vectors, eight planes at a time: byte `slice` of each code.
struct Bytes64 {
    __m256i low, high;  // codes 0-31 and 32-63
};
inline __m256i bytes_of_four(const I* q, __m128i s) {
    const I mask = _mm256_set1_epi32(0xff);
    const I a = _mm256_and_si256(_mm256_srl_epi32(q[0], s), mask);
    const I b = _mm256_and_si256(_mm256_srl_epi32(q[1], s), mask);
    const I c = _mm256_and_si256(_mm256_srl_epi32(q[2], s), mask);
    const I d = _mm256_and_si256(_mm256_srl_epi32(q[3], s), mask);
    const I packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
inline Bytes64 bytes_of(const I* q, int slice) {
    const __m128i s = _mm_cvtsi32_si128(8 * slice);
    return {bytes_of_four(q, s), bytes_of_four(q + 4, s)};
}
inline void write_planes(Bytes64 b, int planes, std::uint8_t* out) {
    // The top bit of every byte is what movemask reads: bring plane after plane up there.
    __m256i low = _mm256_sll_epi16(b.low, _mm_cvtsi32_si128(8 - planes));
    __m256i high = _mm256_sll_epi16(b.high, _mm_cvtsi32_si128(8 - planes));
    for (int p = planes - 1; p >= 0; --p) {
        const auto l = static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
        const auto h = static_cast<std::uint32_t>(_mm256_movemask_epi8(high));
        std::memcpy(out + 8 * p, &l, 4);
        std::memcpy(out + 8 * p + 4, &h, 4);
        low = _mm256_add_epi8(low, low);
        high = _mm256_add_epi8(high, high);
    }
}
inline __m256i spread_bits(std::uint32_t bits) {
    const __m256i pick = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), pick);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}
// Whether reading all eight costs less than not knowing how many there are.
constexpr bool kReadsEightPlanes = false;
inline Bytes64 read_planes(const std::uint8_t* in, int planes) {
    Bytes64 b{_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int p = planes - 1; p >= 0; --p) {
        std::uint32_t l, h;
        std::memcpy(&l, in + 8 * p, 4);
        std::memcpy(&h, in + 8 * p + 4, 4);
        // Doubling moves the planes so far up; subtracting all-ones sets the lowest.
        b.low = _mm256_sub_epi8(_mm256_add_epi8(b.low, b.low), spread_bits(l));
        b.high = _mm256_sub_epi8(_mm256_add_epi8(b.high, b.high), spread_bits(h));
    }
    return b;
}
inline Bytes64 keep_planes(Bytes64 b, int planes) {
    const __m256i kept = _mm256_set1_epi8(static_cast<char>((1u << planes) - 1));
    return {_mm256_and_si256(b.low, kept), _mm256_and_si256(b.high, kept)};
}
inline void merge_half(__m256i bytes, __m128i s, I* q) {
    __m128i half = _mm256_castsi256_si128(bytes);
    q[0] = _mm256_or_si256(q[0], _mm256_sll_epi32(_mm256_cvtepu8_epi32(half), s));
    q[1] =
        _mm256_or_si256(q[1], _mm256_sll_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(half, 8)), s));
    half = _mm256_extracti128_si256(bytes, 1);
    q[2] = _mm256_or_si256(q[2], _mm256_sll_epi32(_mm256_cvtepu8_epi32(half), s));
    q[3] =
        _mm256_or_si256(q[3], _mm256_sll_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(half, 8)), s));
}
inline void merge_bytes(Bytes64 b, int slice, I* q) {
    const __m128i s = _mm_cvtsi32_si128(8 * slice);
    merge_half(b.low, s, q);
    merge_half(b.high, s, q + 4);
}
inline std::uint64_t sign_plane(const I* q) {
    std::uint64_t m = 0;
    for (int i = 0; i < 8; ++i) {
        const int bits = _mm256_movemask_ps(_mm256_castsi256_ps(q[i]));
        m |= static_cast<std::uint64_t>(static_cast<unsigned>(bits)) << (8 * i);
    }
    return m;
}
inline I sign_lanes(std::uint64_t plane, int i) {
    const I bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const I v = _mm256_set1_epi32(static_cast<int>((plane >> (8 * i)) & 0xff));
    return _mm256_cmpeq_epi32(_mm256_and_si256(v, bit), bit);
}

// dst[c][r] = src[r][c] for a square of kLanes x kLanes.
inline void transpose_square(const std::int32_t* src, std::size_t src_stride, std::int32_t* dst,
                             std::size_t dst_stride) {
    I a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = i_load(src + i * src_stride);
    for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        a[4 * i] = _mm256_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm256_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm256_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm256_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        i_store(dst + i * dst_stride, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
        i_store(dst + (i + 4) * dst_stride, _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
    }
}
