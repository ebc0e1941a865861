#include "codec/workspace.hpp"

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

bool Workspace::reserve(const Stream& s, std::size_t items, bool encoding) noexcept {
    const std::size_t n = items * (has_word_planes(s.quantiser) ? 2 : 1);
    const std::size_t padded = (n + kBlock - 1) / kBlock * kBlock + kBlock;
    codes = make_buffer<std::int32_t>(padded);
    residuals = make_buffer<std::int32_t>(s.codec == Codec::block ? padded : 1);
    index = make_buffer<std::uint32_t>(encoding ? padded : 1);
    bytes = make_buffer<std::uint8_t>(
        s.codec == Codec::dense ? dense_scratch_bytes(n, s.geometry.columns) : 1);
    if (!codes || !residuals || !index || !bytes) return false;
    scratch = {codes.get(), residuals.get(), index.get(), bytes.get()};
    return true;
}

}  // namespace elbowroom
