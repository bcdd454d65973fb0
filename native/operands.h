// The conversion of rows of numbers to operands of a product: floats, or pairs of bf16.
#pragma once

#include <cstdint>
#include <cstring>

#include "number.h"
#include "pairs.h"
#include "product.h"
#include "scratch.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// Copy a row of `count` numbers, or zeros if there is none (nullptr).
template <class N>
INLINE void copy_row(const N *from, int64_t count, float *to) {
    if (from)
        widen_row(from, count, to);
    else
        memset(to, 0, count * sizeof(float));
}

INLINE void store_row(float *to, F numbers) { store(to, numbers); }

// Fetch a row into the cache.
template <class N>
INLINE void prefetch_row(const N *from, int64_t count) {
    constexpr int64_t LINE = 64 / sizeof(N);
    for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(from + i);
}

// The numbers [at, at + W) of a row of `count` numbers, zeros beyond its end.
template <class N>
INLINE F lane_vector(const N *row, int64_t at, int64_t count) {
    if (at + W <= count) return load_wide(row + at);
    F v{};
    for (int64_t i = at; i < count; i++) v[i - at] = widen(row[i]);
    return v;
}

// How many operands of a product a row of `size` numbers is, and how far apart such rows are in scratch memory.
template <class T>
constexpr int64_t operands(int64_t size) {
    return whole_steps<T>((size + NUMBERS_IN<T> - 1) / NUMBERS_IN<T>);
}
template <class T>
constexpr int64_t operand_row(int64_t size) {
    return BY_TILES<T> ? operands<T>(size) + W : padded(size) / NUMBERS_IN<T>;
}

// Put the rows row_of(lane), lane < count, of D numbers into the lanes: to[d][lane], or to[d / 2][lane] of pairs.
// Idle lanes and missing rows (nullptr) become zeros; `negate` flips all signs.
template <class N, bool PAIRS, int LANES, class RowOf, class T>
INLINE void load_lanes(RowOf row_of, int count, int64_t D, bool negate, T *to) {
    const int64_t words = operands<T>(D);
    const N *rows[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        rows[lane] = lane < count ? row_of(lane) : nullptr;
        if (rows[lane]) prefetch_row(rows[lane], D);  // all at once: memory answers many requests in the time of one
    }
    for (int lane = 0; lane < LANES; lane += W)
        for (int64_t d = 0; d < words; d += W) {
            F v[W];
            for (int i = 0; i < W; i++) {
                const N *row = rows[lane + i];
                if (!row)
                    v[i] = F{};
                else if constexpr (PAIRS)
                    v[i] = lane_words(row, d, D);
                else
                    v[i] = lane_vector(row, d, D);
            }
            transpose(v);
            const U flip = splat_word(!negate ? 0 : PAIRS ? 0x80008000u : 0x80000000u);
            for (int i = 0; i < W && d + i < words; i++)
                store((float *)(to + (d + i) * LANES + lane), (F)((U)v[i] ^ flip));
        }
}

}  // namespace heedful::HEEDFUL_ISA
