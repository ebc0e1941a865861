// A run of elements to codes and back, for every element type and rule.

// Where a value failed its check: positions in the chunk, in ascending order.
struct Failures {
    std::uint32_t* index;
    std::uint32_t count;
};

// A value that fails takes the code of the value before it, so that it costs its neighbours
// nothing; `carry` is that code, 0 at the start of a chunk.
inline void carry_over(std::int32_t* codes, std::uint64_t bad, std::size_t count, std::size_t at,
                       std::int32_t& carry, Failures& failed) {
    for (std::size_t i = 0; i < count; ++i) {
        if ((bad >> i) & 1) {
            codes[i] = carry;
            failed.index[failed.count++] = static_cast<std::uint32_t>(at + i);
        } else {
            carry = codes[i];
        }
    }
}

template <Dtype D, Rule R>
inline std::uint64_t quantise_block(const typename Lane<D>::Item* src, std::size_t index,
                                    const Constants& c, Shifts& shifts, I* q) {
    constexpr int vectors = static_cast<int>(kBlock) / kLanes;
    std::uint64_t bad = 0;
    M any{};
    M good[vectors];
    for (int i = 0; i < vectors; ++i) {
        F dither = c.half;
        if constexpr (R == Rule::dither) dither = shifts.at(index + kLanes * i);
        q[i] = quantise<D, R>(Lane<D>::load(src + kLanes * i), dither, c, good[i]);
        any = m_or(any, m_not(good[i]));
    }
    if (__builtin_expect(m_bits(any) != 0, 0)) {
        for (int i = 0; i < vectors; ++i)
            bad |= static_cast<std::uint64_t>(m_bits(m_not(good[i]))) << (kLanes * i);
    }
    return bad;
}

template <Dtype D, Rule R>
inline void codes_of_floats(const Quantiser& quantiser, const void* source, std::size_t first,
                            std::size_t place, std::size_t n, std::int32_t& carry,
                            std::int32_t* codes, Failures& failed) {
    using Item = typename Lane<D>::Item;
    const Constants c = constants_of(quantiser);
    Shifts shifts(quantiser);
    const auto* src = static_cast<const Item*>(source);
    for (std::size_t at = 0; at < n; at += kBlock) {
        const std::size_t count = n - at < kBlock ? n - at : kBlock;
        Item tail[kBlock];
        const Item* items = src + at;
        if (count < kBlock) {
            for (std::size_t i = 0; i < kBlock; ++i) tail[i] = items[i < count ? i : count - 1];
            items = tail;
        }
        I q[kBlock / kLanes];
        const std::uint64_t bad = quantise_block<D, R>(items, first + at, c, shifts, q);
        std::int32_t* out = codes + at;  // the buffer holds whole blocks
        for (std::size_t i = 0; i < kBlock / kLanes; ++i) i_store(out + kLanes * i, q[i]);
        if (bad != 0)
            carry_over(out, bad, count, place + at, carry, failed);
        else
            carry = out[count - 1];
    }
}

template <Dtype D, Rule R>
inline void floats_of_codes(const Quantiser& quantiser, const std::int32_t* codes,
                            std::size_t first, std::size_t n, bool stream, void* target) {
    using Item = typename Lane<D>::Item;
    const Constants c = constants_of(quantiser);
    Shifts shifts(quantiser);
    const auto dither = [&](std::size_t index) {
        return R == Rule::dither ? shifts.at(index) : c.half;
    };
    auto* dst = static_cast<Item*>(target);
    std::size_t at = 0;
    if constexpr (D == Dtype::f32 && R != Rule::dither) {
        if (stream && reinterpret_cast<std::uintptr_t>(target) % 64 == 0)
            for (; at + kLanes <= n; at += kLanes)
                f_stream(dst + at, reconstruct<D, R>(i_load(codes + at), c.half, c));
    }
    for (; at + kLanes <= n; at += kLanes) {
        Lane<D>::store(dst + at, reconstruct<D, R>(i_load(codes + at), dither(first + at), c));
    }
    if (at < n) {
        std::int32_t in[kLanes] = {};
        Item out[kLanes];
        for (std::size_t i = at; i < n; ++i) in[i - at] = codes[i];
        Lane<D>::store(out, reconstruct<D, R>(i_load(in), dither(first + at), c));
        for (std::size_t i = at; i < n; ++i) dst[i] = out[i - at];
    }
}

// Double precision: the same rules in double arithmetic, one value at a time.
template <Rule R>
inline double reconstruct_double(std::int32_t code, std::uint32_t index, const Quantiser& q) {
    if (q.negative_zero && code == -1) return -0.0;
    std::int64_t k = code;
    if (q.negative_zero && code < 0) k += 1;
    if constexpr (R == Rule::plain) {
        return static_cast<double>(k) * q.step;
    } else if constexpr (R == Rule::pointwise) {
        const auto magnitude = static_cast<std::uint64_t>(k < 0 ? -k : k);
        const std::uint64_t bits = magnitude * static_cast<std::uint64_t>(q.step);
        return __builtin_bit_cast(double, bits | (code < 0 ? std::uint64_t{1} << 63 : 0));
    } else {
        if (code == 0) return 0.0;
        if (code > 0) k -= 1;
        double shift = 0.5;
        if constexpr (R == Rule::dither) shift = dither_double(index, q.seed);
        return (static_cast<double>(k) + shift) * q.step;
    }
}

