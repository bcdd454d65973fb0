// The weights that dropout removes. heedful/dropout.py draws them by the same formula, so that all kernels agree.
#pragma once

#include <cmath>
#include <cstdint>

#include "heedful.h"
#include "query_rows.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

constexpr uint32_t GOLDEN = 0x9E3779B9u;                            // 2^32 / golden ratio: spreads consecutive indices
constexpr uint32_t FIRST_MULTIPLIER = 0x7FEB352Du, SECOND_MULTIPLIER = 0x846CA68Bu;  // of a 32-bit mixer with low bias

INLINE uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * FIRST_MULTIPLIER;
    word = (word ^ (word >> 15)) * SECOND_MULTIPLIER;
    return word ^ (word >> 16);
}

INLINE uint32_t row_word(uint32_t word, int64_t b, int64_t h, int64_t q) {
    uint32_t mixed = mix((uint32_t)b + word + GOLDEN);
    mixed = mix((uint32_t)h + mixed + GOLDEN);
    return mix((uint32_t)q + mixed + GOLDEN);
}

// The factor of the weights that remain, 1 / (1 − p). If p is 1 none remain, and the factor need only be finite.
INLINE float survivor_scale(const heedful_problem &p) {
    return p.dropout_p > 0 ? (float)(1.0 / fmax(1.0 - p.dropout_p, 0x1p-32)) : 1.0f;
}

// Two random words for the (batch entry, head, query) of each lane; mixed with a key, they decide on one weight.
template <int LANES>
struct Dropout {
    alignas(64) uint32_t row[LANES], tweak[LANES];
    uint32_t threshold;  // words below it drop their weight
    bool all;            // p is 1, for which the threshold would be 2^32

    Dropout(const heedful_problem &p, const QueryRows<LANES> &rows) {
        if (p.dropout_p <= 0) return;
        const double limit = nearbyint(p.dropout_p * 0x1p32);
        all = limit >= 0x1p32, threshold = all ? 0 : (uint32_t)limit;
        for (int lane = 0; lane < LANES; lane++) {
            const int at = lane < rows.count ? lane : rows.count - 1;
            row[lane] = row_word((uint32_t)p.seed, rows.b, rows.head(at), rows.query(at));
            tweak[lane] = row_word((uint32_t)(p.seed >> 32), rows.b, rows.head(at), rows.query(at));
        }
    }

    // For W lanes: all bits set where the weight is kept, else 0.
    I keeps(int64_t key, int lane) const {
        U word = load_words(row + lane) + splat_word((uint32_t)key * GOLDEN);
        word = (word ^ (word >> 16)) * FIRST_MULTIPLIER;
        word ^= load_words(tweak + lane);
        word = (word ^ (word >> 15)) * SECOND_MULTIPLIER;
        word ^= word >> 16;
        return all ? I{} : (I)(word >= threshold);
    }
    bool lane_keeps(int64_t key, int lane) const {
        uint32_t word = row[lane] + (uint32_t)key * GOLDEN;
        word = ((word ^ (word >> 16)) * FIRST_MULTIPLIER) ^ tweak[lane];
        word = (word ^ (word >> 15)) * SECOND_MULTIPLIER;
        return !all && (word ^ (word >> 16)) >= threshold;
    }
};

}  // namespace heedful::HEEDFUL_ISA
