// One block of 64 codes to bit planes and back.
//
// Header byte: bits 0-5 the number of magnitude planes, bits 6-7 the shape. The all-zero block is
// the header 0 with no payload. docs/format.md, "Block payload".

enum : std::uint8_t { kUnsigned = 0 << 6, kSigned = 1 << 6, kOffset = 2 << 6, kRaw = 3 << 6 };
constexpr int kVectors = static_cast<int>(kBlock) / kLanes;

inline int bit_length(std::uint32_t v) { return static_cast<int>(std::bit_width(v)); }

// Payload bytes of a block that is not raw.
inline std::size_t payload_bytes(std::uint8_t header) {
    const std::size_t planes = 8 * static_cast<std::size_t>(header & 63);
    const std::uint8_t shape = header & kRaw;
    return planes + (shape == kSigned ? 8 : shape == kOffset ? 4 : 0);
}

struct Shape {
    std::uint8_t header;
    std::int32_t base;
};

// The cheapest of the three shapes; ties go to the first of unsigned, signed, offset.
// Selections, not branches: what a block holds cannot be foretold.
inline Shape shape_of(std::int32_t lowest, std::int32_t highest) {
    const auto low = static_cast<std::uint32_t>(lowest);
    const auto high = static_cast<std::uint32_t>(highest);
    const int negative = lowest < 0;
    const std::uint32_t up = highest < 0 ? 0u : high;
    const std::uint32_t down = negative ? 0u - low : 0u;
    const int planes = bit_length(up > down ? up : down);
    const int offset_planes = bit_length(high - low);
    const int header = negative ? kSigned | planes : kUnsigned | planes;
    const bool is_offset = 8 * offset_planes + 4 < 8 * planes + 8 * negative;
    return {static_cast<std::uint8_t>(is_offset ? kOffset | offset_planes : header), lowest};
}

inline Shape shape_of(const I* q) {
    I low = q[0], high = q[0];
    for (int i = 1; i < kVectors; ++i) {
        low = i_min(low, q[i]);
        high = i_max(high, q[i]);
    }
    std::int32_t lowest, highest;
    i_reduce(low, high, lowest, highest);
    return shape_of(lowest, highest);
}

// Bytes that may be written, or read, from the start of a payload of up to eight planes.
constexpr std::size_t kSpan = 8 + 8 * 8;
inline std::size_t prefix_bytes(std::uint8_t shape) {
    return (std::uint64_t{0x00040800} >> (shape / 8)) & 0xff;
}

// Writes the payload and returns its end. `q` is consumed. Up to kSpan bytes are written, be the
// payload ever so short: all of eight planes cost less than a loop whose end comes as a surprise.
inline std::uint8_t* pack(Shape s, I* q, std::uint8_t* out) {
    const int planes = s.header & 63;
    const std::uint8_t shape = s.header & kRaw;
    if (kLanes > 1 && __builtin_expect(planes <= 8, 1)) {
        const std::uint32_t base = shape == kOffset ? static_cast<std::uint32_t>(s.base) : 0u;
        const std::uint64_t prefix = shape == kOffset ? base : sign_plane(q);
        std::memcpy(out, &prefix, 8);
        out += prefix_bytes(shape);
        // Differences from the base are below 256 here: their magnitude is themselves.
        for (int i = 0; i < kVectors; ++i)
            q[i] = i_abs(i_sub(q[i], i_set(static_cast<std::int32_t>(base))));
        write_planes(bytes_of(q, 0), 8, out);
        return out + 8 * planes;
    }
    if (shape == kSigned) {
        const std::uint64_t signs = sign_plane(q);
        std::memcpy(out, &signs, 8);
        out += 8;
        for (int i = 0; i < kVectors; ++i) q[i] = i_abs(q[i]);
    } else if (shape == kOffset) {
        std::memcpy(out, &s.base, 4);
        out += 4;
        const I base = i_set(s.base);
        for (int i = 0; i < kVectors; ++i) q[i] = i_sub(q[i], base);
    }
    for (int slice = 0, left = planes; left > 0; ++slice, left -= 8) {
        const int now = left < 8 ? left : 8;
        write_planes(bytes_of(q, slice), now, out);
        out += 8 * now;
    }
    return out;
}

// Reads nothing at or beyond `end` when the payload ends before it.
inline const std::uint8_t* unpack(std::uint8_t header, const std::uint8_t* in,
                                  const std::uint8_t* end, I* q) {
    const int planes = header & 63;
    const std::uint8_t shape = header & kRaw;
    if (kReadsEightPlanes &&
        __builtin_expect(planes <= 8 && static_cast<std::size_t>(end - in) >= kSpan, 1)) {
        std::uint64_t prefix;
        std::memcpy(&prefix, in, 8);
        in += prefix_bytes(shape);
        const std::uint64_t signs = shape == kSigned ? prefix : 0;
        const I base = i_set(shape == kOffset ? static_cast<std::int32_t>(prefix) : 0);
        for (int i = 0; i < kVectors; ++i) q[i] = i_set(0);
        merge_bytes(keep_planes(read_planes(in, 8), planes), 0, q);
        for (int i = 0; i < kVectors; ++i) {
            const I m = sign_lanes(signs, i);
            q[i] = i_add(i_sub(i_xor(q[i], m), m), base);
        }
        return in + 8 * planes;
    }
    std::uint64_t signs = 0;
    std::int32_t base = 0;
    if (shape == kSigned) {
        std::memcpy(&signs, in, 8);
        in += 8;
    } else if (shape == kOffset) {
        std::memcpy(&base, in, 4);
        in += 4;
    }
    for (int i = 0; i < kVectors; ++i) q[i] = i_set(0);
    for (int slice = 0, left = planes; left > 0; ++slice, left -= 8) {
        const int now = left < 8 ? left : 8;
        merge_bytes(read_planes(in, now), slice, q);
        in += 8 * now;
    }
    if (shape == kSigned) {
        for (int i = 0; i < kVectors; ++i) {
            const I m = sign_lanes(signs, i);
            q[i] = i_sub(i_xor(q[i], m), m);
        }
    } else if (shape == kOffset) {
        const I b = i_set(base);
        for (int i = 0; i < kVectors; ++i) q[i] = i_add(q[i], b);
    }
    return in;
}
