// Memory for large tensors beside the heap: what is freed stays for the next one, as long as the
// process takes no more than it has needed at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace elbowroom {

// A range of addresses that is reserved once. Pages are either part of a block, or free and dirty
// (they may be resident and come without a fault), or free and clean (the kernel has them). Blocks
// lie where they need the fewest clean pages. When clean ones are taken, or the process has grown
// for other reasons, dirty ones are given back as far as the limit asks: however the free space is
// cut up, that costs addresses and faults but no memory.
class Arena {
  public:
    // Tells what the process takes; zero if nobody knows.
    using Resident = std::size_t (*)();

    struct Counts {
        std::size_t live = 0;        // in blocks
        std::size_t peak_live = 0;   // the most of that since `begin_pass`
        std::size_t peak_need = 0;   // the most that the process took without what was dirty
        std::size_t dirty = 0;       // free, and not given back
        std::size_t taken = 0;       // clean pages that blocks were given, since the start
        std::size_t given_back = 0;  // dirty pages that went to the kernel, since the start
    };

    explicit Arena(Resident resident) noexcept : resident_(resident) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    // Reserves addresses, of which nothing is in use yet. False if the system has none to spare.
    bool reserve(std::size_t bytes);

    // A block on a page boundary, or null if the addresses are used up or the kernel refuses.
    void* allocate(std::size_t bytes);

    // Gives a block back. The pointer must have come from here.
    void free(void* block);

    bool owns(const void* p) const noexcept {
        const auto at = reinterpret_cast<std::uintptr_t>(p);
        return at - base_ < size_;
    }

    // A new pass begins. What the process takes stays below the most that it has needed in this
    // pass and the last one, and `slack` 256ths of the blocks in it.
    void begin_pass(std::size_t slack_256ths);

    // Instead it may grow up to `cap`, and gives back what it can above; 0 for as above.
    void set_cap(std::size_t cap);

    // What the process takes now, without what is dirty.
    std::size_t need();

    // The most of that since the last call.
    std::size_t take_peak();

    // The process may have grown: keeps to the limit.
    void settle();

    // Gives everything back that is free.
    void purge();

    Counts counts() const;

    // Around fork(2): the child must not find the lock held by a thread that it does not have.
    void lock() const { mutex_.lock(); }
    void unlock() const { mutex_.unlock(); }

  private:
    struct Extent {
        std::size_t bytes;
        bool is_dirty;
    };
    struct Place {
        std::size_t at, fresh, rest;
    };
    using Extents = std::map<std::size_t, Extent>;

    bool find(std::size_t bytes, Place& best) const;
    void consider(std::size_t at, std::size_t bytes, Extents::const_iterator first,
                  std::size_t run_bytes, bool& found, Place& best) const;
    Extents::iterator insert(std::size_t at, std::size_t bytes, bool is_dirty);
    Extents::iterator erase(Extents::iterator it);
    void carve(std::size_t at, std::size_t bytes);
    void add_free(std::size_t at, std::size_t bytes, bool is_dirty);
    void give_back(std::size_t excess);
    void keep_limit(std::size_t resident);
    std::size_t look();
    void note_need();
    std::size_t limit() const noexcept;
    bool grow_to(std::size_t end);

    mutable std::mutex mutex_;
    std::uintptr_t base_ = 0;
    std::size_t size_ = 0;
    std::size_t opened_ = 0;  // bytes from the base on that may be read and written
    Extents free_;            // by offset; neighbours differ in state
    std::set<std::pair<std::size_t, std::size_t>> dirty_;  // of these, by size and offset
    std::unordered_map<std::size_t, std::size_t> blocks_;
    Counts counts_;
    Resident resident_;
    std::ptrdiff_t outside_ = 0;  // what the process took beside the arena when last looked at
    Counts last_;                 // of the last pass
    std::size_t slack_ = 16, cap_ = 0;
    std::size_t recent_peak_ = 0;  // of what was needed since somebody asked
};

}  // namespace elbowroom
