// One array through a codec at every level: same bytes, same items, bound kept, memory respected.
#pragma once

#include <cstdio>

#include "coding.hpp"
#include "promise.hpp"
#include "streams.hpp"
#include "values.hpp"

namespace round_trip {

inline bool complain(const elbowroom::Stream& s, std::size_t items, elbowroom::Isa isa,
                     const char* what) {
    const elbowroom::Quantiser& q = s.quantiser;
    const elbowroom::Geometry& g = s.geometry;
    std::fprintf(stderr,
                 "  %s at level %s: codec %d, dtype %d, rule %d, negative zero %d, limit %g, "
                 "predictor %d, model %d, shift %d, weights %d, columns %zu, rows %zu, items %zu\n",
                 what, name(isa), static_cast<int>(s.codec), static_cast<int>(q.dtype),
                 static_cast<int>(q.rule), static_cast<int>(q.negative_zero), q.bound,
                 static_cast<int>(g.predictor), g.model, g.shift, g.weights[0], g.columns, g.rows,
                 items);
    return false;
}

// Whether everything holds at some levels, the first of which is the measure; says what does not.
inline bool holds_at(const std::vector<elbowroom::Isa>& levels, const elbowroom::Stream& s,
                     const void* items_at, std::size_t items, unsigned threads = 1) {
    using elbowroom::Isa;
    const coding::Guarded source(items_at, items * item_bytes(s.quantiser.dtype));
    coding::Encoded first;
    for (const Isa isa : levels) {
        const coding::AtLevel level(isa);
        coding::Encoded encoded = coding::encode(s, source.data(), items, threads);
        if (!encoded.is_sound) return complain(s, items, isa, "encoding left its room");
        if (isa == levels[0])
            first = std::move(encoded);
        else if (!(encoded == first))
            return complain(s, items, isa, "other bytes");
    }
    for (const Isa isa : levels) {
        const coding::AtLevel level(isa);
        // Bytes that are never written show as a difference between two fills.
        const coding::Decoded a(s, first.directory, first.payload.data(), first.payload.size(),
                                items, 0x00, threads);
        if (a.verdict != elbowroom::Verdict::ok) return complain(s, items, isa, "refused");
        if (!a.target.is_intact()) return complain(s, items, isa, "decoding left its target");
        if (promise::first_broken(s.quantiser, source.data(), a.target.data(), items) != items)
            return complain(s, items, isa, "broken promise");
        if (isa != levels[0]) continue;
        const coding::Decoded b(s, first.directory, first.payload.data(), first.payload.size(),
                                items, 0xFF, threads);
        if (items > 0 && std::memcmp(a.target.data(), b.target.data(), a.target.size()) != 0)
            return complain(s, items, isa, "items left unwritten");
    }
    return true;
}

inline bool holds(const elbowroom::Stream& s, const void* items_at, std::size_t items,
                  unsigned threads = 1) {
    return holds_at(coding::all_levels(), s, items_at, items, threads);
}

}  // namespace round_trip
