// The 64 bytes that say how a stream was made. docs/format.md, "Recipe".
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"

namespace elbowroom {

constexpr std::size_t recipe_bytes = 64;

// False when a field is out of its range: nothing that passes can make a kernel misbehave.
bool read_recipe(const std::uint8_t* bytes, std::size_t size, Stream& stream) noexcept;
void write_recipe(const Stream& stream, std::uint8_t* bytes) noexcept;

}  // namespace elbowroom
