// Which instruction set the kernels use.
#pragma once

#include <optional>
#include <string_view>

namespace elbowroom {

// Ordered: a later level includes the earlier ones.
enum class Isa { scalar = 0, avx2 = 1, avx512 = 2 };

inline constexpr int isa_count = 3;

// The highest level that this processor and operating system can run.
Isa detect() noexcept;

// The level in use: the detected one, lowered by the environment variable
// ELBOWROOM_ISA if it names a level. The environment is read once.
Isa current() noexcept;

// Changes the level in use; false, and no change, if it is above detect().
bool set_isa(Isa isa) noexcept;

const char* name(Isa isa) noexcept;
std::optional<Isa> isa_from_name(std::string_view text) noexcept;

}  // namespace elbowroom