template <Rule R>
inline bool quantise_double(double x, std::uint32_t index, const Quantiser& q, std::int32_t& code) {
    constexpr double limit = 1073741824.0;
    const bool negative = __builtin_bit_cast(std::int64_t, x) < 0;
    if (x == 0.0) {
        code = negative ? -1 : 0;
        return !negative || q.negative_zero;
    }
    std::int64_t k = 0;
    if constexpr (R == Rule::pointwise) {
        const double magnitude = __builtin_fabs(x);
        if (!(magnitude > 0x1p-900 && magnitude < __builtin_inf())) return false;
        const auto bits = static_cast<double>(__builtin_bit_cast(std::int64_t, magnitude));
        k = static_cast<std::int64_t>(__builtin_rint(bits * q.inverse));
        if (k <= 0 || static_cast<double>(k) >= limit) return false;
        code = static_cast<std::int32_t>(negative ? -k : k);
        if (negative && q.negative_zero) code -= 1;
        const double rec = reconstruct_double<R>(code, index, q);
        return __builtin_fabs(x - rec) < q.bound * magnitude;
    } else {
        const double t = x * q.inverse;
        if (!(__builtin_fabs(t) < limit)) return false;
        if constexpr (R == Rule::plain) {
            k = static_cast<std::int64_t>(__builtin_rint(t));
            code = static_cast<std::int32_t>(k);
        } else {
            double moved = t;
            if constexpr (R == Rule::dither) moved = t + (0.5 - dither_double(index, q.seed));
            k = static_cast<std::int64_t>(__builtin_floor(moved));
            code = static_cast<std::int32_t>(k >= 0 ? k + 1 : k);
        }
        if (k < 0 && q.negative_zero) code -= 1;
        const double rec = reconstruct_double<R>(code, index, q);
        if (!(__builtin_fabs(x - rec) < q.bound)) return false;
        if constexpr (R == Rule::signs) return rec != 0.0 && (rec < 0.0) == negative;
        if constexpr (R == Rule::dither) return rec != 0.0;
        return true;
    }
}

template <Rule R>
inline void codes_of_doubles(const Quantiser& q, const void* source, std::size_t first,
                             std::size_t place, std::size_t n, std::int32_t& carry,
                             std::int32_t* codes, Failures& failed) {
    const auto* src = static_cast<const double*>(source);
    for (std::size_t i = 0; i < n; ++i) {
        std::int32_t code = 0;
        if (quantise_double<R>(src[i], static_cast<std::uint32_t>(first + i), q, code))
            carry = code;
        else
            failed.index[failed.count++] = static_cast<std::uint32_t>(place + i);
        codes[i] = carry;
    }
}

template <Rule R>
inline void doubles_of_codes(const Quantiser& q, const std::int32_t* codes, std::size_t first,
                             std::size_t n, void* target) {
    auto* dst = static_cast<double*>(target);
    for (std::size_t i = 0; i < n; ++i)
        dst[i] = reconstruct_double<R>(codes[i], static_cast<std::uint32_t>(first + i), q);
}

// Exact codes: integers are themselves, floats the sortable map of their pattern, 64-bit items two
// planes of words (all high words, then all low words).
inline std::int32_t sortable(std::int32_t bits) { return bits ^ ((bits >> 31) & INT32_MAX); }
inline std::int32_t sortable16(std::uint16_t bits) {
    const std::int32_t v = static_cast<std::int16_t>(bits);
    return v ^ ((v >> 31) & INT16_MAX);
}

template <class T, class Map>
inline void map_items(const void* source, std::size_t n, std::int32_t* codes, Map map) {
    const auto* src = static_cast<const T*>(source);
    for (std::size_t i = 0; i < n; ++i) codes[i] = map(src[i]);
}
template <class T, class Map>
inline void map_codes(const std::int32_t* codes, std::size_t n, void* target, Map map) {
    auto* dst = static_cast<T*>(target);
    for (std::size_t i = 0; i < n; ++i) dst[i] = static_cast<T>(map(codes[i]));
}

inline void codes_of_items(Dtype d, const void* source, std::size_t n, std::int32_t* codes) {
    const auto same = [](auto v) { return static_cast<std::int32_t>(v); };
    switch (d) {
        case Dtype::i8:
            return map_items<std::int8_t>(source, n, codes, same);
        case Dtype::u8:
            return map_items<std::uint8_t>(source, n, codes, same);
        case Dtype::boolean:
            return map_items<std::uint8_t>(source, n, codes, [](std::uint8_t v) { return v != 0; });
        case Dtype::i16:
            return map_items<std::int16_t>(source, n, codes, same);
        case Dtype::u16:
            return map_items<std::uint16_t>(source, n, codes, same);
        case Dtype::f16:
        case Dtype::bf16:
            return map_items<std::uint16_t>(source, n, codes, sortable16);
        case Dtype::i32:
        case Dtype::u32:
            return map_items<std::uint32_t>(source, n, codes, same);
        case Dtype::f32:
            return map_items<std::int32_t>(source, n, codes, sortable);
        case Dtype::f64:
        case Dtype::i64:
        case Dtype::u64: {
            const auto* src = static_cast<const std::uint64_t*>(source);
            for (std::size_t i = 0; i < n; ++i) {
                codes[i] = static_cast<std::int32_t>(src[i] >> 32);
                codes[n + i] = static_cast<std::int32_t>(src[i]);
            }
            return;
        }
    }
}

