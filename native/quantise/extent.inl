// The smallest and the largest finite value of a run.

template <Dtype D>
inline void extent_of_floats(const void* source, std::size_t n, Extent& e) {
    using L = Lane<D>;
    const auto* src = static_cast<const typename L::Item*>(source);
    const F infinity = f_set(__builtin_inff());
    F low = infinity, high = f_set(-__builtin_inff());
    I count = i_set(0);
    typename L::Item tail[kLanes];
    for (std::size_t i = 0; i < n; i += kLanes) {
        const typename L::Item* items = src + i;
        std::size_t here = kLanes;
        if (n - i < static_cast<std::size_t>(kLanes)) {
            here = n - i;
            // Repeating the last item changes neither end; the count is put right below.
            for (std::size_t l = 0; l < kLanes; ++l) tail[l] = items[l < here ? l : here - 1];
            items = tail;
        }
        const F x = L::load(items);
        const M finite = f_less(f_abs(x), infinity);
        low = f_select(m_and(finite, f_less(x, low)), x, low);
        high = f_select(m_and(finite, f_less(high, x)), x, high);
        count = i_sub(count, i_select(finite, i_set(-1), i_set(0)));
        if (here < kLanes) {
            const std::uint32_t bits = m_bits(finite) >> here;
            e.count -= static_cast<std::uint64_t>(__builtin_popcount(bits));
        }
    }
    float lows[kLanes], highs[kLanes];
    std::int32_t counts[kLanes];
    f_store(lows, low);
    f_store(highs, high);
    i_store(counts, count);
    for (int l = 0; l < kLanes; ++l) {
        e.count += static_cast<std::uint64_t>(static_cast<std::uint32_t>(counts[l]));
        if (lows[l] < e.low) e.low = lows[l];
        if (highs[l] > e.high) e.high = highs[l];
    }
}

inline void extent_of_doubles(const void* source, std::size_t n, Extent& e) {
    const auto* src = static_cast<const double*>(source);
    for (std::size_t i = 0; i < n; ++i) {
        if (!(__builtin_fabs(src[i]) < __builtin_inf())) continue;
        ++e.count;
        if (src[i] < e.low) e.low = src[i];
        if (src[i] > e.high) e.high = src[i];
    }
}

// n below 2^31. Integer types are not asked for.
inline void extent(Dtype d, const void* source, std::size_t n, Extent& e) {
    switch (d) {
        case Dtype::f32:
            return extent_of_floats<Dtype::f32>(source, n, e);
        case Dtype::f16:
            return extent_of_floats<Dtype::f16>(source, n, e);
        case Dtype::bf16:
            return extent_of_floats<Dtype::bf16>(source, n, e);
        case Dtype::f64:
            return extent_of_doubles(source, n, e);
        default:
            return;
    }
}
