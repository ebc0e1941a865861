// The checkpoint functions of elbowroom._native. Memory comes as addresses and sizes.
#include "store/store.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace elbowroom {
namespace {

std::uint8_t* at(std::uintptr_t address) { return reinterpret_cast<std::uint8_t*>(address); }

Relation relation_of(int number, std::size_t item, double factor) {
    if (number < 0 || number > 3) throw nb::value_error("differences have the numbers 0 to 3");
    if (item != 1 && item != 2 && item != 4 && item != 8)
        throw nb::value_error("items have 1, 2, 4 or 8 bytes");
    const Relation relation{static_cast<Difference>(number), item, factor};
    if (relation.difference == Difference::scaled &&
        (item < 4 || !(factor >= least_factor && factor <= most_factor)))
        throw nb::value_error("floats of 4 or 8 bytes are scaled, by 2^-20 to 2^20");
    return relation;
}

void digest(std::uintptr_t data, std::size_t nbytes, std::uintptr_t out) {
    const nb::gil_scoped_release release;
    hash_whole(at(data), nbytes, at(out));
}

void hash(std::uintptr_t data, std::size_t nbytes, std::size_t part_bytes, std::uintptr_t out,
          unsigned threads) {
    if (part_bytes == 0) throw nb::value_error("parts have at least one byte");
    const nb::gil_scoped_release release;
    hash_parts(at(data), nbytes, part_bytes, at(out), threads);
}

void pair_up(std::uintptr_t leaves, std::size_t count, std::uintptr_t out) {
    const nb::gil_scoped_release release;
    hash_pairs(at(leaves), count, at(out));
}

void copy(const std::vector<std::uintptr_t>& from, const std::vector<std::uintptr_t>& to,
          const std::vector<std::size_t>& nbytes, unsigned threads) {
    if (from.size() != to.size() || from.size() != nbytes.size())
        throw nb::value_error("there are as many places as targets and sizes");
    std::vector<Run> runs(from.size());
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i] = {at(from[i]), at(to[i]), nbytes[i]};
    const nb::gil_scoped_release release;
    copy_runs(runs, threads);
}

void split(int number, std::size_t item, double factor, std::uintptr_t now, std::uintptr_t before,
           std::size_t count, std::uintptr_t out) {
    const Relation relation = relation_of(number, item, factor);
    if (relation.difference != Difference::plain && before == 0 && count != 0)
        throw nb::value_error("a difference needs what was before");
    const nb::gil_scoped_release release;
    split_planes(relation, at(now), at(before), count, at(out));
}

void join(int number, std::size_t item, double factor, const std::vector<std::uintptr_t>& planes,
          std::size_t count, std::uintptr_t target) {
    const Relation relation = relation_of(number, item, factor);
    if (planes.size() != item) throw nb::value_error("items have as many planes as bytes");
    const std::uint8_t* places[most_planes];
    for (std::size_t p = 0; p < item; ++p) places[p] = at(planes[p]);
    const nb::gil_scoped_release release;
    join_planes(relation, places, count, at(target));
}

}  // namespace

void register_store(nb::module_& module) {
    module.def("hash_whole", &digest, "address"_a, "nbytes"_a, "out"_a, "XXH3-128 of all bytes.");
    module.def("hash_parts", &hash, "address"_a, "nbytes"_a, "part_bytes"_a, "out"_a, "threads"_a,
               "XXH3-128 of every part, the last of which may be shorter.");
    module.def("digests_above", &digests_above, "leaves"_a,
               "How many digests a tree of pairs has above so many leaves.");
    module.def("hash_pairs", &pair_up, "address"_a, "count"_a, "out"_a,
               "XXH3-128 of pairs of digests, and of pairs of those, up to the root.");
    module.def("copy_runs", &copy, "sources"_a, "targets"_a, "sizes"_a, "threads"_a,
               "Copy runs of bytes past the caches.");
    module.def("split_planes", &split, "difference"_a, "item_bytes"_a, "factor"_a, "now"_a,
               "before"_a, "count"_a, "out"_a,
               "Differences of items, equal bytes of all side by side.");
    module.def("join_planes", &join, "difference"_a, "item_bytes"_a, "factor"_a, "planes"_a,
               "count"_a, "target"_a, "Undo split_planes upon what was before.");
}

}  // namespace elbowroom
