#include "codec/workspace.hpp"

#include <mutex>
#include <utility>

#include "common/isa.hpp"

namespace elbowroom {

const BlockKernels& block_kernels() noexcept {
#if ELBOWROOM_X86
    switch (current()) {
        case Isa::avx512:
            return avx512::block_kernels;
        case Isa::avx2:
            return avx2::block_kernels;
        case Isa::scalar:
            break;
    }
#endif
    return scalar::block_kernels;
}

const DenseKernels& dense_kernels() noexcept {
#if ELBOWROOM_X86
    switch (current()) {
        case Isa::avx512:
            return avx512::dense_kernels;
        case Isa::avx2:
            return avx2::dense_kernels;
        case Isa::scalar:
            break;
    }
#endif
    return scalar::dense_kernels;
}

namespace {

// Buffers waiting for their next use. Guarded by a lock that nobody waits for: whoever does not get
// it at once, a forked child of a busy parent included, allocates instead.
struct Shelf {
    static constexpr int places = 4;
    std::mutex lock;
    Buffer<std::uint8_t> bytes[places];
    std::size_t capacity[places] = {};
};

Shelf& shelf() {
    static Shelf* const one = new Shelf;  // never destroyed: threads may outlive static objects
    return *one;
}

}  // namespace

Workspace::Workspace() noexcept {
    const std::unique_lock<std::mutex> held(shelf().lock, std::try_to_lock);
    if (!held) return;
    for (int i = 0; i < Shelf::places; ++i) {
        if (!shelf().bytes[i]) continue;
        bytes_ = std::move(shelf().bytes[i]);
        capacity_ = shelf().capacity[i];
        return;
    }
}

Workspace::~Workspace() {
    const std::unique_lock<std::mutex> held(shelf().lock, std::try_to_lock);
    if (!held) return;
    for (int i = 0; i < Shelf::places; ++i) {
        if (shelf().bytes[i]) continue;
        shelf().bytes[i] = std::move(bytes_);
        shelf().capacity[i] = capacity_;
        return;
    }
}

bool Workspace::reserve(const Stream& s, std::size_t items, bool encoding) noexcept {
    const std::size_t n = items * (has_word_planes(s.quantiser) ? 2 : 1);
    const std::size_t padded = ((n + kBlock - 1) / kBlock * kBlock + kBlock) * 4;
    const bool direct = s.codec == Codec::raw;
    const std::size_t codes = direct ? 0 : padded;
    const std::size_t residuals = s.codec == Codec::block ? padded : 0;
    const std::size_t index = encoding && !direct ? padded : 0;
    const std::size_t rest = s.codec == Codec::dense   ? dense_scratch_bytes(n, s.geometry.columns)
                             : s.codec == Codec::block ? n / kBlock + 1  // block headers
                                                       : 0;
    const std::size_t needed = codes + residuals + index + rest + 128;
    if (needed > capacity_) {
        bytes_.reset();
        capacity_ = 0;
        bytes_ = make_buffer<std::uint8_t>(needed);
        if (!bytes_) return false;
        capacity_ = needed;
    }
    std::uint8_t* at = bytes_.get();
    scratch.bytes = at;  // first: the dense codec's layout starts with what it uses most
    at += (rest + 63) / 64 * 64;
    scratch.codes = reinterpret_cast<std::int32_t*>(at);
    scratch.residuals = reinterpret_cast<std::int32_t*>(at + codes);
    scratch.index = reinterpret_cast<std::uint32_t*>(at + codes + residuals);
    return true;
}

}  // namespace elbowroom
