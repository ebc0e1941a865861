// One 32-bit lane in portable C++. Included inside the namespace of its level.

constexpr int kLanes = 1;
using F = float;
using I = std::int32_t;
using U = std::uint32_t;
struct M {
    bool v = false;
};

inline F f_set(float v) { return v; }
inline F f_load(const float* p) { return *p; }
inline void f_store(float* p, F v) { *p = v; }
inline void f_stream(float* p, F v) { *p = v; }
inline void f_stream_pieces(float* p, F v) { *p = v; }
inline void stream_fence() {}
inline F f_add(F a, F b) { return a + b; }
inline F f_sub(F a, F b) { return a - b; }
inline F f_mul(F a, F b) { return a * b; }
inline I f_bits(F a) { return __builtin_bit_cast(I, a); }
inline F f_of_bits(I a) { return __builtin_bit_cast(F, a); }
inline F f_abs(F a) { return f_of_bits(f_bits(a) & INT32_MAX); }
inline F f_floor(F a) { return __builtin_floorf(a); }
inline M f_less(F a, F b) { return {a < b}; }
// Nearest, ties to even; what does not fit, NaN included, becomes INT32_MIN as on x86.
inline I i_of_f(F a) {
    if (!(a >= -2147483648.0f && a < 2147483648.0f)) return INT32_MIN;
    return static_cast<I>(__builtin_rintf(a));
}
inline F f_of_i(I a) { return static_cast<F>(a); }

inline I i_set(std::int32_t v) { return v; }
inline I i_iota() { return 0; }
inline I i_load(const std::int32_t* p) { return *p; }
inline void i_store(std::int32_t* p, I v) { *p = v; }
inline I i_add(I a, I b) { return static_cast<I>(static_cast<U>(a) + static_cast<U>(b)); }
inline I i_sub(I a, I b) { return static_cast<I>(static_cast<U>(a) - static_cast<U>(b)); }
inline I i_mul(I a, I b) { return static_cast<I>(static_cast<U>(a) * static_cast<U>(b)); }
inline I i_and(I a, I b) { return a & b; }
inline I i_or(I a, I b) { return a | b; }
inline I i_xor(I a, I b) { return a ^ b; }
inline I i_min(I a, I b) { return a < b ? a : b; }
inline I i_max(I a, I b) { return a > b ? a : b; }
inline I i_abs(I a) { return a < 0 ? i_sub(0, a) : a; }
inline I i_shl(I a, int s) { return s > 31 ? 0 : static_cast<I>(static_cast<U>(a) << s); }
inline I i_shr(I a, int s) { return s > 31 ? 0 : static_cast<I>(static_cast<U>(a) >> s); }
inline I i_sar(I a, int s) { return a >> (s > 31 ? 31 : s); }
template <int S>
inline I i_shl(I a) {
    return i_shl(a, S);
}
template <int S>
inline I i_shr(I a) {
    return i_shr(a, S);
}
template <int S>
inline I i_sar(I a) {
    return i_sar(a, S);
}
inline I i_shlv(I a, I s) { return i_shl(a, s); }
inline I i_shrv(I a, I s) { return i_shr(a, s); }
inline M i_equal(I a, I b) { return {a == b}; }
inline M i_less(I a, I b) { return {a < b}; }
inline M i_below_2_16(I a) { return i_equal(i_shr<16>(a), i_set(0)); }
inline void i_reduce(I low, I high, std::int32_t& lowest, std::int32_t& highest) {
    lowest = low;
    highest = high;
}

inline I i_prefix_sum(I a) { return a; }

inline M m_and(M a, M b) { return {a.v && b.v}; }
inline M m_or(M a, M b) { return {a.v || b.v}; }
inline M m_xor(M a, M b) { return {a.v != b.v}; }
inline M m_not(M a) { return {!a.v}; }
inline std::uint32_t m_bits(M a) { return a.v ? 1u : 0u; }
inline F f_select(M m, F yes, F no) { return m.v ? yes : no; }
inline I i_select(M m, I yes, I no) { return m.v ? yes : no; }

