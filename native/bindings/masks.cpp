// The mask functions of elbowroom._native. Arrays come as addresses and sizes.
#include "masks/masks.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>

#include "bindings/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace elbowroom {
namespace {

using Pair = std::array<std::int64_t, 2>;

template <class T>
T* pointer(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

void check_item(std::size_t item) {
    if (item != 2 && item != 4 && item != 8) throw nb::value_error("items have 2, 4 or 8 bytes");
}

Pooling pooling_of(std::size_t height, std::size_t width, std::int64_t pitch, Pair kernel,
                   Pair stride, Pair padding, Pair dilation) {
    Pooling p{height, width, pitch, {}, {}, {}, {}};
    for (int axis = 0; axis < 2; ++axis) {
        p.kernel[axis] = kernel[static_cast<std::size_t>(axis)];
        p.stride[axis] = stride[static_cast<std::size_t>(axis)];
        p.padding[axis] = padding[static_cast<std::size_t>(axis)];
        p.dilation[axis] = dilation[static_cast<std::size_t>(axis)];
    }
    if (!p.is_sane()) throw nb::value_error("the pooling's numbers are out of range");
    return p;
}

}  // namespace

void register_masks(nb::module_& module) {
    nb::class_<Pooling>(module, "Pooling", "The geometry of a two-dimensional pooling.")
        .def(
            "__init__",
            [](Pooling* self, std::size_t height, std::size_t width, std::int64_t pitch,
               Pair kernel, Pair stride, Pair padding, Pair dilation) {
                new (self)
                    Pooling(pooling_of(height, width, pitch, kernel, stride, padding, dilation));
            },
            "height"_a, "width"_a, "pitch"_a, "kernel"_a, "stride"_a, "padding"_a, "dilation"_a)
        .def_prop_ro("plane_nbytes", &Pooling::plane_bytes, "Bytes of the places of a plane.")
        .def(
            "pack",
            [](const Pooling& p, std::uintptr_t index, std::size_t planes, std::uintptr_t out,
               unsigned threads) {
                const nb::gil_scoped_release release;
                return pack_windows(p, pointer<const std::int64_t>(index), planes,
                                    pointer<std::uint8_t>(out), threads);
            },
            "index"_a, "planes"_a, "out"_a, "threads"_a,
            "Places of indices; False when one lies outside its window.")
        .def(
            "expand",
            [](const Pooling& p, std::uintptr_t places, std::size_t planes, std::uintptr_t index,
               unsigned threads) {
                const nb::gil_scoped_release release;
                expand_windows(p, pointer<const std::uint8_t>(places), planes,
                               pointer<std::int64_t>(index), threads);
            },
            "places"_a, "planes"_a, "index"_a, "threads"_a, "Indices of places.");
    module.def(
        "pack_positive",
        [](int dtype, std::uintptr_t source, std::size_t items, std::uintptr_t out,
           unsigned threads) {
            if (dtype < 1 || dtype > 4)
                throw nb::value_error("only floating-point items have signs");
            const nb::gil_scoped_release release;
            pack_positive(static_cast<Dtype>(dtype), pointer<const void>(source), items,
                          pointer<std::uint8_t>(out), threads);
        },
        "dtype"_a, "source"_a, "items"_a, "out"_a, "threads"_a,
        "One bit an item: whether it is above zero.");
    module.def(
        "pack_either",
        [](std::size_t item, std::uintptr_t source, std::size_t items, std::uint64_t low,
           std::uint64_t high, std::uintptr_t out, unsigned threads) {
            check_item(item);
            const nb::gil_scoped_release release;
            return pack_either(item, pointer<const void>(source), items, low, high,
                               pointer<std::uint8_t>(out), threads);
        },
        "item_bytes"_a, "source"_a, "items"_a, "low"_a, "high"_a, "out"_a, "threads"_a,
        "One bit an item: whether it has the pattern high; False if one has neither.");
    module.def(
        "expand_bits",
        [](std::size_t item, std::uintptr_t bits, std::size_t items, std::uint64_t low,
           std::uint64_t high, std::uintptr_t target, unsigned threads) {
            check_item(item);
            const nb::gil_scoped_release release;
            expand_bits(item, pointer<const std::uint8_t>(bits), items, low, high,
                        pointer<void>(target), threads);
        },
        "item_bytes"_a, "bits"_a, "items"_a, "low"_a, "high"_a, "target"_a, "threads"_a,
        "Items of the pattern high where the bit is set, of low elsewhere.");
}

}  // namespace elbowroom
