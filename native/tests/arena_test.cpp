#include "arena/arena.hpp"

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"

using namespace elbowroom;

#if defined(__linux__)

namespace {

constexpr std::size_t mb = std::size_t{1} << 20;

// Only what is in the arena counts.
std::size_t nobody() { return 0; }

// A process that takes so much, as the test says.
std::size_t told = 0;
std::size_t as_told() { return told; }

std::uint8_t* bytes(void* block) { return static_cast<std::uint8_t*>(block); }

}  // namespace

TEST(arena_uses_again_what_is_free) {
    Arena arena(nobody);
    CHECK(arena.reserve(256 * mb));
    void* const first = arena.allocate(10 * mb);
    CHECK(arena.owns(first) && arena.owns(bytes(first) + 10 * mb - 1));
    CHECK(reinterpret_cast<std::uintptr_t>(first) % 4096 == 0);
    std::memset(first, 7, 10 * mb);
    arena.free(first);
    CHECK(arena.counts().dirty == 10 * mb && arena.counts().live == 0);
    // Still there: nobody has asked the kernel for anything.
    void* const second = arena.allocate(6 * mb);
    CHECK(second == first && bytes(second)[6 * mb - 1] == 7);
    void* const third = arena.allocate(4 * mb);
    CHECK(third == bytes(first) + 6 * mb && bytes(third)[0] == 7);
    CHECK(arena.counts().taken == 10 * mb && arena.counts().dirty == 0);
    arena.free(second);
    arena.free(third);
    CHECK(arena.allocate(10 * mb) == first);  // the two have become one
}

TEST(arena_takes_the_place_with_the_fewest_new_pages) {
    Arena arena(nobody);
    CHECK(arena.reserve(256 * mb));
    void* const low = arena.allocate(3 * mb);
    void* const wall = arena.allocate(mb);
    void* const high = arena.allocate(8 * mb);
    arena.free(low);
    arena.free(high);
    CHECK(arena.allocate(2 * mb) == low);  // the smaller of two that would do
    // Nothing free is large enough: the end of the arena goes on with clean pages.
    const std::size_t before = arena.counts().taken;
    CHECK(arena.allocate(9 * mb) == high);
    CHECK(arena.counts().taken - before == mb);
    arena.free(wall);
}

TEST(arena_gives_back_what_exceeds_the_need) {
    Arena arena(nobody);
    CHECK(arena.reserve(256 * mb));
    arena.begin_pass(0);
    void* const one = arena.allocate(8 * mb);
    void* const wall = arena.allocate(mb);
    std::memset(one, 7, 8 * mb);
    arena.free(one);
    // Does not fit into the hole: the hole shrinks, since 11 MB is the most that blocks have had.
    void* const two = arena.allocate(10 * mb);
    CHECK(arena.counts().live == 11 * mb);
    CHECK(arena.counts().live + arena.counts().dirty == 11 * mb);
    CHECK(arena.counts().given_back == 8 * mb);
    void* const again = arena.allocate(8 * mb);
    CHECK(again == one && bytes(again)[0] == 0);  // the kernel's pages are cleared
    arena.free(two);
    arena.free(again);
    arena.free(wall);
    // What the next pass needs is not known before it is over: the last one counts.
    arena.begin_pass(0);
    CHECK(arena.counts().dirty == 19 * mb);
    void* const small = arena.allocate(mb);
    arena.begin_pass(0);
    CHECK(arena.counts().live + arena.counts().dirty == mb);
    arena.free(small);
    arena.purge();
    CHECK(arena.counts().dirty == 0);
}

TEST(arena_may_be_told_how_much_there_is) {
    Arena arena(nobody);
    CHECK(arena.reserve(256 * mb));
    arena.set_cap(64 * mb);
    arena.begin_pass(0);
    void* const one = arena.allocate(8 * mb);
    void* const wall = arena.allocate(mb);
    arena.free(one);
    void* const two = arena.allocate(10 * mb);
    CHECK(arena.counts().given_back == 0 && arena.counts().dirty == 8 * mb);
    arena.free(two);
    arena.free(wall);
    arena.set_cap(5 * mb);
    CHECK(arena.counts().dirty == 5 * mb);
    // What was needed does not count for more than the cap.
    CHECK(arena.counts().peak_need == 11 * mb);
    void* const more = arena.allocate(6 * mb);
    CHECK(arena.counts().dirty == 0);
    arena.free(more);
    arena.settle();
    CHECK(arena.counts().dirty == 5 * mb);
    arena.set_cap(0);
    void* const last = arena.allocate(11 * mb);
    arena.free(last);
    arena.settle();
    CHECK(arena.counts().dirty == 11 * mb);
}

