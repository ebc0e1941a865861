// Changes of fuzz inputs that know the format, so that they get past the first checks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fuzz {

// Changes some bytes blindly, within `most`; returns the new size.
using Blind = std::size_t (*)(std::uint8_t* data, std::size_t size, std::size_t most);

// What the bytes behind the head are.
enum class Tail { payload, values };

// A blind change somewhere; then, mostly, numbers that would only be refused are put right.
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, std::uint32_t seed,
                   Tail tail, Blind blind);

}  // namespace fuzz
