// The dense codec of one instruction-set level; included once by each dense_<level>.cpp.

#include "quantise/quantise.inl"
//
#include "quantise/codes.inl"
//
#include "dense/tables.inl"
//
#include "dense/common.inl"
//
#include "dense/log2.inl"

// Sixty-four lanes for speed; sixteen where their states would be a good part of the chunk.
namespace wide {
#define ELBOWROOM_GROUP 64
#include "dense/rans.inl"
//
#include "dense/model.inl"
//
#include "dense/room.inl"
//
#include "dense/encode.inl"
//
#include "dense/decode.inl"
//
#include "dense/cost.inl"
#undef ELBOWROOM_GROUP
}  // namespace wide

namespace narrow {
#define ELBOWROOM_GROUP 16
#include "dense/rans.inl"
//
#include "dense/model.inl"
//
#include "dense/room.inl"
//
#include "dense/encode.inl"
//
#include "dense/decode.inl"
#undef ELBOWROOM_GROUP
}  // namespace narrow

// And none at all where codes are nearly all zero.
#include "dense/sparse_coder.inl"
//
#include "dense/sparse_past.inl"
//
#include "dense/sparse_model.inl"
//
#include "dense/sparse.inl"

inline std::size_t encode_chunk(const Quantiser& q, const Geometry& g, const void* source,
                                std::size_t first, std::size_t items, std::uint8_t* dst,
                                Scratch& scratch) {
    if (g.model == sparse_model) return encode_sparse(q, g, source, first, items, dst, scratch);
    const std::size_t size = wide::encode_chunk(q, g, source, first, items, dst, scratch);
    if (size >= small_dense_chunk) return size;
    std::uint8_t* const aside = dst + small_dense_chunk;
    const std::size_t other = narrow::encode_chunk(q, g, source, first, items, aside, scratch);
    if (other >= size) return size;
    std::memmove(dst, aside, other);
    return other;
}

// False when the bytes are not a chunk of `items` items; then the target's content is undefined.
inline bool decode_chunk(const Quantiser& q, const Geometry& g, const std::uint8_t* in,
                         std::size_t size, std::size_t first, std::size_t items, void* target,
                         bool stream, Scratch& scratch) {
    if (g.model == sparse_model)
        return decode_sparse(q, g, in, size, first, items, target, stream, scratch);
    if (size < kDenseHeader || in[1] > 1) return false;
    const auto decode = in[1] == 0 ? wide::decode_chunk : narrow::decode_chunk;
    return decode(q, g, in, size, first, items, target, scratch);
}

inline void codes_chunk(const Quantiser& q, const void* source, std::size_t items,
                        std::int32_t* codes, Scratch& scratch) {
    Failures failed{scratch.index, 0};
    std::int32_t carry = 0;
    encode_codes(q, source, 0, 0, items, carry, codes, failed);
}
