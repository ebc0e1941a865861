// Values to integer codes and back, one vector at a time; every rule checks its own result.
//
// Theorem (docs/guarantees.md): rounding is monotone and the bound is representable, so a true
// error above the bound makes the rounded error at least the bound. The strict test below
// therefore accepts a code only if the bound holds in exact arithmetic.

struct Constants {
    F step, inverse, bound, limit, half;
    I divisor, sign_bit, one, minus_one, zero;
    bool negative_zero;
};

// The dither of consecutive items.
class Shifts {
  public:
    explicit Shifts(const Quantiser& q) : table_(q.shifts), seed_(q.seed) {}

    F at(std::size_t position) {
        const auto index = static_cast<std::uint32_t>(position);
        const std::uint32_t place = index % dither_page;
        if (index / dither_page != page_) {
            page_ = index / dither_page;
            base_ = i_set(static_cast<std::int32_t>(dither_base(page_, seed_)));
        }
        if (__builtin_expect(place + kLanes > dither_page, 0)) return across_pages(index);
        return f_sub(f_of_bits(i_xor(i_load(table_ + place), base_)), f_set(1.5f));
    }

  private:
    F across_pages(std::uint32_t index) const {
        std::int32_t bits[kLanes];
        for (std::uint32_t i = 0; i < kLanes; ++i)
            bits[i] = table_[(index + i) % dither_page] ^
                      static_cast<std::int32_t>(dither_base((index + i) / dither_page, seed_));
        return f_sub(f_of_bits(i_load(bits)), f_set(1.5f));
    }

    const std::int32_t* table_;
    std::uint32_t seed_, page_ = ~0u;
    I base_{};
};

inline Constants constants_of(const Quantiser& q) {
    Constants c;
    c.step = f_set(static_cast<float>(q.step));
    c.inverse = f_set(static_cast<float>(q.inverse));
    c.bound = f_set(static_cast<float>(q.bound));
    c.limit = f_set(1073741824.0f);  // 2^30: codes beyond it are never used by the lossy rules
    c.half = f_set(0.5f);
    c.divisor = i_set(q.rule == Rule::pointwise ? static_cast<std::int32_t>(q.step) : 0);
    c.sign_bit = i_set(INT32_MIN);
    c.one = i_set(1);
    c.minus_one = i_set(-1);
    c.zero = i_set(0);
    c.negative_zero = q.negative_zero;
    return c;
}

template <Dtype D>
struct Lane;  // how an element type up to 32 bits enters and leaves float lanes

template <>
struct Lane<Dtype::f32> {
    using Item = float;
    static F load(const Item* p) { return f_load(p); }
    static void store(Item* p, F v) { f_store(p, v); }
    static F round(F v) { return v; }
};
template <>
struct Lane<Dtype::f16> {
    using Item = std::uint16_t;
    static F load(const Item* p) { return f_load_half(p); }
    static void store(Item* p, F v) { f_store_half(p, v); }
    static F round(F v) { return f_round_half(v); }
};
template <>
struct Lane<Dtype::bf16> {
    using Item = std::uint16_t;
    static I rounded(F v) {
        const I b = f_bits(v);
        const I odd = i_and(i_shr<16>(b), i_set(1));
        return i_shr<16>(i_add(b, i_add(odd, i_set(0x7fff))));
    }
    static F load(const Item* p) { return f_of_bits(i_shl<16>(i_load_u16(p))); }
    static void store(Item* p, F v) { i_store_u16(p, rounded(v)); }
    static F round(F v) { return f_of_bits(i_shl<16>(rounded(v))); }
};

inline double dither_double(std::uint32_t index, std::uint32_t seed) {
    const std::uint32_t u =
        dither_entry(index % dither_page, seed) ^ dither_base(index / dither_page, seed);
    return static_cast<double>(u) * 0x1p-23 - 0.5;
}

