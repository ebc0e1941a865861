// Many range coders side by side (rANS with 16-bit renormalisation).
//
// State x of a lane lies in [2^16, 2^32). A symbol of frequency f and cumulative frequency c out of
// 2^P turns x into (x div f) 2^P + (x mod f) + c; decoding is the inverse. Words leave and enter in
// lane order, so one vector instruction serves many lanes, and a GPU warp can do the same.

constexpr std::size_t kGroup = ELBOWROOM_GROUP;  // lanes: symbols of a group
constexpr int kGroupVectors = static_cast<int>(kGroup) / kLanes;
constexpr std::uint32_t kLowState = 1u << 16;

// Symbols stand for levels: 128 is zero, 128 + j and 128 - j are the levels j and -j. Levels up to
// 64 are values; eight levels an octave stand for the values beyond, with extra bits to tell them
// apart.
inline I level_of_symbol(I symbol) { return i_abs(i_sub(symbol, i_set(128))); }

// None for zero and for escapes (symbol 0, level 128).
inline I extra_bits_of(I level, int shift) {
    const I octave = i_shr<3>(i_sub(level, i_set(65)));
    const M tail = i_less(i_set(64), level);
    I bits = i_select(tail, i_add(octave, i_set(3 + shift)), i_set(shift));
    if (shift > 0) bits = i_select(i_equal(level, i_set(0)), i_set(0), bits);
    return i_select(i_equal(level, i_set(128)), i_set(0), bits);
}

inline I low_mask(I bits) { return i_sub(i_shlv(i_set(1), bits), i_set(1)); }

struct Lanes {
    I x[kGroupVectors];
};

inline Lanes fresh_lanes() {
    Lanes lanes;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v)
        lanes.x[v] = i_set(static_cast<std::int32_t>(kLowState));
    return lanes;
}

// `bits` low-order bits of a lane's choice (0 to 16) as they are, moving p down.
inline void put_plain(I& x, I bits, I value, std::uint16_t*& p) {
    const I room = i_sub(i_set(32), bits);
    const M give = m_not(i_equal(i_shrv(x, room), i_set(0)));
    give_words(x, give, p);
    x = i_select(give, i_shr<16>(x), x);
    x = i_or(i_shlv(x, bits), value);
}

// The extra bits of a group, if a lane has some; `extra` holds them in the low places.
inline void put_extra(Lanes& lanes, const std::uint16_t* index, const std::int32_t* extra,
                      int shift, std::uint16_t*& p) {
    I count[kGroupVectors];
    M any{}, many{};
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
        const I symbol = i_and(i_load_u16(index + kLanes * v), i_set(0xff));
        count[v] = extra_bits_of(level_of_symbol(symbol), shift);
        any = m_or(any, i_less(i_set(0), count[v]));
        many = m_or(many, i_less(i_set(16), count[v]));
    }
    if (m_bits(any) != 0) {
        if (m_bits(many) != 0) {
#pragma GCC unroll 4
            for (int v = kGroupVectors - 1; v >= 0; --v) {
                const I high = i_max(i_sub(count[v], i_set(16)), i_set(0));
                const I value = i_and(i_shr<16>(i_load(extra + kLanes * v)), low_mask(high));
                put_plain(lanes.x[v], high, value, p);
            }
        }
#pragma GCC unroll 4
        for (int v = kGroupVectors - 1; v >= 0; --v) {
            const I low = i_min(count[v], i_set(16));
            const I value = i_and(i_load(extra + kLanes * v), low_mask(low));
            put_plain(lanes.x[v], low, value, p);
        }
    }
}

// Codes the group at `index` (table * 256 + symbol for each lane), moving p down. `shares` holds
// the frequency in the low half and the cumulative frequency in the high half.
inline void put_group(Lanes& lanes, const std::uint32_t* shares, const std::uint16_t* index,
                      int bits, std::uint16_t*& p) {
#pragma GCC unroll 4
    for (int v = kGroupVectors - 1; v >= 0; --v) {
        const I share = i_gather(shares, i_load_u16(index + kLanes * v));
        const I frequency = i_and(share, i_set(0xffff));
        I x = lanes.x[v];
        // x / f must stay below 2^(32 - P).
        const M give = m_not(i_less(i_shr(x, 32 - bits), frequency));
        give_words(x, give, p);
        x = i_select(give, i_shr<16>(x), x);
        // Lowered a little, the quotient is right or one too small: it is below 2^21, and the
        // lowering and all roundings together are below 2^-21 of it.
        const F inverse = f_mul(f_inverse(f_of_i(frequency)), f_set(1.0f - 0x1p-22f));
        I quotient = i_truncate(f_mul(f_of_u(x), inverse));
        I rest = i_sub(x, i_mul(quotient, frequency));
        const M low = m_not(i_less(rest, frequency));
        quotient = i_select(low, i_add(quotient, i_set(1)), quotient);
        rest = i_select(low, i_sub(rest, frequency), rest);
        lanes.x[v] = i_add(i_add(i_shl(quotient, bits), rest), i_shr<16>(share));
    }
}

// A slot of a decode table: symbol (bits 0-7), frequency - 1 (8-19), slot - cumulative (20-31).
inline I slots_of(I x, I table, int bits) {
    return i_add(i_shl(table, bits), i_and(x, i_set((1 << bits) - 1)));
}

// Decodes one vector of a group; `table` names each lane's table. Returns the symbols.
inline I take_vector(I& x, const std::uint32_t* slots, I table, int bits, const std::uint16_t*& p) {
    const I slot = i_gather(slots, slots_of(x, table, bits));
    const I frequency = i_add(i_and(i_shr<8>(slot), i_set(0xfff)), i_set(1));
    x = i_add(i_mul(frequency, i_shr(x, bits)), i_shr<20>(slot));
    const M need = i_below_2_16(x);
    x = take_words(x, need, p);
    return i_and(slot, i_set(0xff));
}

inline I take_plain(I& x, I bits, const std::uint16_t*& p) {
    const I value = i_and(x, low_mask(bits));
    x = i_shrv(x, bits);
    x = take_words(x, i_below_2_16(x), p);
    return value;
}

// The extra bits of a whole group, if any lane has some.
inline void take_extra(Lanes& lanes, const I* level, int shift, const std::uint16_t*& p, I* extra) {
    I count[kGroupVectors];
    M many{};
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
        count[v] = extra_bits_of(level[v], shift);
        many = m_or(many, i_less(i_set(16), count[v]));
        extra[v] = take_plain(lanes.x[v], i_min(count[v], i_set(16)), p);
    }
    if (m_bits(many) == 0) return;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
        const I high = i_max(i_sub(count[v], i_set(16)), i_set(0));
        extra[v] = i_or(extra[v], i_shl<16>(take_plain(lanes.x[v], high, p)));
    }
}
