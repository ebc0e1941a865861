// A chunk of the block codec: failure count, block headers, planes, failed values.

inline void write_u32(std::uint8_t* p, std::uint32_t v) { std::memcpy(p, &v, 4); }
inline std::uint32_t read_u32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

inline std::size_t blocks_of(std::size_t codes) { return (codes + kBlock - 1) / kBlock; }
inline std::size_t headers_bytes(std::size_t blocks) { return (blocks + 3) / 4 * 4; }

// Positions (16 bits each), then the items themselves.
inline std::uint8_t* write_failures(const Failures& failed, const std::uint8_t* items,
                                    std::size_t item, std::uint8_t* out) {
    for (std::uint32_t i = 0; i < failed.count; ++i) {
        const auto at = static_cast<std::uint16_t>(failed.index[i]);
        std::memcpy(out, &at, 2);
        out += 2;
    }
    for (std::uint32_t i = 0; i < failed.count; ++i) {
        std::memcpy(out, items + failed.index[i] * item, item);
        out += item;
    }
    return out;
}

// Straight from values to planes, without a predictor: nothing leaves the registers in between.
template <Dtype D, Rule R>
inline std::size_t encode_direct(const Quantiser& quantiser, const void* source, std::size_t first,
                                 std::size_t n, std::uint8_t* dst, std::uint32_t* failure_index) {
    using Item = typename Lane<D>::Item;
    constexpr std::size_t ahead = 4096 / sizeof(Item);
    const Constants c = constants_of(quantiser);
    Shifts shifts(quantiser);
    const auto* src = static_cast<const Item*>(source);
    const std::size_t blocks = blocks_of(n);
    std::uint8_t* headers = dst + 4;
    std::uint8_t* out = headers + headers_bytes(blocks);
    std::memset(headers + blocks, 0, headers_bytes(blocks) - blocks);
    Failures failed{failure_index, 0};
    I last = i_set(0);
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::size_t at = b * kBlock;
        const std::size_t count = n - at < kBlock ? n - at : kBlock;
        const Item* items = src + at;
        Item tail[kBlock];
        if (__builtin_expect(count < kBlock, 0)) {
            for (std::size_t i = 0; i < kBlock; ++i) tail[i] = items[i < count ? i : count - 1];
            items = tail;
        } else {
            for (std::size_t i = 0; i < kBlock * sizeof(Item); i += 64)
                __builtin_prefetch(reinterpret_cast<const char*>(items + ahead) + i);
        }
        I q[kVectors];
        const std::uint64_t bad = quantise_block<D, R>(items, first + at, c, shifts, q);
        if (__builtin_expect(bad != 0 || count < kBlock, 0)) {
            std::int32_t codes[kBlock], before[kLanes];
            i_store(before, last);
            for (int i = 0; i < kVectors; ++i) i_store(codes + kLanes * i, q[i]);
            std::int32_t carry = before[kLanes - 1];
            const std::uint32_t already = failed.count;
            carry_over(codes, bad, count, at, carry, failed);
            for (std::size_t i = count; i < kBlock; ++i) codes[i] = codes[count - 1];
            for (int i = 0; i < kVectors; ++i) q[i] = i_load(codes + kLanes * i);
            last = q[kVectors - 1];
            const Shape s = shape_of(q);
            const std::size_t extra = (failed.count - already) * (2 + sizeof(Item));
            if (payload_bytes(s.header) + extra >= count * sizeof(Item)) {
                failed.count = already;
                headers[b] = kRaw;
                std::memcpy(out, src + at, count * sizeof(Item));
                out += count * sizeof(Item);
            } else {
                headers[b] = s.header;
                out = pack(s, q, out);
            }
            continue;
        }
        last = q[kVectors - 1];
        const Shape s = shape_of(q);
        if (__builtin_expect(payload_bytes(s.header) >= kBlock * sizeof(Item), 0)) {
            headers[b] = kRaw;
            std::memcpy(out, items, kBlock * sizeof(Item));
            out += kBlock * sizeof(Item);
            continue;
        }
        headers[b] = s.header;
        out = pack(s, q, out);
    }
    write_u32(dst, failed.count);
    out = write_failures(failed, reinterpret_cast<const std::uint8_t*>(src), sizeof(Item), out);
    return static_cast<std::size_t>(out - dst);
}

