// The mask kernels of one instruction-set level; included once by each masks_<level>.cpp.

// Sets bit i to test(i); `vector` gives the bits of kLanes items from i on.
template <class Vector, class Test>
inline void fill_bits(std::size_t n, std::uint8_t* out, Vector&& vector, Test&& test) {
    std::size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        std::uint64_t bits = 0;
        for (int v = 0; v < 64; v += kLanes)
            bits |= static_cast<std::uint64_t>(vector(i + static_cast<std::size_t>(v))) << v;
        std::memcpy(out + i / 8, &bits, 8);
    }
    for (; i < n; i += 8) {
        unsigned byte = 0;
        for (std::size_t b = 0; b < 8 && i + b < n; ++b)
            byte |= static_cast<unsigned>(test(i + b)) << b;
        out[i / 8] = static_cast<std::uint8_t>(byte);
    }
}

template <class T>
inline T item_at(const void* source, std::size_t i) {
    T v;
    std::memcpy(&v, static_cast<const std::uint8_t*>(source) + i * sizeof(T), sizeof(T));
    return v;
}

template <std::size_t Item>
inline I lanes_at(const void* source, std::size_t i) {
    const auto* p = static_cast<const std::uint8_t*>(source) + i * Item;
    if constexpr (Item == 4) return i_load(reinterpret_cast<const std::int32_t*>(p));
    return i_load_u16(reinterpret_cast<const std::uint16_t*>(p));
}

template <std::size_t Item>
inline std::int32_t pattern_at(const void* source, std::size_t i) {
    if constexpr (Item == 4) return item_at<std::int32_t>(source, i);
    return item_at<std::uint16_t>(source, i);
}

// A pattern above zero, up to that of infinity, is a number above zero.
template <std::size_t Item>
inline void positive_patterns(const void* source, std::size_t n, std::int32_t infinity,
                              std::uint8_t* out) {
    const I zero = i_set(0), top = i_set(infinity);
    fill_bits(
        n, out,
        [&](std::size_t i) {
            const I x = lanes_at<Item>(source, i);
            return m_bits(m_and(i_less(zero, x), m_not(i_less(top, x))));
        },
        [&](std::size_t i) {
            const std::int32_t x = pattern_at<Item>(source, i);
            return x > 0 && x <= infinity;
        });
}

// Bits of kLanes tests.
template <class Test>
inline std::uint32_t bits_of(std::size_t i, Test&& test) {
    std::uint32_t bits = 0;
    for (int l = 0; l < kLanes; ++l)
        bits |= static_cast<std::uint32_t>(test(i + static_cast<std::size_t>(l))) << l;
    return bits;
}

void positive(Dtype dtype, const void* source, std::size_t n, std::uint8_t* out) {
    if (dtype == Dtype::f32) return positive_patterns<4>(source, n, 0x7f800000, out);
    if (dtype == Dtype::f16) return positive_patterns<2>(source, n, 0x7c00, out);
    if (dtype == Dtype::bf16) return positive_patterns<2>(source, n, 0x7f80, out);
    const auto test = [&](std::size_t i) { return item_at<double>(source, i) > 0; };
    fill_bits(n, out, [&](std::size_t i) { return bits_of(i, test); }, test);
}

template <std::size_t Item>
inline bool either_pattern(const void* source, std::size_t n, std::int32_t low, std::int32_t high,
                           std::uint8_t* out) {
    const I up = i_set(high), down = i_set(low);
    M strange = m_of_bits(0);
    bool known = true;
    fill_bits(
        n, out,
        [&](std::size_t i) {
            const I x = lanes_at<Item>(source, i);
            const M set = i_equal(x, up);
            strange = m_or(strange, m_not(m_or(set, i_equal(x, down))));
            return m_bits(set);
        },
        [&](std::size_t i) {
            const std::int32_t x = pattern_at<Item>(source, i);
            known = known && (x == high || x == low);
            return x == high;
        });
    return known && m_bits(strange) == 0;
}

bool either(std::size_t item, const void* source, std::size_t n, std::uint64_t low,
            std::uint64_t high, std::uint8_t* out) {
    const auto one = static_cast<std::int32_t>(high), other = static_cast<std::int32_t>(low);
    if (item == 4) return either_pattern<4>(source, n, other, one, out);
    if (item == 2) return either_pattern<2>(source, n, other, one, out);
    bool known = true;
    const auto test = [&](std::size_t i) {
        const auto x = item_at<std::uint64_t>(source, i);
        known = known && (x == low || x == high);
        return x == high;
    };
    fill_bits(n, out, [&](std::size_t i) { return bits_of(i, test); }, test);
    return known;
}

template <class T>
inline void expand_tail(const std::uint8_t* bits, std::size_t i, std::size_t n, T low, T high,
                        void* target) {
    for (; i < n; ++i) {
        const T v = (bits[i / 8] >> (i % 8)) & 1 ? high : low;
        std::memcpy(static_cast<std::uint8_t*>(target) + i * sizeof(T), &v, sizeof(T));
    }
}

template <std::size_t Item, class T>
inline void expand_patterns(const std::uint8_t* bits, std::size_t n, T low, T high, void* target) {
    const I up = i_set(static_cast<std::int32_t>(high)),
            down = i_set(static_cast<std::int32_t>(low));
    std::size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        std::uint64_t word;
        std::memcpy(&word, bits + i / 8, 8);
        for (int v = 0; v < 64; v += kLanes) {
            const I x = i_select(m_of_bits(static_cast<std::uint32_t>(word >> v)), up, down);
            auto* to =
                static_cast<std::uint8_t*>(target) + (i + static_cast<std::size_t>(v)) * Item;
            if constexpr (Item == 4)
                i_store(reinterpret_cast<std::int32_t*>(to), x);
            else
                i_store_u16(reinterpret_cast<std::uint16_t*>(to), x);
        }
    }
    expand_tail<T>(bits, i, n, low, high, target);
}

void expand(std::size_t item, const std::uint8_t* bits, std::size_t n, std::uint64_t low,
            std::uint64_t high, void* target) {
    if (item == 8) return expand_tail<std::uint64_t>(bits, 0, n, low, high, target);
    if (item == 4)
        return expand_patterns<4>(bits, n, static_cast<std::uint32_t>(low),
                                  static_cast<std::uint32_t>(high), target);
    expand_patterns<2>(bits, n, static_cast<std::uint16_t>(low), static_cast<std::uint16_t>(high),
                       target);
}