template <Dtype D, Rule R>
inline F reconstruct(I code, F dither, const Constants& c) {
    using L = Lane<D>;
    if constexpr (R == Rule::exact) {
        // The sortable map: negative patterns in reverse order below zero. An involution.
        const I bits = i_xor(code, i_shr<1>(i_sar<31>(code)));
        return f_of_bits(bits);
    } else if constexpr (R == Rule::plain) {
        if (!c.negative_zero) return L::round(f_mul(f_of_i(code), c.step));
        const M below = i_less(code, c.zero);
        const I k = i_select(below, i_add(code, c.one), code);
        const F v = f_mul(f_of_i(k), c.step);
        return L::round(f_select(i_equal(code, c.minus_one), f_of_bits(c.sign_bit), v));
    } else {
        const M below = i_less(code, c.zero);
        const M is_zero = i_equal(code, c.zero);
        F v;
        if constexpr (R == Rule::pointwise) {
            I k = code;
            if (c.negative_zero) k = i_select(below, i_add(k, c.one), k);
            const I bits = i_mul(i_abs(k), c.divisor);
            v = f_of_bits(i_select(below, i_or(bits, c.sign_bit), bits));
        } else {
            I k = i_sub(code, i_select(below, c.zero, c.one));
            if (c.negative_zero) k = i_select(below, i_add(code, c.one), k);
            const F shift = R == Rule::signs ? c.half : dither;
            v = f_mul(f_add(f_of_i(k), shift), c.step);
            v = f_select(is_zero, f_of_bits(c.zero), v);
        }
        if (c.negative_zero) v = f_select(i_equal(code, c.minus_one), f_of_bits(c.sign_bit), v);
        return L::round(v);
    }
}

// The code of each lane and, in `good`, the lanes whose reconstruction keeps the bound.
template <Dtype D, Rule R>
inline I quantise(F x, F dither, const Constants& c, M& good) {
    using L = Lane<D>;
    const I bits = f_bits(x);
    if constexpr (R == Rule::exact) {
        good = m_not(M{});
        return i_xor(bits, i_shr<1>(i_sar<31>(bits)));
    } else if constexpr (R == Rule::plain) {
        const F t = f_mul(x, c.inverse);
        const I k = i_of_f(t);
        const F rec = L::round(f_mul(f_of_i(k), c.step));
        const M near = f_less(f_abs(f_sub(x, rec)), c.bound);
        const M minus_zero = i_equal(bits, c.sign_bit);
        if (!c.negative_zero) {
            good = m_and(near, m_not(minus_zero));
            return k;
        }
        good = m_and(near, f_less(f_abs(t), c.limit));
        const I code = i_select(i_less(k, c.zero), i_sub(k, c.one), k);
        return i_select(minus_zero, c.minus_one, code);
    } else {
        const I magnitude = i_and(bits, i_set(INT32_MAX));
        const M is_zero = i_equal(magnitude, c.zero);
        const M minus_zero = i_equal(bits, c.sign_bit);
        I code;
        M near;
        if constexpr (R == Rule::pointwise) {
            const I k = i_of_f(f_mul(f_of_i(magnitude), c.inverse));
            const I rec_bits = i_or(i_mul(k, c.divisor), i_and(bits, c.sign_bit));
            const F rec = L::round(f_of_bits(rec_bits));
            // Below 2^-100 products leave the range where their rounding is relative.
            near = m_and(f_less(f_abs(f_sub(x, rec)), f_mul(c.bound, f_abs(x))),
                         f_less(f_set(7.888609052210118e-31f), f_abs(x)));
            near = m_and(near, i_less(c.zero, k));
            code = i_select(i_less(bits, c.zero), i_sub(c.zero, k), k);
            if (c.negative_zero) code = i_select(i_less(code, c.zero), i_sub(code, c.one), code);
        } else {
            const F t = f_mul(x, c.inverse);
            F shift, moved;
            if constexpr (R == Rule::signs) {
                shift = c.half;
                moved = t;
            } else {
                shift = dither;
                moved = f_add(t, f_sub(c.half, shift));
            }
            const I k = i_of_f(f_floor(moved));
            const F rec = L::round(f_mul(f_add(f_of_i(k), shift), c.step));
            near = m_and(f_less(f_abs(f_sub(x, rec)), c.bound), f_less(f_abs(t), c.limit));
            // Only zero comes back as zero: who counts on it finds the zeros of x in the result.
            near = m_and(near, m_not(i_equal(i_shl<1>(f_bits(rec)), c.zero)));
            if constexpr (R == Rule::signs) {
                const I flip = i_xor(f_bits(rec), bits);
                near = m_and(near, m_not(i_less(flip, c.zero)));
            }
            const M below = i_less(k, c.zero);
            code = i_add(k, i_select(below, c.zero, c.one));
            if (c.negative_zero) code = i_select(below, i_sub(k, c.one), code);
        }
        code = i_select(is_zero, c.zero, code);
        good = m_or(near, is_zero);
        if (c.negative_zero)
            code = i_select(minus_zero, c.minus_one, code);
        else
            good = m_and(good, m_not(minus_zero));
        return code;
    }
}
