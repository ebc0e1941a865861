// Pooling indices as places in their windows.
#include <algorithm>
#include <array>
#include <atomic>

#include "common/pool.hpp"
#include "masks/masks.hpp"

namespace elbowroom {
namespace {

constexpr std::size_t most_places = 256;
constexpr std::size_t strip = 512;  // outputs worked on at once

// How far each place of a window lies behind its corner.
std::array<std::int32_t, most_places> offsets_of(const Pooling& p) {
    std::array<std::int32_t, most_places> offsets{};
    for (std::int64_t y = 0; y < p.kernel[0]; ++y)
        for (std::int64_t x = 0; x < p.kernel[1]; ++x)
            offsets[static_cast<std::size_t>(y * p.kernel[1] + x)] =
                static_cast<std::int32_t>(y * p.dilation[0] * p.pitch + x * p.dilation[1]);
    return offsets;
}

// Calls body(position in the plane, count, index of the first corner) for strips of every row.
template <class Body>
void over_strips(const Pooling& p, Body&& body) {
    for (std::size_t row = 0; row < p.height; ++row) {
        const std::int64_t corner =
            (static_cast<std::int64_t>(row) * p.stride[0] - p.padding[0]) * p.pitch - p.padding[1];
        for (std::size_t x = 0; x < p.width; x += strip)
            body(row * p.width + x, std::min(strip, p.width - x),
                 corner + static_cast<std::int64_t>(x) * p.stride[1]);
    }
}

}  // namespace

bool Pooling::is_sane() const noexcept {
    constexpr std::int64_t most = std::int64_t{1} << 24;
    const auto within = [](std::int64_t v, std::int64_t low) { return v >= low && v <= most; };
    for (int axis = 0; axis < 2; ++axis)
        if (!within(kernel[axis], 1) || !within(stride[axis], 1) || !within(padding[axis], 0) ||
            !within(dilation[axis], 1))
            return false;
    constexpr std::size_t longest = std::size_t{1} << 31;
    if (!within(pitch, 1) || height >= longest || width >= longest || kernel[0] > 256 ||
        kernel[1] > 256 || places() > most_places)
        return false;
    const std::int64_t below = (kernel[0] - 1) * dilation[0];  // at most 2^32
    return below < most && below * pitch + (kernel[1] - 1) * dilation[1] < INT32_MAX;
}

std::size_t Pooling::places() const noexcept {
    return static_cast<std::size_t>(kernel[0] * kernel[1]);
}

unsigned Pooling::bits() const noexcept {
    return places() <= 2 ? 1 : places() <= 4 ? 2 : places() <= 16 ? 4 : 8;
}

std::size_t Pooling::plane_bytes() const noexcept { return (height * width * bits() + 7) / 8; }

bool pack_windows(const Pooling& p, const std::int64_t* index, std::size_t planes,
                  std::uint8_t* out, unsigned threads) noexcept {
    const auto offsets = offsets_of(p);
    const std::size_t count = p.places(), bits = p.bits();
    std::atomic<bool> inside{true};
    parallel_for(planes, threads, [&](std::size_t plane) {
        const std::int64_t* from = index + plane * p.height * p.width;
        std::uint8_t* to = out + plane * p.plane_bytes();
        std::fill_n(to, p.plane_bytes(), std::uint8_t{0});
        over_strips(p, [&](std::size_t at, std::size_t n, std::int64_t corner) {
            std::int32_t place[strip], behind[strip];
            for (std::size_t i = 0; i < n; ++i) {
                // Modulo 2^64: no index can overflow.
                const std::uint64_t far = static_cast<std::uint64_t>(from[at + i]) -
                                          static_cast<std::uint64_t>(corner) -
                                          i * static_cast<std::uint64_t>(p.stride[1]);
                behind[i] = far < INT32_MAX ? static_cast<std::int32_t>(far) : -1;
                place[i] = -1;
            }
            for (std::size_t k = 0; k < count; ++k)
                for (std::size_t i = 0; i < n; ++i)
                    place[i] = behind[i] == offsets[k] ? static_cast<std::int32_t>(k) : place[i];
            std::int32_t worst = 0;
            for (std::size_t i = 0; i < n; ++i) worst = std::min(worst, place[i]);
            if (worst < 0) {
                inside = false;
                return;
            }
            for (std::size_t i = 0; i < n; ++i)
                to[(at + i) * bits / 8] |=
                    static_cast<std::uint8_t>(place[i] << ((at + i) * bits % 8));
        });
    });
    return inside;
}

void expand_windows(const Pooling& p, const std::uint8_t* places, std::size_t planes,
                    std::int64_t* index, unsigned threads) noexcept {
    const auto offsets = offsets_of(p);
    const std::size_t bits = p.bits(), mask = (std::size_t{1} << bits) - 1;
    parallel_for(planes, threads, [&](std::size_t plane) {
        const std::uint8_t* from = places + plane * p.plane_bytes();
        std::int64_t* to = index + plane * p.height * p.width;
        over_strips(p, [&](std::size_t at, std::size_t n, std::int64_t corner) {
            for (std::size_t i = 0; i < n; ++i) {
                const std::size_t place = from[(at + i) * bits / 8] >> ((at + i) * bits % 8) & mask;
                to[at + i] = corner + static_cast<std::int64_t>(i) * p.stride[1] + offsets[place];
            }
        });
    });
}

}  // namespace elbowroom
