// What the binding files hand to one another.
#pragma once

#include <nanobind/nanobind.h>

namespace elbowroom {

// Adds the codec functions to the module.
void register_codecs(nanobind::module_& module);

// Adds the mask functions.
void register_masks(nanobind::module_& module);

// Adds what checkpoints need.
void register_store(nanobind::module_& module);

}  // namespace elbowroom