// Through a buffer of codes: exact rules, doubles and everything with a predictor.
inline std::size_t encode_buffered(const Quantiser& quantiser, const Geometry& geometry,
                                   const void* source, std::size_t first, std::size_t items,
                                   std::size_t n, std::uint8_t* dst, Scratch& scratch) {
    Failures failed{scratch.index, 0};
    std::int32_t carry = 0;
    encode_codes(quantiser, source, first, 0, items, carry, scratch.codes, failed);
    const std::int32_t* values = scratch.codes;
    if (geometry.predictor != Predictor::none) {
        predict(geometry, scratch.codes, first, n, scratch.residuals);
        values = scratch.residuals;
    }
    const std::size_t blocks = blocks_of(n);
    std::uint8_t* headers = dst + 4;
    std::uint8_t* out = headers + headers_bytes(blocks);
    std::memset(headers + blocks, 0, headers_bytes(blocks) - blocks);
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::int32_t* in = values + b * kBlock;
        std::int32_t tail[kBlock];
        const std::size_t count = n - b * kBlock < kBlock ? n - b * kBlock : kBlock;
        if (count < kBlock) {
            for (std::size_t i = 0; i < kBlock; ++i) tail[i] = in[i < count ? i : count - 1];
            in = tail;
        }
        I q[kVectors];
        for (int i = 0; i < kVectors; ++i) q[i] = i_load(in + kLanes * i);
        const Shape s = shape_of(q);
        headers[b] = s.header;
        out = pack(s, q, out);
    }
    write_u32(dst, failed.count);
    out = write_failures(failed, static_cast<const std::uint8_t*>(source),
                         item_bytes(quantiser.dtype), out);
    return static_cast<std::size_t>(out - dst);
}

inline std::size_t codes_of(const Quantiser& q, std::size_t items) {
    return q.rule == Rule::exact && item_bytes(q.dtype) == 8 ? 2 * items : items;
}

// Only lossy values that go straight to planes may be stored raw.
inline bool is_direct(const Quantiser& q, const Geometry& g) {
    return q.rule != Rule::exact && q.dtype != Dtype::f64 && g.predictor == Predictor::none;
}

inline std::size_t encode_chunk(const Quantiser& q, const Geometry& g, const void* source,
                                std::size_t first, std::size_t items, std::uint8_t* dst,
                                Scratch& scratch) {
    if (is_direct(q, g)) {
        std::size_t size = 0;
        with_float_lanes(q.dtype, q.rule, [&](auto d, auto r) {
            size = encode_direct<d.value, r.value>(q, source, first, items, dst, scratch.index);
        });
        return size;
    }
    return encode_buffered(q, g, source, first, items, codes_of(q, items), dst, scratch);
}

struct Layout {
    const std::uint8_t* headers;
    const std::uint8_t* payload;
    const std::uint8_t* positions;
    const std::uint8_t* values;
    const std::uint8_t* end;
    std::uint32_t failures;
};

// Sizes are settled before anything is written: after this no read leaves the chunk.
inline bool read_layout(const std::uint8_t* in, std::size_t size, std::size_t n, std::size_t items,
                        std::size_t item, bool raw_allowed, Layout& layout) {
    const std::size_t blocks = blocks_of(n);
    const std::size_t fixed = 4 + headers_bytes(blocks);
    if (size < fixed) return false;
    layout.failures = read_u32(in);
    if (layout.failures > items) return false;
    layout.headers = in + 4;
    layout.payload = in + fixed;
    layout.end = in + size;
    std::size_t payload = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        const std::uint8_t h = layout.headers[b];
        if ((h & kRaw) == kRaw) {
            if (!raw_allowed || h != kRaw) return false;
            payload += (n - b * kBlock < kBlock ? n - b * kBlock : kBlock) * item;
        } else {
            if ((h & 63) > 32) return false;
            payload += payload_bytes(h);
        }
    }
    for (std::size_t i = blocks; i < headers_bytes(blocks); ++i)
        if (layout.headers[i] != 0) return false;
    const std::size_t listed = static_cast<std::size_t>(layout.failures) * (2 + item);
    if (size != fixed + payload + listed) return false;
    layout.positions = layout.payload + payload;
    layout.values = layout.positions + 2 * static_cast<std::size_t>(layout.failures);
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < layout.failures; ++i) {
        std::uint16_t at;
        std::memcpy(&at, layout.positions + 2 * i, 2);
        if (at < next || at >= items) return false;
        next = static_cast<std::size_t>(at) + 1;
    }
    return true;
}

