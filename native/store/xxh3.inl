// XXH3 with 128 bits, seed 0 and the default secret; included once by each store_<level>.cpp.
//
// Short inputs are multiplied into 128 bits with keys out of the secret, a few lengths each in a
// way of their own. Beyond 240 bytes, eight lanes take 64 bytes at a time, the secret sliding by 8,
// and are scrambled every 1024.

using Word = std::uint64_t;

constexpr Word kPrime32[] = {0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du};
constexpr Word kPrime64[] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                             0x85EBCA77C2B2AE63u, 0x27D4EB2F165667C5u};
constexpr Word kMix[] = {0x165667919E3779F9u, 0x9FB21C651E98DF25u};

constexpr std::size_t kSecret = 192;
constexpr std::size_t kStripe = 64, kBlockStripes = 16, kHashBlock = kStripe * kBlockStripes;
// How far ahead memory is asked for: alone, the processor looks no further than the next page.
constexpr std::size_t kAhead = 3072;
alignas(64) constexpr std::uint8_t secret[kSecret] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

struct Digest {
    Word low, high;
};

inline Word read64(const std::uint8_t* p) {
    Word v;
    std::memcpy(&v, p, 8);
    return v;
}
inline Word read32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}
// Two words of the secret as one key.
inline Word key64(std::size_t at) { return read64(secret + at) ^ read64(secret + at + 8); }
inline Word key32(std::size_t at) { return read32(secret + at) ^ read32(secret + at + 4); }

inline Word shifted(Word h, int by) { return h ^ (h >> by); }
inline Word avalanche(Word h) { return shifted(shifted(h, 37) * kMix[0], 32); }
inline Word long_avalanche(Word h) {
    return shifted(shifted(shifted(h, 33) * kPrime64[1], 29) * kPrime64[2], 32);
}

inline Digest product(Word a, Word b) {
    const auto whole = static_cast<unsigned __int128>(a) * b;
    return {static_cast<Word>(whole), static_cast<Word>(whole >> 64)};
}
inline Word folded(Word a, Word b) {
    const Digest whole = product(a, b);
    return whole.low ^ whole.high;
}

inline Digest hash_none() { return {long_avalanche(key64(64)), long_avalanche(key64(80))}; }

inline Digest hash_to_3(const std::uint8_t* data, std::size_t n) {
    const std::uint32_t first = data[0], middle = data[n >> 1], last = data[n - 1];
    const std::uint32_t low =
        first << 16 | middle << 24 | last | static_cast<std::uint32_t>(n) << 8;
    const std::uint32_t turned = __builtin_bswap32(low);
    const std::uint32_t high = turned << 13 | turned >> 19;
    return {long_avalanche(low ^ key32(0)), long_avalanche(high ^ key32(8))};
}

inline Digest hash_to_8(const std::uint8_t* data, std::size_t n) {
    const Word whole = read32(data) + (read32(data + n - 4) << 32);
    Digest h = product(whole ^ key64(16), kPrime64[0] + (n << 2));
    h.high += h.low << 1;
    h.low ^= h.high >> 3;
    return {shifted(shifted(h.low, 35) * kMix[1], 28), avalanche(h.high)};
}

inline Digest hash_to_16(const std::uint8_t* data, std::size_t n) {
    const Word low = read64(data);
    Word high = read64(data + n - 8);
    Digest m = product(low ^ high ^ key64(32), kPrime64[0]);
    m.low += static_cast<Word>(n - 1) << 54;
    high ^= key64(48);
    m.high += high + (high & 0xffffffffu) * (kPrime32[1] - 1);
    m.low ^= __builtin_bswap64(m.high);
    Digest h = product(m.low, kPrime64[1]);
    h.high += m.high * kPrime64[1];
    return {avalanche(h.low), avalanche(h.high)};
}