inline F f_of_u(I a) { return static_cast<F>(static_cast<U>(a)); }
inline F f_inverse(F a) { return 1.0f / a; }
inline I i_truncate(F a) { return static_cast<I>(a); }
inline I i_gather(const std::uint32_t* table, I index) { return static_cast<I>(table[index]); }
inline I i_load_u8(const std::uint8_t* p) { return *p; }
inline void i_store_u8(std::uint8_t* p, I v) { *p = static_cast<std::uint8_t>(v & 0xff); }
inline M m_of_bits(std::uint32_t bits) { return {(bits & 1) != 0}; }
// A lane that needs it takes the next 16-bit word below its own bits.
inline I take_words(I x, M need, const std::uint16_t*& p) {
    return need.v ? i_or(i_shl(x, 16), *p++) : x;
}
inline void give_words(I x, M give, std::uint16_t*& p) {
    if (give.v) *--p = static_cast<std::uint16_t>(x & 0xffff);
}
inline F f_of_half(std::uint16_t h) {
    const U sign = static_cast<U>(h & 0x8000) << 16;
    const U exponent = (h >> 10) & 31;
    const U mantissa = h & 0x3ff;
    if (exponent == 31) return __builtin_bit_cast(F, sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
        return __builtin_bit_cast(F, sign | ((exponent + 112) << 23) | (mantissa << 13));
    const F tiny = static_cast<F>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    return __builtin_bit_cast(F, __builtin_bit_cast(U, tiny) | sign);
}
inline std::uint16_t half_of_f(F v) {
    const U bits = __builtin_bit_cast(U, v);
    const U sign = (bits >> 16) & 0x8000;
    const U magnitude = bits & INT32_MAX;
    if (magnitude > 0x7f800000u)
        return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000u) {
        // Adding 2^-1 lets the unit round to a multiple of 2^-24, the spacing of half denormals.
        const F sum = __builtin_bit_cast(F, magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (__builtin_bit_cast(U, sum) - 0x3f000000u));
    }
    const U rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
inline F f_load_half(const std::uint16_t* p) { return f_of_half(*p); }
inline void f_store_half(std::uint16_t* p, F v) { *p = half_of_f(v); }
inline F f_round_half(F v) { return f_of_half(half_of_f(v)); }
inline I i_load_u16(const std::uint16_t* p) { return *p; }
inline void i_store_u16(std::uint16_t* p, I v) { *p = static_cast<std::uint16_t>(v & 0xffff); }

// Bit planes of 64 codes, eight planes at a time: byte `slice` of each code.
struct Bytes64 {
    std::uint64_t v[8];
};
// Transposes an 8 x 8 matrix of bits held in a word (row = byte); its own inverse.
inline std::uint64_t transpose_bits(std::uint64_t x) {
    std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAULL;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCULL;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ULL;
    return x ^ t ^ (t << 28);
}
inline Bytes64 bytes_of(const I* q, int slice) {
    Bytes64 b;
    for (int g = 0; g < 8; ++g) {
        std::uint64_t word = 0;
        for (int i = 0; i < 8; ++i) {
            const U byte = (static_cast<U>(q[8 * g + i]) >> (8 * slice)) & 0xff;
            word |= static_cast<std::uint64_t>(byte) << (8 * i);
        }
        b.v[g] = transpose_bits(word);
    }
    return b;
}
inline void write_planes(Bytes64 b, int planes, std::uint8_t* out) {
    for (int p = 0; p < planes; ++p)
        for (int g = 0; g < 8; ++g) out[8 * p + g] = static_cast<std::uint8_t>(b.v[g] >> (8 * p));
}
// Whether reading all eight costs less than not knowing how many there are.
constexpr bool kReadsEightPlanes = false;
inline Bytes64 read_planes(const std::uint8_t* in, int planes) {
    Bytes64 b;
    for (int g = 0; g < 8; ++g) {
        std::uint64_t word = 0;
        for (int p = 0; p < planes; ++p)
            word |= static_cast<std::uint64_t>(in[8 * p + g]) << (8 * p);
        b.v[g] = word;
    }
    return b;
}
inline Bytes64 keep_planes(Bytes64 b, int planes) {
    for (std::uint64_t& word : b.v)
        for (int p = planes; p < 8; ++p) word &= ~(std::uint64_t{0xff} << (8 * p));
    return b;
}
inline void merge_bytes(Bytes64 b, int slice, I* q) {
    for (int g = 0; g < 8; ++g) {
        const std::uint64_t word = transpose_bits(b.v[g]);
        for (int i = 0; i < 8; ++i) {
            const U byte = static_cast<U>(word >> (8 * i)) & 0xff;
            q[8 * g + i] = static_cast<I>(static_cast<U>(q[8 * g + i]) | (byte << (8 * slice)));
        }
    }
}
inline std::uint64_t sign_plane(const I* q) {
    std::uint64_t m = 0;
    for (int i = 0; i < 64; ++i) m |= static_cast<std::uint64_t>(q[i] < 0) << i;
    return m;
}
inline I sign_lanes(std::uint64_t plane, int i) { return -static_cast<I>((plane >> i) & 1); }

inline void transpose_square(const std::int32_t* src, std::size_t, std::int32_t* dst, std::size_t) {
    *dst = *src;
}
