// The conversion of rows of numbers to operands of a product: floats, or pairs of bf16.
#pragma once

#include <cstdint>
#include <cstring>

#include "number.h"
#include "product.h"
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

// The numbers [at, at + W) of a row of `count` numbers, zeros beyond its end.
template <class N>
INLINE F lane_vector(const N *row, int64_t at, int64_t count) {
    if (at + W <= count) return load_wide(row + at);
    F v{};
    for (int64_t i = at; i < count; i++) v[i - at] = widen(row[i]);
    return v;
}

#if defined(__AVX512BF16__)
// Copy a row of `count` numbers as pairs of neighbours; an odd last number is paired with 0.
INLINE void copy_row(const Bf16 *from, int64_t count, Pair *to) {
    if (count % 2) to[count / 2].bits = 0;
    memcpy(to, from, count * sizeof(Bf16));
}

// Pair two rows of numbers column by column, in one row of pairs. A missing row (nullptr) counts as zeros.
INLINE void pair_rows(const Bf16 *even, const Bf16 *odd, int64_t count, Pair *to) {
    for (int64_t i = 0; i < count; i += W) {
        const __mmask16 present = count - i < W ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)0xFFFF;
        const __m256i zero = _mm256_setzero_si256();
        const __m512i low = _mm512_cvtepu16_epi32(even ? _mm256_maskz_loadu_epi16(present, even + i) : zero);
        const __m512i high = _mm512_cvtepu16_epi32(odd ? _mm256_maskz_loadu_epi16(present, odd + i) : zero);
        _mm512_mask_storeu_epi32(to + i, present, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

// Round two vectors of floats and pair them lane by lane.
INLINE void store_pairs(Pair *to, F even, F odd) {
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);  // 16 even ones, then 16 odd ones
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, halves));
}

// Round a vector of floats and pair neighbouring lanes: W / 2 pairs.
INLINE void store_row(Pair *to, F numbers) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
}

// Round a vector of floats to pairs (number, 0) in `first` and (0, number) in `second`.
INLINE void split_pairs(F numbers, Pair *first, Pair *second) {
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)numbers));
    _mm512_storeu_si512(first, bits);
    _mm512_storeu_si512(second, _mm512_slli_epi32(bits, 16));
}

// The pairs [at, at + W) of a row of `count` numbers, zeros beyond its end.
INLINE F lane_words(const Bf16 *row, int64_t at, int64_t count) {
    const int64_t left = count - 2 * at;
    const __mmask32 present = left >= 2 * W ? 0xFFFFFFFFu : ((1u << left) - 1);
    return (F)_mm512_maskz_loadu_epi16(present, row + 2 * at);
}
#endif

// Put the rows row_of(lane), lane < count, of D numbers into the lanes: to[d][lane], or to[d / 2][lane] of pairs.
// Idle lanes and missing rows (nullptr) become zeros; `negate` flips all signs.
template <class N, bool PAIRS, int LANES, class RowOf, class T>
INLINE void load_lanes(RowOf row_of, int count, int64_t D, bool negate, T *to) {
    const int64_t words = PAIRS ? (D + 1) / 2 : D;
    for (int lane = 0; lane < LANES; lane += W)
        for (int64_t d = 0; d < words; d += W) {
            F v[W];
            for (int i = 0; i < W; i++) {
                const N *row = lane + i < count ? row_of(lane + i) : nullptr;
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
