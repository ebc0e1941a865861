// Yes or no, many times: adaptive bins and a binary range coder. docs/format.md, "Sparse".
//
// A decision is coded with the mean of two bins' estimates: one of a sharp context, which forgets
// soon, and one of a broad context, which learns from more. Any bin costs at most 1.04 bits a
// decision and 5 bits once, whatever it is given (found by value iteration over all its states);
// the mean costs no more than both do on average, as the logarithm is concave.

// The share of ones in 65536ths, and how many decisions have shaped it.
struct Bin {
    std::uint16_t share;
    std::uint16_t count;
};
constexpr Bin kFreshBin{32768, 0};

// A bin moves by 1 / (count + 1.5) of the way, so the count's limit is how long it remembers.
constexpr std::uint16_t kSharpMemory = 20;
constexpr std::uint16_t kBroadMemory = 200;
constexpr std::int32_t kLeastShare = 16;

struct Rates {
    std::int32_t of[kBroadMemory + 1];
};
constexpr Rates make_rates() {
    Rates r{};
    for (int n = 0; n <= kBroadMemory; ++n) r.of[n] = 131072 / (2 * n + 3);
    return r;
}
constexpr Rates kRates = make_rates();

inline void learn(Bin& bin, bool bit, std::uint16_t memory) {
    const std::int32_t share = bin.share;
    const std::int32_t goal = bit ? 65536 - kLeastShare : kLeastShare;
    // The product fits: a bin that moves fast is not yet far from the middle.
    bin.share = static_cast<std::uint16_t>(share + (((goal - share) * kRates.of[bin.count]) >> 16));
    bin.count = static_cast<std::uint16_t>(bin.count + (bin.count < memory));
}

// The share of zeros in 65536ths that a decision is coded with; the bins learn what it was.
inline std::uint64_t zeros_of(const Bin& sharp, const Bin& broad) {
    return 65536u - ((static_cast<std::uint32_t>(sharp.share) + broad.share) >> 1);
}

// The interval [low, low + range) of 64 bits slides along the number that the bytes spell, the
// highest first. Zeros take its lower part: a chunk of zeros only is the number 0, in no bytes.
class DecisionWriter {
  public:
    static constexpr bool reads = false;

    explicit DecisionWriter(std::uint8_t* out) : begin_(out), out_(out) {}

    [[gnu::always_inline]] bool decide(Bin& sharp, Bin& broad, bool bit) {
        put(bit, zeros_of(sharp, broad));
        learn(sharp, bit, kSharpMemory);
        learn(broad, bit, kBroadMemory);
        return bit;
    }
    bool decide_evenly(bool bit) {
        put(bit, 32768);
        return bit;
    }

    // Writes the number of the interval with most zero bytes at its end, without these. Returns
    // where the bytes end.
    std::uint8_t* finish() {
        std::uint64_t number = 0;
        if (low_ != 0) {
            if (range_ > 0 - low_) {
                carry();
            } else {
                for (int bytes = 7; bytes >= 0; --bytes) {
                    const std::uint64_t below = (std::uint64_t{1} << (8 * bytes)) - 1;
                    number = (low_ + below) & ~below;
                    if (number >= low_ && number - low_ < range_) break;
                }
            }
        }
        for (int i = 0; i < 8; ++i) *out_++ = static_cast<std::uint8_t>(number >> (56 - 8 * i));
        while (out_ != begin_ && out_[-1] == 0) --out_;
        return out_;
    }

  private:
    void put(bool bit, std::uint64_t zeros) {
        const std::uint64_t part = (range_ >> 16) * zeros;
        if (bit) {
            low_ += part;
            range_ -= part;
            if (low_ < part) carry();
        } else {
            range_ = part;
        }
        if (range_ >> 32 != 0) return;
        for (int i = 0; i < 4; ++i) *out_++ = static_cast<std::uint8_t>(low_ >> (56 - 8 * i));
        low_ <<= 32;
        range_ <<= 32;
    }
    // The number never grows beyond its first byte: intervals only shrink.
    void carry() {
        std::uint8_t* p = out_;
        do --p;
        while (++*p == 0);
    }

    std::uint64_t low_ = 0, range_ = ~std::uint64_t{0};
    std::uint8_t *begin_, *out_;
};

// Beyond the last byte there are zeros.
class DecisionReader {
  public:
    static constexpr bool reads = true;

    DecisionReader(const std::uint8_t* in, std::size_t size) : in_(in), size_(size) {
        value_ = static_cast<std::uint64_t>(next()) << 32;
        value_ |= next();
    }

    [[gnu::always_inline]] bool decide(Bin& sharp, Bin& broad, bool) {
        const bool bit = take(zeros_of(sharp, broad));
        learn(sharp, bit, kSharpMemory);
        learn(broad, bit, kBroadMemory);
        return bit;
    }
    bool decide_evenly(bool) { return take(32768); }

    // A number outside of every interval.
    bool is_lost() const { return value_ >= range_; }
    // A writer leaves no zeros at the end, and writes nothing that no decision needs.
    bool is_finished() const { return size_ == 0 || (size_ <= at_ && in_[size_ - 1] != 0); }

  private:
    bool take(std::uint64_t zeros) {
        const std::uint64_t part = (range_ >> 16) * zeros;
        const bool bit = value_ >= part;
        value_ -= bit ? part : 0;
        range_ = bit ? range_ - part : part;
        if (__builtin_expect(range_ >> 32 == 0, 0)) {
            range_ <<= 32;
            value_ = value_ << 32 | next();
        }
        return bit;
    }
    std::uint32_t next() {
        std::uint32_t word = 0;
        for (std::size_t i = at_; i < at_ + 4; ++i) word = word << 8 | (i < size_ ? in_[i] : 0u);
        at_ += 4;
        return word;
    }

    std::uint64_t value_ = 0, range_ = ~std::uint64_t{0};
    const std::uint8_t* in_;
    std::size_t size_, at_ = 0;
};

// What a writer would write, in 65536ths of a bit.
class DecisionMeter {
  public:
    static constexpr bool reads = false;

    [[gnu::always_inline]] bool decide(Bin& sharp, Bin& broad, bool bit) {
        const std::uint64_t zeros = zeros_of(sharp, broad);
        cost += (std::uint64_t{16} << 16) - wide::log2_fixed(bit ? 65536 - zeros : zeros);
        learn(sharp, bit, kSharpMemory);
        learn(broad, bit, kBroadMemory);
        return bit;
    }
    bool decide_evenly(bool bit) {
        cost += 65536;
        return bit;
    }

    std::uint64_t cost = 0;
};
