// Sixteen 32-bit lanes on AVX-512 (F, BW, DQ, VL). Included inside the namespace of its level.

constexpr int kLanes = 16;
using F = __m512;   // float lanes
using I = __m512i;  // 32-bit integer lanes
using M = __mmask16;

inline F f_set(float v) { return _mm512_set1_ps(v); }
inline F f_load(const float* p) { return _mm512_loadu_ps(p); }
inline void f_store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline void f_stream(float* p, F v) { _mm512_stream_ps(p, v); }
// For targets that are aligned to 16 bytes only.
inline void f_stream_pieces(float* p, F v) {
    _mm_stream_ps(p, _mm512_castps512_ps128(v));
    _mm_stream_ps(p + 4, _mm512_extractf32x4_ps(v, 1));
    _mm_stream_ps(p + 8, _mm512_extractf32x4_ps(v, 2));
    _mm_stream_ps(p + 12, _mm512_extractf32x4_ps(v, 3));
}
inline void stream_fence() { _mm_sfence(); }
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_abs(F a) { return _mm512_abs_ps(a); }
inline F f_floor(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline M f_less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline I f_bits(F a) { return _mm512_castps_si512(a); }
inline F f_of_bits(I a) { return _mm512_castsi512_ps(a); }
inline I i_of_f(F a) { return _mm512_cvtps_epi32(a); }
inline F f_of_i(I a) { return _mm512_cvtepi32_ps(a); }

inline I i_set(std::int32_t v) { return _mm512_set1_epi32(v); }
inline I i_iota() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline I i_load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
inline void i_store(std::int32_t* p, I v) { _mm512_storeu_si512(p, v); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I i_mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I i_or(I a, I b) { return _mm512_or_si512(a, b); }
inline I i_xor(I a, I b) { return _mm512_xor_si512(a, b); }
inline I i_min(I a, I b) { return _mm512_min_epi32(a, b); }
inline I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
template <int S>
inline I i_shl(I a) {
    return _mm512_slli_epi32(a, S);
}
template <int S>
inline I i_shr(I a) {
    return _mm512_srli_epi32(a, S);
}
template <int S>
inline I i_sar(I a) {
    return _mm512_srai_epi32(a, S);
}
inline I i_shl(I a, int s) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_shr(I a, int s) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_sar(I a, int s) { return _mm512_sra_epi32(a, _mm_cvtsi32_si128(s)); }
inline I i_shlv(I a, I s) { return _mm512_sllv_epi32(a, s); }
inline I i_shrv(I a, I s) { return _mm512_srlv_epi32(a, s); }
inline M i_equal(I a, I b) { return _mm512_cmpeq_epi32_mask(a, b); }
inline M i_less(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
inline M i_below_2_16(I a) { return _mm512_cmplt_epu32_mask(a, _mm512_set1_epi32(0x10000)); }
// The least lane of one vector and the greatest of another, in one go: min(a) = ~max(~a).
inline void i_reduce(I low, I high, std::int32_t& lowest, std::int32_t& highest) {
    const I flipped = _mm512_xor_si512(low, _mm512_set1_epi32(-1));
    const I upper = _mm512_inserti64x4(high, _mm512_castsi512_si256(flipped), 1);
    I m = _mm512_max_epi32(upper, _mm512_shuffle_i64x2(high, flipped, 0xee));
    m = _mm512_max_epi32(m, _mm512_shuffle_i64x2(m, m, 0xb1));
    m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
    m = _mm512_max_epi32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
    highest = _mm_cvtsi128_si32(_mm512_castsi512_si128(m));
    lowest = ~_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(m, 2));
}

inline I i_prefix_sum(I a) {
    const I zero = _mm512_setzero_si512();
    a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 15));
    a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 14));
    a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 12));
    return _mm512_add_epi32(a, _mm512_alignr_epi32(a, zero, 8));
}

inline M m_and(M a, M b) { return static_cast<M>(a & b); }
inline M m_or(M a, M b) { return static_cast<M>(a | b); }
inline M m_not(M a) { return static_cast<M>(~a); }
inline M m_xor(M a, M b) { return static_cast<M>(a ^ b); }
inline std::uint32_t m_bits(M a) { return a; }
inline F f_select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
inline I i_select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }

inline F f_of_u(I a) { return _mm512_cvtepu32_ps(a); }
// 1 / a to within 2^-23: a 14-bit estimate and a Newton step.
inline F f_inverse(F a) {
    const F r = _mm512_rcp14_ps(a);
    return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(1.0f)), r);
}
inline I i_truncate(F a) { return _mm512_cvttps_epi32(a); }
inline I i_gather(const std::uint32_t* table, I index) {
    return _mm512_i32gather_epi32(index, table, 4);
}
inline I i_load_u16(const std::uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void i_store_u16(std::uint16_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}
inline I i_load_u8(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void i_store_u8(std::uint8_t* p, I v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
// Lanes in `need` take the next 16-bit words in lane order below their own bits. Reads 32 bytes.
inline I take_words(I x, M need, const std::uint16_t*& p) {
    const I words = _mm512_maskz_expand_epi32(need, i_load_u16(p));
    p += __builtin_popcount(need);
    return _mm512_mask_or_epi32(x, need, _mm512_slli_epi32(x, 16), words);
}
// The low halves of the lanes in `give`, in lane order, end where p pointed; p moves to their
// start.
inline void give_words(I x, M give, std::uint16_t*& p) {
    const int count = __builtin_popcount(give);
    p -= count;
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << count) - 1),
                             _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(give, x)));
}
inline M m_of_bits(std::uint32_t bits) { return static_cast<M>(bits); }
// 16-bit formats widen exactly; narrowing rounds to nearest, ties to even.
inline F f_load_half(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m256i half_of_f(F v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline void f_store_half(std::uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half_of_f(v));
}
inline F f_round_half(F v) { return _mm512_cvtph_ps(half_of_f(v)); }

// Bit planes of 64 codes held in four vectors, eight planes at a time: byte `slice` of every code.
struct Bytes64 {
    __m512i v;
};
inline Bytes64 bytes_of(const I* q, int slice) {
    const __m128i s = _mm_cvtsi32_si128(8 * slice);
    const __m128i a = _mm512_cvtepi32_epi8(_mm512_srl_epi32(q[0], s));
    const __m128i b = _mm512_cvtepi32_epi8(_mm512_srl_epi32(q[1], s));
    const __m128i c = _mm512_cvtepi32_epi8(_mm512_srl_epi32(q[2], s));
    const __m128i d = _mm512_cvtepi32_epi8(_mm512_srl_epi32(q[3], s));
    __m512i v = _mm512_castsi128_si512(a);
    v = _mm512_inserti32x4(v, b, 1);
    v = _mm512_inserti32x4(v, c, 2);
    v = _mm512_inserti32x4(v, d, 3);
    return {v};
}
// Every byte of a row has the row's bit.
struct BitRows {
    alignas(64) std::uint8_t row[8][64];
    constexpr BitRows() : row() {
        for (int p = 0; p < 8; ++p)
            for (int i = 0; i < 64; ++i) row[p][i] = static_cast<std::uint8_t>(1 << p);
    }
};
alignas(64) inline constexpr BitRows kBitRows;
inline void write_planes(Bytes64 b, int planes, std::uint8_t* out) {
    const std::uint8_t* rows = kBitRows.row[0];
    // Rows are to be read from memory: GCC would make each anew from a scalar, on the one port that
    // tests have.
    asm("" : "+r"(rows));
    for (int p = 0; p < planes; ++p) {
        const std::uint64_t m = _mm512_test_epi8_mask(b.v, _mm512_load_si512(rows + 64 * p));
        std::memcpy(out + 8 * p, &m, 8);
    }
}
// Whether reading all eight costs less than not knowing how many there are.
constexpr bool kReadsEightPlanes = true;
inline Bytes64 read_planes(const std::uint8_t* in, int planes) {
    __m512i v = _mm512_setzero_si512();
    for (int p = 0; p < planes; ++p) {
        std::uint64_t m;
        std::memcpy(&m, in + 8 * p, 8);
        v = _mm512_mask_add_epi8(v, m, v, _mm512_set1_epi8(static_cast<char>(1 << p)));
    }
    return {v};
}
// Bits above the first planes become 0.
inline Bytes64 keep_planes(Bytes64 b, int planes) {
    return {_mm512_and_si512(b.v, _mm512_set1_epi8(static_cast<char>((1u << planes) - 1)))};
}
inline void merge_bytes(Bytes64 b, int slice, I* q) {
    const __m128i s = _mm_cvtsi32_si128(8 * slice);
    q[0] = _mm512_or_si512(q[0],
                           _mm512_sll_epi32(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(b.v)), s));
    q[1] = _mm512_or_si512(
        q[1], _mm512_sll_epi32(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b.v, 1)), s));
    q[2] = _mm512_or_si512(
        q[2], _mm512_sll_epi32(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b.v, 2)), s));
    q[3] = _mm512_or_si512(
        q[3], _mm512_sll_epi32(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(b.v, 3)), s));
}
inline std::uint64_t sign_plane(const I* q) {
    std::uint64_t m = 0;
    for (int i = 0; i < 4; ++i)
        m |= static_cast<std::uint64_t>(_mm512_movepi32_mask(q[i])) << (16 * i);
    return m;
}
inline I sign_lanes(std::uint64_t plane, int i) {
    return _mm512_movm_epi32(static_cast<__mmask16>(plane >> (16 * i)));
}
inline I i_abs(I a) { return _mm512_abs_epi32(a); }

// dst[c][r] = src[r][c] for a square of kLanes x kLanes.
inline void transpose_square(const std::int32_t* src, std::size_t src_stride, std::int32_t* dst,
                             std::size_t dst_stride) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(src + i * src_stride);
    for (int i = 0; i < 8; ++i) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        _mm512_storeu_si512(dst + i * dst_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
        _mm512_storeu_si512(dst + (i + 4) * dst_stride,
                            _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
        _mm512_storeu_si512(dst + (i + 8) * dst_stride, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
        _mm512_storeu_si512(dst + (i + 12) * dst_stride,
                            _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xdd));
    }
}
