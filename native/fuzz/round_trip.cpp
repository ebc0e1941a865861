// Fuzz target: any values under any recipe. Every level writes the same bytes within its room, and
// what comes back keeps the bound.
#include "tests/round_trip.hpp"

#include <cstdio>

#include "codec/choose.hpp"
#include "fuzz/input.hpp"
#include "fuzz/mutation.hpp"

using namespace elbowroom;

namespace {

// The choice is made from a sample: it must stay inside the array and must not depend on the level.
Stream choose_at(const std::vector<Isa>& levels, const Stream& stream,
                 const std::vector<std::uint8_t>& bytes, std::size_t items) {
    const coding::Guarded source(bytes.data(), bytes.size());
    Stream first = stream;
    std::uint8_t expected[recipe_bytes] = {};
    for (const Isa isa : levels) {
        const coding::AtLevel level(isa);
        Stream chosen = stream;
        Stream again;
        std::uint8_t recipe[recipe_bytes];
        if (!choose(chosen, source.data(), items)) return stream;
        write_recipe(chosen, recipe);
        if (!read_recipe(recipe, recipe_bytes, again)) {
            round_trip::complain(chosen, items, isa, "an invalid choice");
            std::abort();
        }
        if (isa == levels[0]) {
            first = chosen;
            std::memcpy(expected, recipe, recipe_bytes);
        } else if (std::memcmp(expected, recipe, recipe_bytes) != 0) {
            round_trip::complain(chosen, items, isa, "another choice");
            std::abort();
        }
    }
    return first;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Values v;
    if (!fuzz::read_values(data, size, v)) return 0;
    const std::vector<Isa> levels = coding::two_levels(checksum(data, size));
    if (v.choosing) v.stream = choose_at(levels, v.stream, v.bytes, v.items);
    if (!round_trip::holds_at(levels, v.stream, v.bytes.data(), v.items)) std::abort();
    return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
    return fuzz::mutate(data, size, most, seed, fuzz::Tail::values, LLVMFuzzerMutate);
}
