// The floating-point environment that every kernel runs in.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace elbowroom {

// Round to nearest, denormals kept, for the lifetime of the object. A host may
// have asked for flush-to-zero (torch.set_flush_denormal does), and a stream
// must not depend on that.
class DefaultFloatEnv {
  public:
#if defined(__x86_64__)
    DefaultFloatEnv() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~DefaultFloatEnv() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
    DefaultFloatEnv() noexcept {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
    }
    ~DefaultFloatEnv() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
    DefaultFloatEnv() noexcept = default;
    ~DefaultFloatEnv() {}
#endif
    DefaultFloatEnv(const DefaultFloatEnv&) = delete;
    DefaultFloatEnv& operator=(const DefaultFloatEnv&) = delete;

  private:
#if defined(__x86_64__)
    unsigned saved_;
#elif defined(__aarch64__)
    std::uint64_t saved_;
#endif
};

}  // namespace elbowroom
