// The Python module elbowroom._native: a thin shim over the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <string>

#include "bindings/bindings.hpp"
#include "common/isa.hpp"
#include "common/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace elbowroom {
namespace {

Isa parse(const std::string& text) {
    const std::optional<Isa> isa = isa_from_name(text);
    if (!isa) {
        throw nb::value_error(
            ("the instruction set must be scalar, avx2 or avx512, got '" + text + "'").c_str());
    }
    return *isa;
}

void select_isa(const std::string& text) {
    const Isa isa = parse(text);
    if (!set_isa(isa)) {
        throw nb::value_error(
            ("this processor cannot run " + text + "; its highest level is " + name(detect()))
                .c_str());
    }
}

nb::list isa_levels() {
    nb::list levels;
    for (int level = 0; level <= static_cast<int>(detect()); ++level) {
        levels.append(nb::str(name(static_cast<Isa>(level))));
    }
    return levels;
}

// A misspelt ELBOWROOM_ISA must not silently select the default.
void check_environment() {
    const char* text = std::getenv("ELBOWROOM_ISA");
    if (text != nullptr && *text != '\0' && !isa_from_name(text)) {
        throw nb::import_error(
            (std::string("ELBOWROOM_ISA must be scalar, avx2 or avx512, got '") + text + "'")
                .c_str());
    }
}

}  // namespace
}  // namespace elbowroom

NB_MODULE(_native, module) {
    using namespace elbowroom;
    check_environment();
    module.doc() = "The compiled kernels of Elbowroom.";
    module.def("isa", [] { return nb::str(name(current())); }, "The instruction set in use.");
    module.def("set_isa", &select_isa, "name"_a,
               "Use this instruction set from now on, in the whole process.");
    module.def("isa_levels", &isa_levels,
               "The instruction sets this processor can run, lowest first.");
    module.def("join_team", &join_team,
               "Work on the process's OpenMP threads from now on; False if it has none.");
    register_codecs(module);
    register_masks(module);
    register_store(module);
}
