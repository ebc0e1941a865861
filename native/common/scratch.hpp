// Buffers a thread needs while it works on one chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

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
    const std::size_t bytes = (count * sizeof(T) + 64) / 64 * 64;
    return Buffer<T>(static_cast<T*>(std::aligned_alloc(64, bytes)));
}

}  // namespace elbowroom
