// Torch's allocator on the host, with large tensors in an arena. What is small, and everything
// where no arena can be had, is left to the allocator that was there before.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fcntl.h>
#include <pthread.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "arena/arena.hpp"

namespace {

// Of the process, as the kernel counts it. Opened each time: a descriptor would be the parent's in
// the child of fork(2), and anybody's in a process that closes all it finds.
std::size_t resident_bytes() {
    const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    char text[128];
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    const char* const second = std::strchr(text, ' ');
    return second ? std::strtoull(second, nullptr, 10) * sysconf(_SC_PAGESIZE) : 0;
}

elbowroom::Arena& arena() {
    // Never destroyed: tensors outlive everything else in a process.
    static auto* const only = new elbowroom::Arena(&resident_bytes);
    return *only;
}

// The allocator that was there before.
c10::Allocator* others = nullptr;

// Tensors from this size on lie in the arena; none while nobody wants it.
constexpr std::size_t never = SIZE_MAX;
std::atomic<std::size_t> least_bytes{never};
std::atomic<int> holders{0};

// The process is to stay below the least of these. It grows beside the arena too, where nobody
// tells us: a thread looks while there are any.
std::multiset<std::size_t>& caps = *new std::multiset<std::size_t>;  // the thread outlives statics
std::mutex caps_lock;
bool is_guarded = false;
constexpr std::chrono::microseconds between_looks{500};

void guard() {
    for (;;) {
        {
            const std::scoped_lock held(caps_lock);
            if (caps.empty()) {
                is_guarded = false;
                return;
            }
        }
        arena().settle();
        std::this_thread::sleep_for(between_looks);
    }
}

// Larger ones than this are more than the machine has: torch's own allocator says so.
std::size_t most_bytes_at_once = 0;

// One deleter for all: torch compares it with what `raw_deleter` says.
void release(void* block) {
    if (!arena().owns(block)) {
        others->raw_deallocate(block);
        return;
    }
    c10::profiledCPUMemoryReporter().Delete(block);
    arena().free(block);
    if (holders == 0) arena().purge();
}

class Allocator final : public c10::Allocator {
  public:
    c10::DataPtr allocate(std::size_t bytes) override {
        if (bytes >= least_bytes && bytes <= most_bytes_at_once) {
            if (void* const block = arena().allocate(bytes)) {
                c10::profiledCPUMemoryReporter().New(block, bytes);
                return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
            }
        }
        void* const block = bytes == 0 ? nullptr : others->raw_allocate(bytes);
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
        std::memcpy(to, from, bytes);
    }
};

Allocator& ours() {
    static auto* const only = new Allocator;
    return *only;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The version of torch that this was built with: classes of another one may be laid out otherwise.
EXPORTED const char* elbowroom_arena_torch() { return TORCH_VERSION; }

// 1 if tensors from `from_bytes` on now lie in an arena of at most `most_bytes` of addresses, until
// as many calls to `elbowroom_arena_release`.
EXPORTED int elbowroom_arena_hold(std::size_t from_bytes, std::size_t most_bytes) {
    static std::mutex one_at_a_time;
    const std::scoped_lock held(one_at_a_time);
    if (others == nullptr) {
        c10::Allocator* const now = c10::GetCPUAllocator();
        // Somebody else's allocator is theirs to keep.
        if (now != c10::GetDefaultCPUAllocator() || now->raw_deleter() == nullptr) return 0;
        if (!arena().reserve(most_bytes)) return 0;
        const int failed = pthread_atfork(
            [] {
                caps_lock.lock();
                arena().lock();
            },
            [] {
                arena().unlock();
                caps_lock.unlock();
            },
            [] {
                is_guarded = false;  // its thread is the parent's
                arena().unlock();
                caps_lock.unlock();
            });
        if (failed) return 0;
        most_bytes_at_once =
            static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
        others = now;
        // For good: oneDNN asks for the allocator anew when it frees, and one that does not know
        // the arena would be handed a block of it.
        c10::SetCPUAllocator(&ours());
    }
    ++holders;
    least_bytes = from_bytes;
    return 1;
}

// What is in the arena stays there until it is freed; what comes does so as ever.
EXPORTED void elbowroom_arena_release() {
    if (--holders > 0) return;
    least_bytes = never;
    arena().begin_pass(0);
    arena().purge();
}

// Until `lift` with the same number, what is free in the arena goes back as the process grows
// beyond it. 0 if it could not be had.
EXPORTED int elbowroom_arena_cap(std::size_t bytes) {
    const std::scoped_lock held(caps_lock);
    caps.insert(bytes);
    arena().set_cap(*caps.begin());
    if (is_guarded) return 1;
    try {
        std::thread(guard).detach();
    } catch (const std::system_error&) {
        return 0;  // the arena still looks whenever it grows itself
    }
    is_guarded = true;
    return 1;
}

EXPORTED void elbowroom_arena_lift(std::size_t bytes) {
    const std::scoped_lock held(caps_lock);
    const auto found = caps.find(bytes);
    if (found == caps.end()) return;
    caps.erase(found);
    arena().set_cap(caps.empty() ? 0 : *caps.begin());
}

EXPORTED void elbowroom_arena_begin_pass(std::size_t slack_256ths) {
    arena().begin_pass(slack_256ths);
}

EXPORTED std::size_t elbowroom_arena_need() { return arena().need(); }

EXPORTED std::size_t elbowroom_arena_take_peak() { return arena().take_peak(); }

EXPORTED void elbowroom_arena_settle() { arena().settle(); }

EXPORTED void elbowroom_arena_purge() { arena().purge(); }

EXPORTED void elbowroom_arena_counts(std::size_t* six) {
    const elbowroom::Arena::Counts counts = arena().counts();
    six[0] = counts.live;
    six[1] = counts.peak_live;
    six[2] = counts.peak_need;
    six[3] = counts.dirty;
    six[4] = counts.taken;
    six[5] = counts.given_back;
}
