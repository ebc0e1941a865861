#include "bindings/bindings.hpp"

namespace elbowroom {

void register_codecs(nanobind::module_&) {}

}  // namespace elbowroom
