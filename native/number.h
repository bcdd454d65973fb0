// The number types of tensors, and the conversion of their rows to and from floats.
#pragma once

#include <bit>
#include <cstdint>

#include "vector.h"

namespace heedful::HEEDFUL_ISA {

struct Bf16 {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

INLINE float widen(float x) { return x; }
INLINE float widen(Bf16 x) { return std::bit_cast<float>((uint32_t)x.bits << 16); }
INLINE float widen(Half x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(HEEDFUL_NEON)
    return (float)std::bit_cast<__fp16>(x.bits);
#else
    const uint32_t exponent = x.bits >> 10 & 31, fraction = x.bits & 1023, sign = (uint32_t)(x.bits & 0x8000) << 16;
    const float subnormal = (float)fraction * 0x1p-24f;
    const uint32_t normal = (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;  // 31: infinity or NaN
    return std::bit_cast<float>(sign | (exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : normal));
#endif
}

INLINE void narrow(float x, float &to) { to = x; }
INLINE void narrow(float x, Bf16 &to) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    to.bits = (uint16_t)(x == x ? rounded : 0x7FC0);
}
INLINE void narrow(float x, Half &to) {
#if defined(__F16C__)
    to.bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(HEEDFUL_NEON)
    to.bits = std::bit_cast<uint16_t>((__fp16)x);
#else
    const uint32_t word = std::bit_cast<uint32_t>(x), sign = word >> 16 & 0x8000, size = word & 0x7FFFFFFF;
    uint32_t half = (size - 0x38000000 + 0x0FFF + (size >> 13 & 1)) >> 13;  // to nearest, ties to even
    if (size < 0x38800000)  // below 2^-14: a multiple of 2^-24, which is the last bit of ½ + x
        half = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3F000000;
    if (size >= 0x477FF000) half = 0x7C00;  // 65520 and more: infinity
    if (size > 0x7F800000) half = 0x7E00;   // NaN
    to.bits = (uint16_t)(sign | half);
#endif
}

// W numbers as floats.
template <class N>
INLINE F load_wide(const N *p) {
    F v;
    for (int i = 0; i < W; i++) v[i] = widen(p[i]);
    return v;
}
INLINE F load_wide(const float *p) {
    return load(p);
}
#if defined(__AVX512F__)
INLINE F load_wide(const Bf16 *p) {
    return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
INLINE F load_wide(const Half *p) {
    return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
#elif defined(__AVX2__)
INLINE F load_wide(const Bf16 *p) {
    return (F)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
INLINE F load_wide(const Half *p) {
    return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
#elif defined(HEEDFUL_NEON)
INLINE F load_wide(const Bf16 *p) { return (F)vshll_n_u16(vld1_u16(&p->bits), 16); }
INLINE F load_wide(const Half *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
#endif

// Row conversions; narrow_row also multiplies by a factor.
template <class N>
INLINE void widen_row(const N *from, int64_t count, float *to) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load_wide(from + i));
    for (; i < count; i++) to[i] = widen(from[i]);
}

template <class N>
INLINE void narrow_row(const float *from, int64_t count, float factor, N *to) {
    for (int64_t i = 0; i < count; i++) narrow(from[i] * factor, to[i]);
}

// Interleave two vectors: low = a0 b0 a1 b1 … from their first halves, high likewise from their second halves.
INLINE void interleave(F a, F b, F &low, F &high) {
#if defined(__AVX512F__)
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    low = (F)_mm512_permutex2var_ps((__m512)a, first, (__m512)b);
    high = (F)_mm512_permutex2var_ps((__m512)a, second, (__m512)b);
#elif defined(__AVX2__)
    const __m256 outer = _mm256_unpacklo_ps((__m256)a, (__m256)b);  // the numbers 0, 1, 4 and 5 of each
    const __m256 inner = _mm256_unpackhi_ps((__m256)a, (__m256)b);  // 2, 3, 6 and 7
    low = (F)_mm256_permute2f128_ps(outer, inner, 0x20);
    high = (F)_mm256_permute2f128_ps(outer, inner, 0x31);
#elif defined(HEEDFUL_NEON)
    low = vzip1q_f32(a, b);
    high = vzip2q_f32(a, b);
#else
    low = F{a[0], b[0], a[1], b[1]};
    high = F{a[2], b[2], a[3], b[3]};
#endif
}

// Transpose W x W numbers in place, by log2(W) rounds of interleaving the first half of the rows with the second.
INLINE void transpose(F v[W]) {
    for (int round = 1; round < W; round *= 2) {
        F u[W];
#pragma GCC unroll 16
        for (int i = 0; i < W / 2; i++) interleave(v[i], v[i + W / 2], u[2 * i], u[2 * i + 1]);
        for (int i = 0; i < W; i++) v[i] = u[i];
    }
}

// Sum each of N ≤ W vectors across its lanes, and return the N sums as one vector. Each round adds pairs of interleaved
// vectors, which halves their number.
template <int N = W>
INLINE F sums_of(F v[]) {
    if constexpr (N > 1) {
#pragma GCC unroll 8
        for (int i = 0; i < N / 2; i++) {
            F low, high;
            interleave(v[i], v[i + N / 2], low, high);
            v[i] = low + high;
        }
        return sums_of<N / 2>(v);
    } else {
        return v[0];
    }
}

}  // namespace heedful::HEEDFUL_ISA