inline Word mixed(const std::uint8_t* data, const std::uint8_t* key) {
    return folded(read64(data) ^ read64(key), read64(data + 8) ^ read64(key + 8));
}
// Two runs of 16 bytes, each multiplied into one half and added to the other.
inline void mix(Digest& sum, const std::uint8_t* one, const std::uint8_t* other, std::size_t at) {
    sum.low += mixed(one, secret + at);
    sum.low ^= read64(other) + read64(other + 8);
    sum.high += mixed(other, secret + at + 16);
    sum.high ^= read64(one) + read64(one + 8);
}
inline Digest finish(Digest sum, std::size_t n) {
    const Word high = sum.low * kPrime64[0] + sum.high * kPrime64[3] + n * kPrime64[1];
    return {avalanche(sum.low + sum.high), Word{0} - avalanche(high)};
}

inline Digest hash_to_128(const std::uint8_t* data, std::size_t n) {
    Digest sum{n * kPrime64[0], 0};
    for (std::size_t i = (n - 1) / 32 + 1; i-- > 0;)
        mix(sum, data + 16 * i, data + n - 16 * (i + 1), 32 * i);
    return finish(sum, n);
}

inline Digest hash_to_240(const std::uint8_t* data, std::size_t n) {
    Digest sum{n * kPrime64[0], 0};
    std::size_t i = 0;
    for (; i < 128; i += 32) mix(sum, data + i, data + i + 16, i);
    sum = {avalanche(sum.low), avalanche(sum.high)};
    for (; i + 32 <= n; i += 32) mix(sum, data + i, data + i + 16, i - 128 + 3);
    mix(sum, data + n - 16, data + n - 32, 103);
    return finish(sum, n);
}

inline Word merged(const Word* lanes, std::size_t at, Word start) {
    for (std::size_t i = 0; i < 4; ++i)
        start += folded(lanes[2 * i] ^ read64(secret + at + 16 * i),
                        lanes[2 * i + 1] ^ read64(secret + at + 16 * i + 8));
    return avalanche(start);
}

inline Digest hash_long(const std::uint8_t* data, std::size_t n) {
    alignas(64) Word words[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                                 kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};
    Lanes lanes = lanes_load(words);
    // The last stripe ends with the input, and so is not among the others even if they end there.
    const std::size_t blocks = (n - 1) / kHashBlock;
    const std::uint8_t* p = data;
    for (std::size_t block = 0; block < blocks; ++block, p += kHashBlock) {
        for (std::size_t i = 0; i < kBlockStripes; ++i) {
            const auto here = reinterpret_cast<std::uintptr_t>(p + kStripe * i);
            __builtin_prefetch(reinterpret_cast<const void*>(here + kAhead));
            lanes_add(lanes, p + kStripe * i, secret + 8 * i);
        }
        lanes_scramble(lanes, secret + kSecret - kStripe, static_cast<std::uint32_t>(kPrime32[0]));
    }
    const std::size_t stripes = (n - 1 - blocks * kHashBlock) / kStripe;
    for (std::size_t i = 0; i < stripes; ++i) lanes_add(lanes, p + kStripe * i, secret + 8 * i);
    lanes_add(lanes, data + n - kStripe, secret + kSecret - kStripe - 7);
    lanes_store(words, lanes);
    return {merged(words, 11, n * kPrime64[0]),
            merged(words, kSecret - kStripe - 11, ~(n * kPrime64[1]))};
}

inline Digest hash_of(const std::uint8_t* data, std::size_t n) {
    if (n > 240) return hash_long(data, n);
    if (n > 128) return hash_to_240(data, n);
    if (n > 16) return hash_to_128(data, n);
    if (n > 8) return hash_to_16(data, n);
    if (n > 3) return hash_to_8(data, n);
    return n > 0 ? hash_to_3(data, n) : hash_none();
}

void hash(const std::uint8_t* data, std::size_t nbytes, std::size_t part_bytes, std::uint8_t* out) {
    std::size_t at = 0;
    do {
        const std::size_t left = nbytes - at;
        const std::size_t n = left < part_bytes ? left : part_bytes;
        const Digest digest = hash_of(data + at, n);
        // Canonical: the upper half first, each with its highest byte first.
        const Word words[] = {__builtin_bswap64(digest.high), __builtin_bswap64(digest.low)};
        std::memcpy(out, words, sizeof words);
        out += digest_bytes;
        at += n;
    } while (at < nbytes);
}
