// Codes that are nearly all zero, as decisions: which blocks, pieces and codes are not, then how
// large these are and which sign they have. docs/format.md, "Sparse".

// The bins of every kind of decision, by sharp and by broad context.
struct Bins {
    Bin block_sharp[5 * 6 * 4], block_broad[9 * 6 * 3];
    Bin piece_sharp[6 * 6 * 2], piece_broad[7 * 9 * 3 * 2];
    Bin code_sharp[3 * 3 * 3 * 5 * 4 * 2], code_broad[7 * 8 * 5 * 2];
    Bin length_sharp[8 * 8 * 16], length_broad[11 * 7 * 16];
    Bin bits_sharp[33 * 4], bits_broad[33 * 4];
    Bin sign_sharp[9], sign_broad[81];
};

template <bool Rows>
class SparseModel {
  public:
    SparseModel(Bins* bins, const Past& past) : bins_(bins), past_(past) {
        auto* const all = reinterpret_cast<Bin*>(bins);
        for (std::size_t i = 0; i < sizeof(Bins) / sizeof(Bin); ++i) all[i] = kFreshBin;
        begin();
    }

    // At the start of a chunk: all that lies before it is zero.
    void begin() {
        if (Rows) past_.begin();
        recent_ = 0;
        last_ = before_ = 0;
        mean_ = left_ = second_ = 0;
        steps_ = 0;
    }

    // The next codes of the chunk, whole blocks but for its end. A reader finds zeros and puts the
    // codes in their place. Works on copies, which no store to memory can be thought to change.
    template <class Coder>
    void tile(Coder& shared, std::int32_t* codes, std::size_t count) {
        SparseModel model = *this;
        Coder coder = shared;
        for (std::size_t i = 0; i < count; i += kBlock)
            model.block(coder, codes + i, count - i < kBlock ? count - i : kBlock);
        *this = model;
        shared = coder;
    }

  private:
    template <class Coder>
    [[gnu::always_inline]] void block(Coder& coder, std::int32_t* codes, std::size_t count) {
        if (Rows) past_.extend();
        const std::uint64_t nonzero = Coder::reads ? 0 : nonzero_of(codes);
        const std::uint32_t above = Rows ? length_of(past_.count_above(kBlock), 5) : 0;
        const std::uint32_t sharp = (length_of(last_, 4) * 6 + above) * 4 + length_of(before_, 3);
        const std::uint32_t broad = (level() * 6 + above) * 3 + length_of(last_, 2);
        if (coder.decide(bins_->block_sharp[sharp], bins_->block_broad[broad], nonzero != 0)) {
            bool any = false;
            for (std::size_t i = 0; i < count; i += kPiece) {
                const std::size_t length = count - i < kPiece ? count - i : kPiece;
                // The last piece of a block that has something and had nothing so far.
                const bool clear = !any && i + length == count;
                if (clear || has_some(coder, nonzero >> i & 0xffff, any)) {
                    piece(coder, codes + i, length);
                    any = true;
                } else {
                    skip<kPiece>();
                }
            }
        } else {
            skip<kBlock>();
        }
        before_ = last_;
        last_ = ones_of(recent_);
        mean_ += (static_cast<std::int32_t>(last_ << 8) - mean_) >> 3;
    }

    std::uint32_t level() const { return length_of(static_cast<std::uint32_t>(mean_) >> 6); }

    // Goes past zeros. Their number is a constant, so that loops become vectors.
    template <std::size_t Count>
    void skip() {
        recent_ = Count < 64 ? recent_ << (Count % 64) : 0;
        left_ = second_ = 0;
        steps_ = 0;
        if (Rows) past_.append_zeros<Count>();
    }

    template <class Coder>
    [[gnu::always_inline]] bool has_some(Coder& coder, std::uint64_t nonzero, bool any) {
        const std::uint32_t above = Rows ? past_.count_above(kPiece) : 0;
        const std::uint32_t soon = length_of(ones_of(recent_ & 0xffff), 5);
        const std::uint32_t long_ago = length_of(ones_of(recent_), 6);
        const std::uint32_t sharp = (soon * 6 + length_of(above, 5)) * 2 + any;
        const std::uint32_t broad = ((long_ago * 9 + level()) * 3 + length_of(above, 2)) * 2 + any;
        return coder.decide(bins_->piece_sharp[sharp], bins_->piece_broad[broad], nonzero != 0);
    }

