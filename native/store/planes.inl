// Differences by byte planes; included once by each store_<level>.cpp. Plain loops, which the
// compiler turns into vectors of the level.

constexpr std::size_t kRun = 1024;  // items at a time, so that they stay in the first cache

template <class T>
inline T item_at(const std::uint8_t* p, std::size_t i) {
    T v;
    std::memcpy(&v, p + i * sizeof(T), sizeof(T));
    return v;
}

// `one` where keep is false, else `other`; a branch here would cost the vectors.
template <class T>
inline T either(bool keep, T one, T other) {
    const auto mask = static_cast<T>(T{0} - T{keep});
    return static_cast<T>((one & ~mask) | (other & mask));
}

// The bits of factor times the number with these bits. What is not finite stays as it is: which
// bits a product with NaN has depends on the processor.
inline std::uint32_t scaled_bits(std::uint32_t bits, double factor) {
    const float product = __builtin_bit_cast(float, bits) * static_cast<float>(factor);
    const bool strange = (bits & 0x7f800000u) == 0x7f800000u;
    return either(strange, __builtin_bit_cast(std::uint32_t, product), bits);
}
inline std::uint64_t scaled_bits(std::uint64_t bits, double factor) {
    const double product = __builtin_bit_cast(double, bits) * factor;
    const bool strange = (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    return either(strange, __builtin_bit_cast(std::uint64_t, product), bits);
}

// What item i is compared with.
template <Difference D, class T>
inline T expected(const std::uint8_t* before, std::size_t i, double factor) {
    if constexpr (D == Difference::plain)
        return T{0};
    else if constexpr (D == Difference::scaled)
        return scaled_bits(item_at<T>(before, i), factor);
    else
        return item_at<T>(before, i);
}

template <Difference D, class T>
inline T difference_of(T now, T before) {
    if constexpr (D == Difference::plain || D == Difference::flipped)
        return static_cast<T>(now ^ before);
    const auto d = static_cast<T>(now - before);
    const auto negative = static_cast<T>(T{0} - static_cast<T>(d >> (8 * sizeof(T) - 1)));
    return static_cast<T>(static_cast<T>(d << 1) ^ negative);
}

template <Difference D, class T>
inline T item_of(T d, T before) {
    if constexpr (D == Difference::plain || D == Difference::flipped)
        return static_cast<T>(d ^ before);
    const auto negative = static_cast<T>(T{0} - static_cast<T>(d & 1));
    return static_cast<T>(before + static_cast<T>(static_cast<T>(d >> 1) ^ negative));
}

template <Difference D, class T>
void split_items(double factor, const std::uint8_t* __restrict now,
                 const std::uint8_t* __restrict before, std::size_t count,
                 std::uint8_t* __restrict out) {
    T run[kRun];
    for (std::size_t first = 0; first < count; first += kRun) {
        const std::size_t n = count - first < kRun ? count - first : kRun;
        for (std::size_t i = 0; i < n; ++i)
            run[i] = difference_of<D>(item_at<T>(now, first + i),
                                      expected<D, T>(before, first + i, factor));
        for (std::size_t p = 0; p < sizeof(T); ++p) {
            std::uint8_t* plane = out + p * count + first;
            for (std::size_t i = 0; i < n; ++i)
                plane[i] = static_cast<std::uint8_t>(run[i] >> (8 * p));
        }
    }
}

// Byte i of N planes as one number, without a loop: there would be no vectors around it.
template <class T, std::size_t N>
inline T joined(const std::uint8_t* const* planes, std::size_t i) {
    if constexpr (N == 1) {
        return T{planes[0][i]};
    } else {
        const T high = joined<T, N / 2>(planes + N / 2, i);
        return static_cast<T>(joined<T, N / 2>(planes, i) | static_cast<T>(high << (4 * N)));
    }
}

template <Difference D, class T>
void join_items(double factor, const std::uint8_t* const* planes, std::size_t count,
                std::uint8_t* __restrict target) {
    const std::uint8_t* from[sizeof(T)];
    for (std::size_t p = 0; p < sizeof(T); ++p) from[p] = planes[p];
    for (std::size_t i = 0; i < count; ++i) {
        const T before = expected<D, T>(target, i, factor);
        const T v = item_of<D>(joined<T, sizeof(T)>(from, i), before);
        std::memcpy(target + i * sizeof(T), &v, sizeof(T));
    }
}

// Calls body.operator()<D, T>() for the difference and the size at hand.
template <Difference D, class Body>
inline void over_sizes(std::size_t item, Body&& body) {
    if constexpr (D != Difference::scaled) {
        if (item == 1) body.template operator()<D, std::uint8_t>();
        if (item == 2) body.template operator()<D, std::uint16_t>();
    }
    if (item == 4) body.template operator()<D, std::uint32_t>();
    if (item == 8) body.template operator()<D, std::uint64_t>();
}
template <class Body>
inline void over_kinds(const Relation& relation, Body&& body) {
    switch (relation.difference) {
        case Difference::plain:
            return over_sizes<Difference::plain>(relation.item, body);
        case Difference::flipped:
            return over_sizes<Difference::flipped>(relation.item, body);
        case Difference::distance:
            return over_sizes<Difference::distance>(relation.item, body);
        case Difference::scaled:
            return over_sizes<Difference::scaled>(relation.item, body);
    }
}

void split(Relation relation, const std::uint8_t* now, const std::uint8_t* before,
           std::size_t count, std::uint8_t* out) {
    over_kinds(relation, [&]<Difference D, class T>() {
        split_items<D, T>(relation.factor, now, before, count, out);
    });
}

void join(Relation relation, const std::uint8_t* const* planes, std::size_t count,
          std::uint8_t* target) {
    over_kinds(relation, [&]<Difference D, class T>() {
        join_items<D, T>(relation.factor, planes, count, target);
    });
}
