// Copies of what is not needed soon; included once by each store_<level>.cpp.

constexpr std::size_t kLine = 64;
constexpr std::size_t kLeastPast = 4096;  // below, a fence costs more than the caches do

void copy(const std::uint8_t* from, std::uint8_t* to, std::size_t nbytes) {
    if (nbytes >= kLeastPast) {
        const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
        std::memcpy(to, from, head);
        from += head, to += head, nbytes -= head;
        for (; nbytes >= 4 * kLine; from += 4 * kLine, to += 4 * kLine, nbytes -= 4 * kLine)
            for (std::size_t i = 0; i < 4; ++i) line_past(from + kLine * i, to + kLine * i);
        lines_end();
    }
    if (nbytes != 0) std::memcpy(to, from, nbytes);
}
