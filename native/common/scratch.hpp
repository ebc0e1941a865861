// Buffers a thread needs while it works on one chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace elbowroom {

struct Scratch {
    std::int32_t* codes = nullptr;
    std::int32_t* residuals = nullptr;
    std::uint32_t* index = nullptr;  // positions of values that failed their check
    std::uint8_t* bytes = nullptr;   // dense: everything else, carved up by room_of()
};

struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free>;

// Uninitialised and possibly null: the caller checks.
template <class T>
Buffer<T> make_buffer(std::size_t count) {
    constexpr std::size_t huge = std::size_t{2} << 20;
    const std::size_t align = count * sizeof(T) >= 2 * huge ? huge : 64;
    const std::size_t bytes = (count * sizeof(T) + align) / align * align;
    void* const p = std::aligned_alloc(align, bytes);
#if defined(__linux__)
    // Tables are read at random and everything else streams: both like large pages.
    if (p != nullptr && align == huge) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return Buffer<T>(static_cast<T*>(p));
}

}  // namespace elbowroom