// False when a position that was right is not any more: the bytes may lie where the target was
// just written.
inline bool place_failures(const Layout& layout, std::size_t count, std::size_t item,
                           std::uint8_t* items) {
    for (std::uint32_t i = 0; i < layout.failures; ++i) {
        std::uint16_t at;
        std::memcpy(&at, layout.positions + 2 * i, 2);
        if (at >= count) return false;
        std::memcpy(items + at * item, layout.values + i * item, item);
    }
    return true;
}

// How results reach memory: through the caches, or around them whole vectors or pieces at a time.
enum class Way { cached, around, around_in_pieces };

template <Dtype D, Rule R, Way W>
inline void decode_direct(const Quantiser& quantiser, const Layout& layout, std::size_t first,
                          std::size_t n, void* target) {
    using Item = typename Lane<D>::Item;
    const Constants c = constants_of(quantiser);
    Shifts shifts(quantiser);
    auto* dst = static_cast<Item*>(target);
    const std::uint8_t* in = layout.payload;
    for (std::size_t at = 0, b = 0; at < n; at += kBlock, ++b) {
        const std::size_t count = n - at < kBlock ? n - at : kBlock;
        const std::uint8_t header = layout.headers[b];
        if (header == kRaw) {
            std::memcpy(dst + at, in, count * sizeof(Item));
            in += count * sizeof(Item);
            continue;
        }
        I q[kVectors];
        in = unpack(header, in, layout.end, q);
        Item tail[kBlock];
        Item* out = count < kBlock ? tail : dst + at;
        for (int i = 0; i < kVectors; ++i) {
            F dither = c.half;
            if constexpr (R == Rule::dither) dither = shifts.at(first + at + kLanes * i);
            const F v = reconstruct<D, R>(q[i], dither, c);
            if constexpr (W != Way::cached) {
                if (count == kBlock) {
                    if constexpr (W == Way::around)
                        f_stream(out + kLanes * i, v);
                    else
                        f_stream_pieces(out + kLanes * i, v);
                    continue;
                }
            }
            Lane<D>::store(out + kLanes * i, v);
        }
        if (count < kBlock) std::memcpy(dst + at, tail, count * sizeof(Item));
    }
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_chunk(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                         std::size_t size, std::size_t first, std::size_t items, void* target,
                         bool stream, Scratch& scratch) {
    const std::size_t n = codes_of(q, items);
    const std::size_t item = item_bytes(q.dtype);
    Layout layout;
    if (!read_layout(in, size, n, items, item, is_direct(q, g), layout)) return false;
    if (q.rule == Rule::exact && layout.failures != 0) return false;
    // What decides where reads go is read from a copy that nobody else can change.
    std::memcpy(scratch.bytes, layout.headers, blocks_of(n));
    layout.headers = scratch.bytes;
    if (is_direct(q, g)) {
        const auto offset = reinterpret_cast<std::uintptr_t>(target) % 64;
        with_float_lanes(q.dtype, q.rule, [&](auto d, auto r) {
            if constexpr (d.value == Dtype::f32) {
                if (stream && offset % 16 == 0) {
                    if (offset == 0)
                        decode_direct<d.value, r.value, Way::around>(q, layout, first, n, target);
                    else
                        decode_direct<d.value, r.value, Way::around_in_pieces>(q, layout, first, n,
                                                                               target);
                    stream_fence();
                    return;
                }
            }
            decode_direct<d.value, r.value, Way::cached>(q, layout, first, n, target);
        });
    } else {
        const std::uint8_t* payload = layout.payload;
        for (std::size_t b = 0; b < blocks_of(n); ++b) {
            I v[kVectors];
            payload = unpack(layout.headers[b], payload, layout.end, v);
            for (int i = 0; i < kVectors; ++i)
                i_store(scratch.codes + b * kBlock + kLanes * i, v[i]);
        }
        restore(g, scratch.codes, first, n);
        decode_codes(q, scratch.codes, first, items, stream, target);
        stream_fence();
    }
    return place_failures(layout, items, item, static_cast<std::uint8_t*>(target));
}
