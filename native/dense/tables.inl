// Frequency tables: from counts, to bytes, and back.

constexpr int kContexts = 48;
constexpr int kSymbols = 256;
constexpr std::size_t kFrequencies = kContexts * kSymbols;

// Small tables stay in fast memory; fine ones cost less where many symbols share them, or where
// one symbol has nearly all of most.
inline int table_bits(const std::uint32_t* counts, std::size_t n) {
    if (n < 32768) return 11;
    std::uint64_t kinds = 0, contexts = 0, symbols = 0, skewed = 0;
    for (int c = 0; c < kContexts; ++c) {
        std::uint64_t total = 0, most = 0, here = 0;
        for (int s = 0; s < kSymbols; ++s) {
            const std::uint64_t count = counts[c * kSymbols + s];
            here += count != 0;
            total += count;
            most = count > most ? count : most;
        }
        if (here > 1 && 64 * (total - most) < total) skewed += total;
        symbols += total;
        kinds += here;
        contexts += here != 0;
    }
    return 2 * skewed < symbols && kinds <= 32 * contexts ? 11 : 12;
}

// f = max(1, round(c 2^P / N)); the largest (lowest of equals) takes what is missing or too much.
inline void normalise(const std::uint32_t* counts, int bits, std::uint32_t* frequencies) {
    std::uint64_t total = 0;
    for (int s = 0; s < kSymbols; ++s) total += counts[s];
    std::int64_t missing = std::int64_t{1} << bits;
    for (int s = 0; s < kSymbols; ++s) {
        const std::uint64_t c = counts[s];
        std::uint64_t f = 0;
        if (c > 0) {
            f = ((c << (bits + 1)) + total) / (2 * total);
            if (f == 0) f = 1;
        }
        frequencies[s] = static_cast<std::uint32_t>(f);
        missing -= static_cast<std::int64_t>(f);
    }
    while (missing != 0) {
        int largest = 0;
        for (int s = 1; s < kSymbols; ++s)
            if (frequencies[s] > frequencies[largest]) largest = s;
        std::int64_t change = missing;
        const std::int64_t spare = static_cast<std::int64_t>(frequencies[largest]) - 1;
        if (change < -spare) change = -spare;
        frequencies[largest] = static_cast<std::uint32_t>(frequencies[largest] + change);
        missing -= change;
    }
}

// Bits from the lowest of each byte up.
struct BitWriter {
    std::uint8_t* out;
    std::uint64_t held = 0;
    int count = 0;

    void put(std::uint32_t value, int bits) {
        held |= static_cast<std::uint64_t>(value) << count;
        count += bits;
        while (count >= 8) {
            *out++ = static_cast<std::uint8_t>(held);
            held >>= 8;
            count -= 8;
        }
    }
    void flush() {
        if (count > 0) *out++ = static_cast<std::uint8_t>(held);
        held = 0;
        count = 0;
    }
};

struct BitReader {
    const std::uint8_t* in;
    const std::uint8_t* end;
    std::uint64_t held = 0;
    int count = 0;
    bool short_of = false;

    std::uint32_t take(int bits) {
        while (count < bits) {
            if (in == end) {
                short_of = true;
                return 0;
            }
            held |= static_cast<std::uint64_t>(*in++) << count;
            count += 8;
        }
        const auto value = static_cast<std::uint32_t>(held & ((std::uint64_t{1} << bits) - 1));
        held >>= bits;
        count -= bits;
        return value;
    }
    // Only zeros may be left, fewer than 8 bytes of them.
    bool ends_clean() const {
        if (short_of || held != 0 || end - in >= 8) return false;
        for (const std::uint8_t* p = in; p != end; ++p)
            if (*p != 0) return false;
        return true;
    }
};

inline std::uint8_t* write_tables(const std::uint32_t* frequencies, std::uint64_t used,
                                  std::uint8_t* out) {
    std::uint8_t* const start = out;
    std::memcpy(out, &used, 8);
    BitWriter bits{out + 8};
    for (int c = 0; c < kContexts; ++c) {
        if (!((used >> c) & 1)) continue;
        const std::uint32_t* f = frequencies + c * kSymbols;
        int lowest = 0, highest = kSymbols - 1;
        while (f[lowest] == 0) ++lowest;
        while (f[highest] == 0) --highest;
        bits.put(static_cast<std::uint32_t>(lowest), 8);
        bits.put(static_cast<std::uint32_t>(highest), 8);
        for (int s = lowest; s <= highest; ++s) {
            const int length = f[s] == 0 ? 0 : 32 - __builtin_clz(f[s]);
            bits.put(static_cast<std::uint32_t>(length), 4);
            if (length > 1) bits.put(f[s] & ((1u << (length - 1)) - 1), length - 1);
        }
    }
    bits.flush();
    while ((bits.out - start) % 8 != 0) *bits.out++ = 0;
    return bits.out;
}

// Fills the decode slots of every context: those that do not occur get slots that lead nowhere, so
// that bytes which claim otherwise end in states that fail the final check.
inline bool read_tables(const std::uint8_t* in, std::size_t size, int bits, int contexts,
                        std::uint32_t* slots) {
    if (size < 8 || size % 8 != 0) return false;
    std::uint64_t used;
    std::memcpy(&used, in, 8);
    if ((used >> contexts) != 0) return false;
    BitReader reader{in + 8, in + size};
    for (int c = 0; c < kContexts; ++c) {
        std::uint32_t* table = slots + (static_cast<std::size_t>(c) << bits);
        if (!((used >> c) & 1)) {
            std::memset(table, 0, sizeof(std::uint32_t) << bits);
            continue;
        }
        const std::uint32_t lowest = reader.take(8), highest = reader.take(8);
        if (highest < lowest) return false;
        std::uint32_t at = 0;
        for (std::uint32_t s = lowest; s <= highest; ++s) {
            const auto length = static_cast<int>(reader.take(4));
            if (length == 0) {
                if (s == lowest || s == highest) return false;
                continue;
            }
            std::uint32_t f = 1;
            if (length > 1) f = (1u << (length - 1)) | reader.take(length - 1);
            if (reader.short_of || f > (1u << bits) - at) return false;
            for (std::uint32_t i = 0; i < f; ++i) table[at + i] = s | ((f - 1) << 8) | (i << 20);
            at += f;
        }
        if (at != 1u << bits) return false;
    }
    return reader.ends_clean();
}
