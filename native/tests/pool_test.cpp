#include "common/pool.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <thread>
#include <vector>

#include "check.hpp"
#include "common/float_env.hpp"

using namespace elbowroom;

namespace {

// True if every task ran exactly once.
bool each_once(std::size_t tasks, unsigned threads) {
    std::vector<std::atomic<int>> calls(tasks);
    parallel_for(tasks, threads, [&](std::size_t task) { ++calls[task]; });
    for (const std::atomic<int>& count : calls) {
        if (count != 1) return false;
    }
    return true;
}

// Runs the body in a forked child, which is killed if it hangs.
template <class Body>
bool passes_in_child(Body body) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(body() ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(pool_runs_every_task_once) {
    for (const std::size_t tasks : {0, 1, 2, 3, 7, 64, 1000, 20000}) {
        for (const unsigned threads : {0U, 1U, 2U, 3U, 8U}) CHECK(each_once(tasks, threads));
    }
}

TEST(pool_grows_to_its_limit_only) {
    CHECK(each_once(5000, 1000));
    CHECK(pool_workers() <= max_pool_workers);
}

TEST(pool_uses_helpers) {
    // Two tasks that wait for each other end only if two threads run them.
    std::atomic<int> arrived{0};
    parallel_for(2, 2, [&](std::size_t) {
        ++arrived;
        arrived.notify_all();
        for (int seen = arrived; seen < 2; seen = arrived) arrived.wait(seen);
    });
    CHECK(arrived == 2);
}

TEST(pool_never_uses_more_threads_than_asked) {
    CHECK(each_once(100, 8));  // so that more workers than wanted exist
    std::atomic<int> running{0};
    std::atomic<int> most{0};
    parallel_for(400, 3, [&](std::size_t) {
        const int now = ++running;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        --running;
    });
    CHECK(most <= 3);
}

TEST(pool_nested_calls_run_serially) {
    std::atomic<int> total{0};
    std::atomic<bool> serial{true};
    parallel_for(8, 4, [&](std::size_t) {
        const std::thread::id self = std::this_thread::get_id();
        parallel_for(16, 4, [&](std::size_t) {
            if (std::this_thread::get_id() != self) serial = false;
            ++total;
        });
    });
    CHECK(total == 128);
    CHECK(serial);
    CHECK(each_once(100, 4));
}

TEST(pool_serves_many_threads_at_once) {
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 16; ++caller) {
        callers.emplace_back([&wrong, caller] {
            for (int round = 0; round < 50; ++round) {
                if (!each_once(1 + (round * 7 + caller) % 40, 2 + caller % 5)) ++wrong;
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
}

// The thread sanitizer cannot follow threads started after a fork.
#if !defined(__SANITIZE_THREAD__)
TEST(pool_works_in_a_forked_child) {
    CHECK(each_once(100, 4));
    CHECK(passes_in_child([] {
        return pool_workers() == 0 && each_once(1000, 4) && pool_workers() > 0 &&
               passes_in_child([] { return pool_workers() == 0 && each_once(1000, 4); });
    }));
    CHECK(each_once(1000, 4));
}

TEST(pool_survives_a_fork_while_other_threads_are_inside) {
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> busy;
    for (int i = 0; i < 3; ++i) {
        busy.emplace_back([&stop, &wrong] {
            while (!stop) {
                if (!each_once(50, 4)) ++wrong;
            }
        });
    }
    for (int round = 0; round < 40; ++round) {
        CHECK(passes_in_child([] { return each_once(200, 4); }));
    }
    stop = true;
    for (std::thread& thread : busy) thread.join();
    CHECK(wrong == 0);
}
#endif

TEST(pool_keeps_denormals_whatever_the_host_has_set) {
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
    volatile float tiny = std::numeric_limits<float>::denorm_min();
    std::atomic<int> flushed{0};
    for (const unsigned threads : {1U, 4U}) {
        parallel_for(64, threads, [&](std::size_t) {
            volatile float twice = tiny + tiny;
            if (twice == 0.0F) ++flushed;
        });
    }
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK(flushed == 0);
    CHECK((after & 0x8040) == 0x8040);
#endif
}
