// A thread pool that survives fork().
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace elbowroom {

inline constexpr unsigned max_pool_workers = 64;

// Calls fn(ctx, task) once for every task in [0, tasks), on the calling thread
// and on at most threads - 1 helpers, and returns when all calls have returned.
//
// Tasks are handed out one at a time in increasing order. Any number of threads
// may call at once. A call from inside a task runs serially. fn must neither
// throw nor fork. Every task runs in the default floating-point environment.
void parallel_for(std::size_t tasks, unsigned threads, void (*fn)(void* ctx, std::size_t task),
                  void* ctx) noexcept;

// The same for a callable taking the task's index.
template <class Body>
void parallel_for(std::size_t tasks, unsigned threads, Body&& body) noexcept {
    using Plain = std::remove_reference_t<Body>;
    parallel_for(
        tasks, threads, [](void* ctx, std::size_t task) { (*static_cast<Plain*>(ctx))(task); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// From now on the helpers are the host's OpenMP threads, as long as no more of them are asked for
// than there are and the process has not forked. False if the process has no OpenMP; not to be
// called while others call parallel_for.
bool join_team() noexcept;

// How many helpers of its own this process has started.
unsigned pool_workers() noexcept;

}  // namespace elbowroom
