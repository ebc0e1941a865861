#include "common/pool.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/float_env.hpp"

namespace elbowroom {
namespace {

// One call of parallel_for; lives on the caller's stack. All but `next` is
// guarded by the pool's mutex.
struct Job {
    void (*fn)(void*, std::size_t);
    void* ctx;
    std::size_t tasks;
    unsigned open_places;  // helpers that may still join
    unsigned active = 0;   // helpers at work
    std::atomic<std::size_t> next{0};
    std::condition_variable idle{};
    Job* before = nullptr;
    Job* after = nullptr;
    bool listed = false;
};

struct Pool {
    std::mutex mutex;
    std::condition_variable wake;
    Job* first = nullptr;  // jobs with open places, oldest first
    Job* last = nullptr;
    unsigned workers = 0;
    unsigned places = 0;  // sum of open_places over the list
    unsigned waiting = 0;
    Pool* parent = nullptr;
};

// Workers are never joined and the pool is never destroyed: a worker that waits
// on `wake` at process exit must not see its condition variable die.
Pool* pool = nullptr;
thread_local bool inside_task = false;

// The OpenMP threads of the host, which run its own kernels. After each of those they spin for
// milliseconds, and threads of ours would have to fight them for the cores.
struct Team {
    void (*parallel)(void (*fn)(void*), void* ctx, unsigned threads, unsigned flags);
    int (*size)();
};
Team team{};
// They do not live through a fork, and OpenMP does not notice.
bool is_forked = false;

void in_child() {
    is_forked = true;
    // The parent's workers do not exist here, and its mutex and condition
    // variable may be in any state, so neither is touched again. The old pool
    // stays reachable only so that leak checkers know it.
    Pool* fresh = new Pool;
    fresh->parent = pool;
    pool = fresh;
}

// Made when the library is loaded, not at first use: a lazy initialisation that
// another thread has begun at the time of a fork would never end in the child.
const bool ready = [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, in_child);
    return true;
}();

void link(Pool& owner, Job& job) {
    job.before = owner.last;
    (owner.last ? owner.last->after : owner.first) = &job;
    owner.last = &job;
    owner.places += job.open_places;
    job.listed = true;
}

void unlink(Pool& owner, Job& job) {
    (job.before ? job.before->after : owner.first) = job.after;
    (job.after ? job.after->before : owner.last) = job.before;
    owner.places -= job.open_places;
    job.listed = false;
}

void run(Job& job) noexcept {
    inside_task = true;
    for (;;) {
        const std::size_t task = job.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= job.tasks) break;
        job.fn(job.ctx, task);
    }
    inside_task = false;
}

// What every thread of the team is called with; those beyond the places go home at once.
struct Crew {
    Job& job;
    std::atomic<unsigned> places;
};
void join_crew(void* ctx) {
    const DefaultFloatEnv environment;
    Crew& crew = *static_cast<Crew*>(ctx);
    unsigned left = crew.places.load(std::memory_order_relaxed);
    while (left > 0 && !crew.places.compare_exchange_weak(left, left - 1)) {
    }
    if (left > 0) run(crew.job);
}

void work(Pool& owner) noexcept {
    const DefaultFloatEnv environment;
    std::unique_lock lock(owner.mutex);
    for (;;) {
        while (owner.first == nullptr) {
            ++owner.waiting;
            owner.wake.wait(lock);
            --owner.waiting;
        }
        Job& job = *owner.first;
        --job.open_places;
        --owner.places;
        if (job.open_places == 0) unlink(owner, job);
        ++job.active;
        lock.unlock();
        run(job);
        lock.lock();
        // Notified under the lock: once it is released the job may be gone.
        if (--job.active == 0) job.idle.notify_one();
    }
}

// Starts workers until every open place has one; fewer if the system refuses.
void grow(Pool& owner) noexcept {
    const unsigned wanted = owner.places > owner.waiting ? owner.places - owner.waiting : 0;
    const unsigned missing = std::min(wanted, max_pool_workers - owner.workers);
    if (missing == 0) return;
    // The host's signals belong to its own threads. Faults stay deliverable so
    // that its crash handler still reports them.
    sigset_t blocked;
    sigset_t previous;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
        sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &previous);
    for (unsigned i = 0; i < missing; ++i) {
        try {
            std::thread(work, std::ref(owner)).detach();
        } catch (const std::system_error&) {
            break;
        }
        ++owner.workers;
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

}  // namespace

void parallel_for(std::size_t tasks, unsigned threads, void (*fn)(void* ctx, std::size_t task),
                  void* ctx) noexcept {
    const DefaultFloatEnv environment;
    if (tasks <= 1 || threads <= 1 || inside_task) {
        for (std::size_t task = 0; task < tasks; ++task) fn(ctx, task);
        return;
    }
    if (team.parallel != nullptr && !is_forked &&
        threads <= static_cast<unsigned>(std::max(0, team.size()))) {
        Job job{.fn = fn, .ctx = ctx, .tasks = tasks, .open_places = 0};
        Crew crew{job, threads};
        team.parallel(join_crew, &crew, 0, 0);
        return;
    }
    Pool& owner = *pool;
    Job job{.fn = fn,
            .ctx = ctx,
            .tasks = tasks,
            .open_places = static_cast<unsigned>(
                std::min<std::size_t>({tasks - 1, threads - 1, max_pool_workers}))};
    const unsigned helpers = job.open_places;
    {
        const std::lock_guard lock(owner.mutex);
        link(owner, job);
        grow(owner);
    }
    for (unsigned i = 0; i < helpers; ++i) owner.wake.notify_one();
    run(job);
    std::unique_lock lock(owner.mutex);
    if (job.listed) unlink(owner, job);
    job.idle.wait(lock, [&job] { return job.active == 0; });
}

bool join_team() noexcept {
    const auto parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    const auto size = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (parallel == nullptr || size == nullptr) return false;
    team = {reinterpret_cast<decltype(Team::parallel)>(parallel),
            reinterpret_cast<decltype(Team::size)>(size)};
    return true;
}

unsigned pool_workers() noexcept {
    Pool& owner = *pool;
    const std::lock_guard lock(owner.mutex);
    return owner.workers;
}

}  // namespace elbowroom
