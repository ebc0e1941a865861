// Sixty-four range coders side by side (rANS with 16-bit renormalisation).
//
// State x of a lane lies in [2^16, 2^32). A symbol of frequency f and cumulative frequency c out of
// 2^P turns x into (x div f) 2^P + (x mod f) + c; decoding is the inverse. Words leave and enter in
// lane order, so one vector instruction serves many lanes, and a GPU warp can do the same.

constexpr std::size_t kGroup = 64;  // lanes: symbols of a group
constexpr int kGroupVectors = static_cast<int>(kGroup) / kLanes;
constexpr std::uint32_t kLowState = 1u << 16;
constexpr int kSymbols = 256;

struct Lanes {
    I x[kGroupVectors];
};

inline Lanes fresh_lanes() {
    Lanes lanes;
    for (int v = 0; v < kGroupVectors; ++v) lanes.x[v] = i_set(static_cast<std::int32_t>(kLowState));
    return lanes;
}

// Codes the group at `index` (table * 256 + symbol for each lane), moving p down. `shares` holds
// the frequency in the low half and the cumulative frequency in the high half.
inline void put_group(Lanes& lanes, const std::uint32_t* shares, const std::uint16_t* index,
                      int bits, std::uint16_t*& p) {
    for (int v = kGroupVectors - 1; v >= 0; --v) {
        const I at = i_load_u16(index + kLanes * v);
        const I share = i_gather(shares, at);
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
