#include "common/isa.hpp"

#include <string_view>

#include "check.hpp"

using namespace elbowroom;

TEST(isa_names_round_trip) {
    for (int level = 0; level < isa_count; ++level) {
        const Isa isa = static_cast<Isa>(level);
        CHECK(isa_from_name(name(isa)) == isa);
    }
    CHECK(!isa_from_name(""));
    CHECK(!isa_from_name("avx"));
    CHECK(!isa_from_name("AVX2"));
}

TEST(isa_can_be_lowered_and_raised_up_to_the_processor) {
    const Isa before = current();
    CHECK(before <= detect());
    for (int level = 0; level < isa_count; ++level) {
        const Isa isa = static_cast<Isa>(level);
        const Isa previous = current();
        const bool possible = isa <= detect();
        CHECK(set_isa(isa) == possible);
        CHECK(current() == (possible ? isa : previous));
    }
    CHECK(set_isa(before));
}

TEST(isa_is_scalar_where_there_is_no_x86) {
#if !ELBOWROOM_X86
    CHECK(detect() == Isa::scalar);
#else
    CHECK(std::string_view(name(detect())) != "");
#endif
}
