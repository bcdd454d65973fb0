// Pairs of bf16 numbers in 32-bit words, which some instruction sets multiply and add two at a time. These have the same
// functions:
//
//   broadcast      a pair in every lane
//   multiply_add   c + a.first · b.first + a.second · b.second
//   copy_row       copies a row as pairs of neighbours; an odd last number is paired with 0
//   pair_rows      pairs two rows column by column; a missing row (nullptr) counts as zeros
//   store_pairs    rounds two vectors of floats and pairs them lane by lane
//   store_row      rounds a vector of floats and pairs neighbouring lanes: W / 2 pairs
//   pair_numbers   pairs the numbers of two vectors: of 8 neighbours, `low` gets the first 4 pairs, and `high` the others
//   lane_words     the pairs [at, at + W) of a row of `count` numbers, zeros beyond its end
//   pair_words     the pairs [at, at + W) that pair_rows makes, zeros beyond the rows' end; only beside tile registers
#pragma once

#include <cstdint>
#include <cstring>

#include "number.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

struct Pair {
    uint32_t bits;
};

INLINE void copy_row(const Bf16 *from, int64_t count, Pair *to) {
    if (count % 2) to[count / 2].bits = 0;
    memcpy(to, from, count * sizeof(Bf16));
}

#if defined(__AVX512BF16__)

constexpr bool HAS_PAIRS = true;
using PairVector = __m512bh;
INLINE PairVector broadcast(const Pair *p) { return (__m512bh)_mm512_set1_epi32((int)p->bits); }
INLINE PairVector load(const Pair *p) { return (__m512bh)_mm512_loadu_si512(p); }
INLINE F multiply_add(PairVector a, PairVector b, F c) { return (F)_mm512_dpbf16_ps((__m512)c, a, b); }

INLINE __mmask16 first_lanes(int64_t count) {
    return count < W ? (__mmask16)((1u << count) - 1) : (__mmask16)0xFFFF;
}

INLINE F pair_words(const Bf16 *even, const Bf16 *odd, int64_t at, int64_t count) {
    const __mmask16 present = first_lanes(count - at);
    const __m256i zero = _mm256_setzero_si256();
    const __m512i low = _mm512_cvtepu16_epi32(even ? _mm256_maskz_loadu_epi16(present, even + at) : zero);
    const __m512i high = _mm512_cvtepu16_epi32(odd ? _mm256_maskz_loadu_epi16(present, odd + at) : zero);
    return (F)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

INLINE void pair_rows(const Bf16 *even, const Bf16 *odd, int64_t count, Pair *to) {
    for (int64_t i = 0; i < count; i += W)
        _mm512_mask_storeu_epi32(to + i, first_lanes(count - i), (__m512i)pair_words(even, odd, i, count));
}

INLINE void store_pairs(Pair *to, F even, F odd) {
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);  // 16 even ones, then 16 odd ones
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, halves));
}

INLINE void store_row(Pair *to, F numbers) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
}

INLINE void pair_numbers(PairVector even, PairVector odd, PairVector &low, PairVector &high) {
    low = (PairVector)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
    high = (PairVector)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
}

INLINE F lane_words(const Bf16 *row, int64_t at, int64_t count) {
    const int64_t left = count - 2 * at;
    const __mmask32 present = left >= 2 * W ? 0xFFFFFFFFu : ((1u << left) - 1);
    return (F)_mm512_maskz_loadu_epi16(present, row + 2 * at);
}

#elif defined(HEEDFUL_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

constexpr bool HAS_PAIRS = true;
using PairVector = bfloat16x8_t;
INLINE PairVector broadcast(const Pair *p) { return vreinterpretq_bf16_u32(vdupq_n_u32(p->bits)); }
INLINE PairVector load(const Pair *p) { return vreinterpretq_bf16_u8(vld1q_u8((const uint8_t *)p)); }  // any alignment
INLINE F multiply_add(PairVector a, PairVector b, F c) { return vbfdotq_f32(c, a, b); }

INLINE uint16x4_t rounded_bits(F numbers) { return vreinterpret_u16_bf16(vcvt_bf16_f32(numbers)); }

INLINE void pair_rows(const Bf16 *even, const Bf16 *odd, int64_t count, Pair *to) {
    for (int64_t i = 0; i < count; i++)
        to[i].bits = (even ? even[i].bits : 0u) | (odd ? (uint32_t)odd[i].bits << 16 : 0u);
}

INLINE void store_pairs(Pair *to, F even, F odd) {
    vst1q_u32(&to->bits, vorrq_u32(vmovl_u16(rounded_bits(even)), vshll_n_u16(rounded_bits(odd), 16)));
}

INLINE void store_row(Pair *to, F numbers) {
    vst1_u32(&to->bits, vreinterpret_u32_u16(rounded_bits(numbers)));
}

INLINE void pair_numbers(PairVector even, PairVector odd, PairVector &low, PairVector &high) {
    const uint16x8_t a = vreinterpretq_u16_bf16(even), b = vreinterpretq_u16_bf16(odd);
    low = vreinterpretq_bf16_u16(vzip1q_u16(a, b));
    high = vreinterpretq_bf16_u16(vzip2q_u16(a, b));
}

INLINE F lane_words(const Bf16 *row, int64_t at, int64_t count) {
    F words{};
    const int64_t left = count - 2 * at;
    memcpy(&words, row + 2 * at, sizeof(Bf16) * (left < 2 * W ? left : 2 * W));
    return words;
}

#else

constexpr bool HAS_PAIRS = false;

#endif

}  // namespace heedful::HEEDFUL_ISA