    // Codes of which at least one is not zero.
    template <class Coder>
    [[gnu::always_inline]] void piece(Coder& coder, std::int32_t* codes, std::size_t count) {
        Surroundings around;
        const bool apart = past_.columns > kPiece;  // from the row above
        if (Rows && apart) past_.look(0, kPiece, around);
        if (Rows) past_.begin_piece();
        std::uint32_t nonzero = 0;
        for (std::size_t i = 0; i < count; ++i) {
            if (Rows && !apart) past_.look(i, i + 1, around);
            const std::uint32_t many = length_of(ones_of(recent_ & 0xffffffff));
            // The last code of a piece that had only zeros so far.
            const bool clear = nonzero == 0 && i + 1 == count;
            if (!clear && !is_nonzero(coder, codes[i], around, i, many, nonzero != 0)) {
                recent_ <<= 1;
                second_ = left_;
                left_ = 0;
                steps_ = steps_ / 3;
                continue;
            }
            const Neighbours near =
                Rows ? past_.neighbours(i, left_, second_) : Neighbours{left_, second_, 0, 0, 0};
            code(coder, codes[i], near, many);
            nonzero |= 1u << i;
            recent_ = recent_ << 1 | 1;
            second_ = left_;
            left_ = codes[i] > 127 ? 127 : codes[i] < -127 ? -127 : codes[i];
            steps_ = step_of(left_) * 3 + steps_ / 3;
            if (Rows) past_.set(i, left_);
        }
        if (Rows) past_.end_piece(nonzero);
    }

    template <class Coder>
    [[gnu::always_inline]] bool is_nonzero(Coder& coder, std::int32_t code,
                                           const Surroundings& around, std::size_t i,
                                           std::uint32_t many, bool any) {
        std::uint32_t sharp, broad;
        if (Rows) {
            sharp = around.sharp[i];
            broad = around.broad[i];
        } else {
            sharp = length_of(ones_of(recent_ & 0x3fc), 3) * 2;
            broad = length_of(static_cast<std::uint32_t>(mean_) >> 7) * 10;
        }
        return coder.decide(bins_->code_sharp[steps_ * 120 + sharp + any],
                            bins_->code_broad[many * 80 + broad + steps_ / 3 * 2 + any], code != 0);
    }

    // A code that is not zero: its size, then its sign.
    template <class Coder>
    [[gnu::always_inline]] void code(Coder& coder, std::int32_t& code, const Neighbours& near,
                                     std::uint32_t many) {
        const auto bits = static_cast<std::uint32_t>(code);
        const std::uint32_t size = magnitude(coder, code < 0 ? 0u - bits : bits, near, many);
        const std::uint32_t nearest = sign_of(near.left) * 3 + sign_of(near.above);
        const std::uint32_t others = sign_of(near.second) * 3 + sign_of(near.above_right);
        const bool negative = coder.decide(bins_->sign_sharp[nearest],
                                           bins_->sign_broad[nearest * 9 + others], code < 0);
        if constexpr (Coder::reads) code = static_cast<std::int32_t>(negative ? 0u - size : size);
    }

    // Its length in unary; then the bits below the leading one, of which two have bins.
    template <class Coder>
    [[gnu::always_inline]] std::uint32_t magnitude(Coder& coder, std::uint32_t given,
                                                   const Neighbours& near, std::uint32_t many) {
        const std::uint32_t left = size_of(near.left), above = size_of(near.above);
        const std::uint32_t around = 2 * (left + above) + size_of(near.second) +
                                     size_of(near.above_left) + size_of(near.above_right);
        Bin* const sharp = bins_->length_sharp + (length_of(left) * 8 + length_of(above)) * 16;
        Bin* const broad = bins_->length_broad + (length_of(around) * 7 + many) * 16;
        const std::uint32_t wanted = length_of(given);
        std::uint32_t length = 1;
        for (; length < 32; ++length) {
            const std::uint32_t i = length < 15 ? length : 15;
            if (!coder.decide(sharp[i], broad[i], wanted > length)) break;
        }
        std::uint32_t size = 1;
        for (std::uint32_t below = length - 1; below-- > 0;) {
            const bool bit = given >> below & 1;
            const std::uint32_t i = length * 4 + size;
            const bool found = size < 4
                                   ? coder.decide(bins_->bits_sharp[i], bins_->bits_broad[i], bit)
                                   : coder.decide_evenly(bit);
            size = size << 1 | std::uint32_t{found};
        }
        return size;
    }

    Bins* bins_;
    Past past_;
    std::uint64_t recent_;         // the last 64 codes: bit 0 is set if the last was not zero
    std::uint32_t last_, before_;  // how many were not zero in the last block, and before that
    std::int32_t mean_;            // of such counts, in 256ths, over about eight blocks
    std::int32_t left_, second_;   // the last two codes, between -127 and 127
    std::uint32_t steps_;          // their steps: 3 of the last and 1 of the other
};
