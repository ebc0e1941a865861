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

// What Python gives for a parameter: numbers for addresses and types, the rest as it is.
template <class T>
struct Parameter {
    using Given = T;
    static T take(Given given) { return given; }
};
template <class T>
struct Parameter<T*> {
    using Given = std::uintptr_t;
    static T* take(Given address) { return reinterpret_cast<T*>(address); }
};
template <>
struct Parameter<Dtype> {
    using Given = int;
    static Dtype take(Given number) { return static_cast<Dtype>(number); }
};
template <class T>
using Given = typename Parameter<T>::Given;

// The function for Python, without the interpreter lock; the check of its first argument throws.
template <class Result, class First, class... Rest>
auto released(Result (*function)(First, Rest...) noexcept, void (*check)(Given<First>) = nullptr) {
    return [function, check](Given<First> first, Given<Rest>... rest) -> Result {
        if (check != nullptr) check(first);
        const nb::gil_scoped_release release;
        return function(Parameter<First>::take(first), Parameter<Rest>::take(rest)...);
    };
}

void check_item(std::size_t item) {
    if (item != 2 && item != 4 && item != 8) throw nb::value_error("items have 2, 4 or 8 bytes");
}

void check_floating(int dtype) {
    if (dtype < 1 || dtype > 4) throw nb::value_error("only floating-point items have signs");
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
        .def("pack", released(pack_windows), "index"_a, "planes"_a, "out"_a, "threads"_a,
             "Places of indices; False when one lies outside its window.")
        .def("expand", released(expand_windows), "places"_a, "planes"_a, "index"_a, "threads"_a,
             "Indices of places.");
    module.def("pack_positive", released(pack_positive, check_floating), "dtype"_a, "source"_a,
               "items"_a, "out"_a, "threads"_a, "One bit an item: whether it is above zero.");
    module.def("pack_either", released(pack_either, check_item), "item_bytes"_a, "source"_a,
               "items"_a, "low"_a, "high"_a, "out"_a, "threads"_a,
               "One bit an item: whether it has the pattern high; False if one has neither.");
    module.def("expand_bits", released(expand_bits, check_item), "item_bytes"_a, "bits"_a,
               "items"_a, "low"_a, "high"_a, "target"_a, "threads"_a,
               "Items of the pattern high where the bit is set, of low elsewhere.");
}

}  // namespace elbowroom
