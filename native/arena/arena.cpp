#include "arena/arena.hpp"

#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace elbowroom {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t large_page_bytes = std::size_t{2} << 20;

// Addresses become usable in steps of this size: one call to the kernel for many blocks.
constexpr std::size_t step_bytes = std::size_t{64} << 20;

constexpr std::size_t up(std::size_t bytes, std::size_t unit) noexcept {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

#if defined(__linux__)

Arena::~Arena() {
    if (size_ > 0) munmap(reinterpret_cast<void*>(base_), size_);
}

bool Arena::reserve(std::size_t bytes) {
    const std::scoped_lock held(mutex_);
    if (size_ > 0) return true;
    if (sysconf(_SC_PAGESIZE) != static_cast<long>(page_bytes))
        return false;  // larger ones could not be given back
    bytes = up(bytes, step_bytes);
    void* const found = mmap(nullptr, bytes + large_page_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return false;
    // The ends beyond whole large pages go back at once.
    const auto begin = reinterpret_cast<std::uintptr_t>(found);
    const std::uintptr_t aligned = up(begin, large_page_bytes);
    if (aligned > begin) munmap(found, aligned - begin);
    const std::size_t rest = begin + large_page_bytes - aligned;
    if (rest > 0) munmap(reinterpret_cast<void*>(aligned + bytes), rest);
    madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // where the system lets us
    base_ = aligned;
    insert(0, bytes, false);
    size_ = bytes;
    return true;
}

bool Arena::grow_to(std::size_t end) {
    if (end <= opened_) return true;
    const std::size_t to = std::min(up(end, step_bytes), size_);
    if (mprotect(reinterpret_cast<void*>(base_ + opened_), to - opened_, PROT_READ | PROT_WRITE))
        return false;
    opened_ = to;
    return true;
}

void Arena::give_back(std::size_t excess) {
    while (excess > 0) {
        // Blocks are laid low where there is a choice: what lies high is needed last.
        const auto last = std::find_if(free_.rbegin(), free_.rend(),
                                       [](const auto& pair) { return pair.second.is_dirty; });
        if (last == free_.rend()) return;
        const std::size_t low = last->first, there = last->second.bytes;
        const std::size_t bytes = std::min(there, up(excess, page_bytes));
        const std::size_t at = low + there - bytes;
        if (madvise(reinterpret_cast<void*>(base_ + at), bytes, MADV_DONTNEED)) return;
        excess -= std::min(excess, bytes);
        counts_.given_back += bytes;
        counts_.dirty -= bytes;
        erase(free_.find(low));
        if (bytes < there) insert(low, there - bytes, true);
        add_free(at, bytes, false);
    }
}

#else

Arena::~Arena() = default;
bool Arena::reserve(std::size_t) { return false; }
bool Arena::grow_to(std::size_t) { return false; }
void Arena::give_back(std::size_t) {}

#endif

std::size_t Arena::limit() const noexcept {
    if (cap_ > 0) return cap_;
    const std::size_t need = std::max(counts_.peak_need, last_.peak_need);
    const std::size_t live = std::max(counts_.peak_live, last_.peak_live);
    return need + live / 256 * slack_;
}

std::size_t Arena::look() {
    const std::size_t mine = counts_.live + counts_.dirty, told = resident_();
    // Blocks that nobody has written to yet are not there: then this is negative.
    outside_ = told > 0 ? static_cast<std::ptrdiff_t>(told - mine) : 0;
    return told > 0 ? told : mine;
}

void Arena::note_need() {
    const std::ptrdiff_t need = outside_ + static_cast<std::ptrdiff_t>(counts_.live);
    if (need <= 0) return;
    counts_.peak_need = std::max(counts_.peak_need, static_cast<std::size_t>(need));
    recent_peak_ = std::max(recent_peak_, static_cast<std::size_t>(need));
}

void Arena::keep_limit(std::size_t resident) {
    if (resident > limit()) give_back(std::min(resident - limit(), counts_.dirty));
}

void* Arena::allocate(std::size_t bytes) {
    const std::scoped_lock held(mutex_);
    if (bytes == 0 || bytes > size_) return nullptr;
    bytes = up(bytes, page_bytes);
    Place place;
    if (!find(bytes, place) || !grow_to(place.at + bytes)) return nullptr;
    // Where no page is new the process does not grow, and is looked at only before a record: what
    // lies elsewhere may have gone meanwhile.
    const auto known = static_cast<std::ptrdiff_t>(std::max(counts_.peak_need, last_.peak_need));
    const bool is_record = outside_ + static_cast<std::ptrdiff_t>(counts_.live + bytes) > known;
    const std::size_t before = place.fresh > 0 || is_record ? look() : 0;
    carve(place.at, bytes);
    // The block will be written to: what is not there yet will be.
    counts_.live += bytes;
    counts_.peak_live = std::max(counts_.peak_live, counts_.live);
    note_need();
    counts_.dirty -= bytes - place.fresh;
    counts_.taken += place.fresh;
    if (place.fresh > 0) keep_limit(before + place.fresh);
    blocks_.emplace(place.at, bytes);
    return reinterpret_cast<void*>(base_ + place.at);
}

void Arena::free(void* block) {
    const std::scoped_lock held(mutex_);
    const std::size_t at = reinterpret_cast<std::uintptr_t>(block) - base_;
    const auto it = blocks_.find(at);
    if (it == blocks_.end()) return;
    const std::size_t bytes = it->second;
    blocks_.erase(it);
    counts_.live -= bytes;
    counts_.dirty += bytes;
    add_free(at, bytes, true);
}

void Arena::begin_pass(std::size_t slack_256ths) {
    const std::scoped_lock held(mutex_);
    slack_ = slack_256ths;
    last_ = counts_;
    counts_.peak_live = counts_.live;
    counts_.peak_need = 0;
    const std::size_t now = look();
    note_need();
    keep_limit(now);
}

void Arena::settle() {
    const std::scoped_lock held(mutex_);
    const std::size_t now = look();
    note_need();
    keep_limit(now);
}

void Arena::set_cap(std::size_t cap) {
    const std::scoped_lock held(mutex_);
    cap_ = cap;
    keep_limit(look());
}

std::size_t Arena::need() {
    const std::scoped_lock held(mutex_);
    const std::size_t now = look();
    note_need();
    return now - std::min(now, counts_.dirty);
}

std::size_t Arena::take_peak() {
    const std::scoped_lock held(mutex_);
    return std::exchange(recent_peak_, 0);
}

void Arena::purge() {
    const std::scoped_lock held(mutex_);
    give_back(counts_.dirty);
}

Arena::Counts Arena::counts() const {
    const std::scoped_lock held(mutex_);
    return counts_;
}

// The place with the fewest clean pages; of equals the one that leaves the least beside of it, then
// the lowest.
bool Arena::find(std::size_t bytes, Place& best) const {
    const auto fit = dirty_.lower_bound({bytes, 0});
    if (fit != dirty_.end()) {
        best = Place{fit->second, 0, fit->first - bytes};
        return true;
    }
    bool found = false;
    for (auto first = free_.begin(); first != free_.end();) {
        // A run of neighbours, clean and dirty by turns.
        std::size_t end = first->first;
        auto last = first;
        while (last != free_.end() && last->first == end) {
            end += last->second.bytes;
            ++last;
        }
        const std::size_t begin = first->first, run = end - begin;
        if (run >= bytes) {
            for (auto it = first; it != last; ++it) {
                const std::size_t low = it->first, high = low + it->second.bytes;
                if (low + bytes <= end) consider(low, bytes, it, run, found, best);
                if (high >= begin + bytes) {
                    const std::size_t at = high - bytes;
                    consider(at, bytes, std::prev(free_.upper_bound(at)), run, found, best);
                }
            }
        }
        first = last;
    }
    return found;
}

void Arena::consider(std::size_t at, std::size_t bytes, Extents::const_iterator it,
                     std::size_t run_bytes, bool& found, Place& best) const {
    std::size_t fresh = 0;
    const std::size_t rest = run_bytes - bytes;
    for (; it != free_.end() && it->first < at + bytes; ++it) {
        if (it->second.is_dirty) continue;
        const std::size_t from = std::max(it->first, at);
        const std::size_t to = std::min(it->first + it->second.bytes, at + bytes);
        fresh += to - from;
    }
    if (found && (fresh > best.fresh || (fresh == best.fresh && rest >= best.rest))) return;
    best = Place{at, fresh, rest};
    found = true;
}

Arena::Extents::iterator Arena::insert(std::size_t at, std::size_t bytes, bool is_dirty) {
    if (is_dirty) dirty_.emplace(bytes, at);
    return free_.emplace(at, Extent{bytes, is_dirty}).first;
}

Arena::Extents::iterator Arena::erase(Extents::iterator it) {
    if (it->second.is_dirty) dirty_.erase({it->second.bytes, it->first});
    return free_.erase(it);
}

void Arena::carve(std::size_t at, std::size_t bytes) {
    const std::size_t end = at + bytes;
    auto it = std::prev(free_.upper_bound(at));
    while (it != free_.end() && it->first < end) {
        const std::size_t low = it->first, high = low + it->second.bytes;
        const bool is_dirty = it->second.is_dirty;
        it = erase(it);
        if (low < at) insert(low, at - low, is_dirty);
        if (high > end) it = insert(end, high - end, is_dirty);
    }
}

void Arena::add_free(std::size_t at, std::size_t bytes, bool is_dirty) {
    auto next = free_.lower_bound(at);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second.bytes == at && before->second.is_dirty == is_dirty) {
            at = before->first;
            bytes += before->second.bytes;
            next = erase(before);
        }
    }
    if (next != free_.end() && at + bytes == next->first && next->second.is_dirty == is_dirty) {
        bytes += next->second.bytes;
        erase(next);
    }
    insert(at, bytes, is_dirty);
}

}  // namespace elbowroom
