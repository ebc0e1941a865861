// Fresh memory by the group: the kernel gives many pages at once for half of what they cost one by
// one, as each is first written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace elbowroom {

// Walks through memory that is written from its start, a little ahead of the writer.
class PagesAhead {
  public:
    PagesAhead(const std::uint8_t* begin, std::size_t bytes) noexcept
        : next_(up(address(begin))), end_(address(begin) + bytes) {}

    // `expected` more bytes will be written from `at` on. More than a group is never taken ahead.
    void expect(const std::uint8_t* at, std::size_t expected) noexcept {
        const std::uintptr_t to = std::min(address(at) + std::min(expected, group_bytes), end_);
        if (to < next_ + least_bytes) return;
        take(std::min(up(to), end_ / page_bytes * page_bytes));
    }

  private:
    static constexpr std::size_t page_bytes = 4096;
    static constexpr std::size_t group_bytes = std::size_t{512} << 10;
    static constexpr std::size_t least_bytes = std::size_t{64} << 10;

    static std::uintptr_t address(const std::uint8_t* p) noexcept {
        return reinterpret_cast<std::uintptr_t>(p);
    }
    static std::uintptr_t up(std::uintptr_t a) noexcept {
        return (a + page_bytes - 1) / page_bytes * page_bytes;
    }
    void take(std::uintptr_t to) noexcept {
#if defined(__linux__)
        constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
        // A kernel or a page size that will not have it: pages come as they are written.
        if (madvise(reinterpret_cast<void*>(next_), to - next_, populate_write) != 0) end_ = 0;
#endif
        next_ = to;
    }

    std::uintptr_t next_, end_;
};

}  // namespace elbowroom