TEST(arena_makes_room_for_what_lies_elsewhere) {
    Arena arena(as_told);
    CHECK(arena.reserve(256 * mb));
    told = 100 * mb;
    arena.begin_pass(0);
    void* const one = arena.allocate(20 * mb);
    told = 120 * mb;
    CHECK(arena.counts().peak_need == 120 * mb);
    arena.free(one);
    // Others have taken 5 MB while 20 were free: the process needs 105, and may take 120.
    told = 125 * mb;
    arena.settle();
    CHECK(arena.counts().dirty == 15 * mb && arena.counts().peak_need == 120 * mb);
    told = 120 * mb;
    arena.settle();
    CHECK(arena.counts().dirty == 15 * mb);
}

TEST(arena_tells_what_is_needed) {
    Arena arena(as_told);
    CHECK(arena.reserve(256 * mb));
    told = 100 * mb;
    void* const one = arena.allocate(20 * mb);
    told = 120 * mb;
    CHECK(arena.need() == 120 * mb && arena.take_peak() == 120 * mb);
    arena.free(one);
    CHECK(arena.need() == 100 * mb && arena.take_peak() == 100 * mb);
    CHECK(arena.take_peak() == 0);
    // Counted when it is handed out, before anybody has written to it.
    void* const two = arena.allocate(30 * mb);
    CHECK(arena.take_peak() == 130 * mb);
    arena.free(two);
    CHECK(arena.need() == 90 * mb);  // as far as anybody knows 30 of the 120 are free
}

TEST(arena_refuses_what_it_has_not) {
    Arena arena(nobody);
    CHECK(arena.allocate(mb) == nullptr);
    CHECK(!arena.owns(&arena));
    CHECK(arena.reserve(64 * mb));
    CHECK(arena.allocate(0) == nullptr);
    CHECK(arena.allocate(65 * mb) == nullptr);
    CHECK(arena.allocate(SIZE_MAX) == nullptr);
    void* const all = arena.allocate(64 * mb);
    CHECK(all != nullptr && arena.allocate(1) == nullptr);
    arena.free(all);
    CHECK(arena.allocate(1) == all);
}

// Blocks never overlap, keep what was written to them, and what the arena says of itself is true.
TEST(arena_keeps_blocks_apart) {
    Arena arena(nobody);
    CHECK(arena.reserve(64 * mb));
    std::mt19937 random(1);
    struct Block {
        std::size_t size;
        std::uint8_t mark;
    };
    std::map<std::uint8_t*, Block> blocks;
    std::size_t live = 0, peak = 0, refused = 0;
    arena.begin_pass(8);
    for (int turn = 0; turn < 6000; ++turn) {
        if (turn % 500 == 499) {
            arena.begin_pass(turn % 64);
            peak = live;
        } else if (turn % 97 == 0) {
            arena.settle();
        }
        if (!blocks.empty() && random() % 2 == 0) {
            auto it = blocks.begin();
            std::advance(it, random() % blocks.size());
            const auto [size, mark] = it->second;
            CHECK(it->first[0] == mark && it->first[size - 1] == mark);
            CHECK(it->first[size / 2] == mark);
            arena.free(it->first);
            live -= (size + 4095) / 4096 * 4096;
            blocks.erase(it);
            continue;
        }
        const std::size_t size = 1 + random() % (random() % 8 == 0 ? 6 * mb : mb);
        std::uint8_t* const block = bytes(arena.allocate(size));
        if (block == nullptr) {
            ++refused;
            continue;
        }
        const auto next = blocks.lower_bound(block);
        CHECK(next == blocks.end() || block + size <= next->first);
        if (next != blocks.begin()) {
            const auto before = std::prev(next);
            CHECK(before->first + before->second.size <= block);
        }
        const auto mark = static_cast<std::uint8_t>(random());
        std::memset(block, mark, size);
        blocks.emplace(block, Block{size, mark});
        live += (size + 4095) / 4096 * 4096;
        peak = std::max(peak, live);
        CHECK(arena.counts().live == live && arena.counts().peak_live == peak);
    }
    CHECK(refused < 3000);
    for (const auto& [block, held] : blocks) {
        CHECK(block[0] == held.mark && block[held.size - 1] == held.mark);
        arena.free(block);
    }
    arena.purge();
    CHECK(arena.counts().live == 0 && arena.counts().dirty == 0);
    CHECK(arena.counts().taken == arena.counts().given_back);
    CHECK(arena.allocate(64 * mb) != nullptr);  // all of it is one piece again
}

#endif