inline void items_of_codes(Dtype d, const std::int32_t* codes, std::size_t n, void* target) {
    const auto same = [](std::int32_t v) { return v; };
    switch (d) {
        case Dtype::i8:
        case Dtype::u8:
            return map_codes<std::uint8_t>(codes, n, target, same);
        case Dtype::boolean:
            // A bool other than 0 or 1 is undefined behaviour in the host: hostile codes are cut.
            return map_codes<std::uint8_t>(codes, n, target, [](std::int32_t v) { return v & 1; });
        case Dtype::i16:
        case Dtype::u16:
            return map_codes<std::uint16_t>(codes, n, target, same);
        case Dtype::f16:
        case Dtype::bf16:
            return map_codes<std::uint16_t>(codes, n, target, [](std::int32_t v) {
                return sortable16(static_cast<std::uint16_t>(v));
            });
        case Dtype::i32:
        case Dtype::u32:
            return map_codes<std::uint32_t>(codes, n, target, same);
        case Dtype::f32:
            return map_codes<std::int32_t>(codes, n, target, sortable);
        case Dtype::f64:
        case Dtype::i64:
        case Dtype::u64: {
            auto* dst = static_cast<std::uint64_t*>(target);
            for (std::size_t i = 0; i < n; ++i)
                dst[i] = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(codes[i])) << 32) |
                         static_cast<std::uint32_t>(codes[n + i]);
            return;
        }
    }
}

// Calls body with the dtype and rule as constants, for the types that live in float lanes.
template <class Body>
inline bool with_float_lanes(Dtype d, Rule r, Body&& body) {
    const auto pick = [&](auto dtype) {
        switch (r) {
            case Rule::plain:
                return body(dtype, Constant<Rule::plain>{}), true;
            case Rule::signs:
                return body(dtype, Constant<Rule::signs>{}), true;
            case Rule::dither:
                return body(dtype, Constant<Rule::dither>{}), true;
            case Rule::pointwise:
                return body(dtype, Constant<Rule::pointwise>{}), true;
            case Rule::exact:
                return false;
        }
        return false;
    };
    switch (d) {
        case Dtype::f32:
            return pick(Constant<Dtype::f32>{});
        case Dtype::f16:
            return pick(Constant<Dtype::f16>{});
        case Dtype::bf16:
            return pick(Constant<Dtype::bf16>{});
        default:
            return false;
    }
}

// Codes of n items. `first` is the index of the first in the array, `place` in the chunk; codes has
// room for whole blocks; `carry` goes on from run to run.
inline void encode_codes(const Quantiser& q, const void* source, std::size_t first,
                         std::size_t place, std::size_t n, std::int32_t& carry, std::int32_t* codes,
                         Failures& failed) {
    if (q.rule == Rule::exact) return codes_of_items(q.dtype, source, n, codes);
    if (with_float_lanes(q.dtype, q.rule, [&](auto d, auto r) {
            codes_of_floats<d.value, r.value>(q, source, first, place, n, carry, codes, failed);
        }))
        return;
    switch (q.rule) {
        case Rule::plain:
            return codes_of_doubles<Rule::plain>(q, source, first, place, n, carry, codes, failed);
        case Rule::signs:
            return codes_of_doubles<Rule::signs>(q, source, first, place, n, carry, codes, failed);
        case Rule::dither:
            return codes_of_doubles<Rule::dither>(q, source, first, place, n, carry, codes, failed);
        default:
            return codes_of_doubles<Rule::pointwise>(q, source, first, place, n, carry, codes,
                                                     failed);
    }
}

// `stream`: write around the caches where that is possible; the caller fences.
inline void decode_codes(const Quantiser& q, const std::int32_t* codes, std::size_t first,
                         std::size_t n, bool stream, void* target) {
    if (q.rule == Rule::exact) return items_of_codes(q.dtype, codes, n, target);
    if (with_float_lanes(q.dtype, q.rule, [&](auto d, auto r) {
            floats_of_codes<d.value, r.value>(q, codes, first, n, stream, target);
        }))
        return;
    switch (q.rule) {
        case Rule::plain:
            return doubles_of_codes<Rule::plain>(q, codes, first, n, target);
        case Rule::signs:
            return doubles_of_codes<Rule::signs>(q, codes, first, n, target);
        case Rule::dither:
            return doubles_of_codes<Rule::dither>(q, codes, first, n, target);
        default:
            return doubles_of_codes<Rule::pointwise>(q, codes, first, n, target);
    }
}
