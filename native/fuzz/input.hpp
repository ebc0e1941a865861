// A fuzz input: a recipe, a number, and bytes that are a payload or values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/codec.hpp"
#include "codec/recipe.hpp"

namespace fuzz {

using elbowroom::recipe_bytes;
using elbowroom::Stream;

// Several chunks of the block codec. Larger numbers are folded to few items: drawn at random, most
// would be large, and large arrays take most of the time while they show little that small do not.
constexpr std::size_t most_items = 300000;
constexpr std::size_t few_items = 1024;
constexpr std::size_t head_bytes = recipe_bytes + 4;

// An input of the decoder: behind the recipe the number of items, the sizes of all chunks but the
// last (u32 each), and the chunks.
struct Payload {
    Stream stream;
    std::size_t items = 0;
    std::vector<std::uint32_t> sizes;
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
};

// False when the recipe is refused or the bytes end too early.
bool read_payload(const std::uint8_t* data, std::size_t size, Payload& payload);
std::vector<std::uint8_t> write_payload(const Stream& stream, std::size_t items,
                                        const std::vector<std::uint32_t>& sizes,
                                        const std::vector<std::uint8_t>& bytes);

// An input of the round trip: behind the recipe what to make of the rest, and bytes to make values
// from.
enum class Making : std::uint8_t { repeat = 0, walk = 1, noise = 2, mixture = 3, edges = 4 };

struct Values {
    Stream stream;
    std::size_t items = 0;
    bool choosing = false;  // the model is to be chosen from the values
    std::vector<std::uint8_t> bytes;
};

bool read_values(const std::uint8_t* data, std::size_t size, Values& values);
std::vector<std::uint8_t> write_values(const Stream& stream, std::size_t items, Making making,
                                       bool choosing, const std::vector<std::uint8_t>& bytes);

}  // namespace fuzz
