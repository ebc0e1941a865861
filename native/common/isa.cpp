#include "common/isa.hpp"

#include <atomic>
#include <cstdlib>

namespace elbowroom {
namespace {

Isa detect_now() noexcept {
#if ELBOWROOM_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("popcnt");
    if (!avx2) return Isa::scalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512cd");
    return avx512 ? Isa::avx512 : Isa::avx2;
#else
    return Isa::scalar;
#endif
}

Isa initial() noexcept {
    const Isa best = detect();
    const char* text = std::getenv("ELBOWROOM_ISA");
    const std::optional<Isa> wanted = isa_from_name(text ? text : "");
    return wanted && *wanted < best ? *wanted : best;
}

std::atomic<Isa>& selected() noexcept {
    static std::atomic<Isa> level{initial()};
    return level;
}

}  // namespace

Isa detect() noexcept {
    static const Isa level = detect_now();
    return level;
}

Isa current() noexcept { return selected().load(std::memory_order_relaxed); }

bool set_isa(Isa isa) noexcept {
    if (isa > detect()) return false;
    selected().store(isa, std::memory_order_relaxed);
    return true;
}

const char* name(Isa isa) noexcept {
    switch (isa) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        case Isa::scalar:
            break;
    }
    return "scalar";
}

std::optional<Isa> isa_from_name(std::string_view text) noexcept {
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
        if (text == name(isa)) return isa;
    }
    return std::nullopt;
}

}  // namespace elbowroom
