// Vectors of W floats and the operations on them. GCC's vector extension expresses most; the rest are intrinsics.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(HEEDFUL_NEON)
#include <arm_neon.h>
#endif

#include <cstdint>

// The namespace of the instruction set that this translation unit is compiled for. The files in isa/ define it, and on
// Arm HEEDFUL_NEON too: "generic" is code without intrinsics, although every such processor has NEON.
#ifndef HEEDFUL_ISA
#define HEEDFUL_ISA generic
#endif

#define INLINE static inline __attribute__((always_inline))

namespace heedful::HEEDFUL_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef float Fu __attribute__((vector_size(4 * W), aligned(4)));  // in memory of any alignment
typedef int32_t Iu __attribute__((vector_size(4 * W), aligned(4)));

INLINE F splat(float x) { return x - F{}; }  // x − 0 is x for every x; 0 + x would turn −0 into 0
INLINE F load(const float *p) { return *(const Fu *)p; }
INLINE void store(float *p, F v) { *(Fu *)p = v; }
INLINE I load(const int32_t *p) { return *(const Iu *)p; }
INLINE I splat(int32_t x) { return I{} + x; }
INLINE U splat_word(uint32_t x) { return U{} + x; }
INLINE U load_words(const uint32_t *p) { return (U)load((const int32_t *)p); }

// The larger number of each pair. A NaN in b is kept; one in a may be.
INLINE F maximum_of(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(HEEDFUL_NEON)
    return vmaxq_f32(a, b);
#else
    return a > b ? a : b;
#endif
}

// The smaller number of each pair; NaN likewise.
INLINE F minimum_of(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (F)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(HEEDFUL_NEON)
    return vminq_f32(a, b);
#else
    return a < b ? a : b;
#endif
}

INLINE float highest_of(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(HEEDFUL_NEON)
    return vmaxvq_f32(v);
#else
    float highest = v[0];
    for (int i = 1; i < W; i++) highest = v[i] > highest ? v[i] : highest;
    return highest;
#endif
}

INLINE float sum_of(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(HEEDFUL_NEON)
    return vaddvq_f32(v);
#else
    float sum = 0;
    for (int i = 0; i < W; i++) sum += v[i];
    return sum;
#endif
}

INLINE bool any(I flags) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)flags, (__m512i)flags) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_epi8((__m256i)flags) != 0;
#elif defined(HEEDFUL_NEON)
    return vmaxvq_u32((uint32x4_t)flags) != 0;
#else
    int32_t bits = 0;
    for (int i = 0; i < W; i++) bits |= flags[i];
    return bits != 0;
#endif
}

// x, rounded to float32: the compiler must not fuse the product x into a following sum. The backward pass recomputes
// the scores, and large scores must round as they did in the forward pass, or the log-sum-exp no longer fits them.
INLINE F rounded(F x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));  // an instruction that might change x, in any of 32 registers, and yet is none
#elif defined(__x86_64__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

// 2^f for 0 ≤ f < 1, by the minimax polynomials that are exactly 1 at 0, with relative errors of 8.6e-5, 2.9e-6 and 8.3e-8.
// So the largest score has the weight 1, and a query with one key returns its value.
template <int DEGREE>
INLINE F exp2_polynomial(F f) {
    static_assert(3 <= DEGREE && DEGREE <= 5);
    constexpr float c[3][6] = {
        {1, 6.951167853e-1f, 2.276449924e-1f, 7.706704213e-2f, 0, 0},
        {1, 6.930448451e-1f, 2.412802044e-1f, 5.224247354e-2f, 1.342668519e-2f, 0},
        {1, 6.931513132e-1f, 2.401644401e-1f, 5.579993896e-2f, 9.017000993e-3f, 1.867142308e-3f},
    };
    F p = splat(c[DEGREE - 3][DEGREE]);
#pragma GCC unroll 8
    for (int i = DEGREE - 1; i >= 0; i--) p = p * f + c[DEGREE - 3][i];
    return p;
}

// 2^x for x < 128, with the relative error of the polynomial of this degree; exactly 0 for x < -126, whose powers are
// denormal.
template <int DEGREE>
INLINE F exp2(F x) {
#if defined(__AVX512F__)
    const F f = (F)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x − ⌊x⌋, 0 for −∞
    // Times 2^⌊x⌋. A denormal result would take 150 cycles.
    const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return (F)_mm512_maskz_scalef_ps(normal, (__m512)exp2_polynomial<DEGREE>(f), (__m512)x);
#else
    x = maximum_of(splat(-127.0f), x);  // an exponent of −127 has bits of 0, so the power is 0
#if defined(__AVX2__)
    const F whole = (F)_mm256_floor_ps((__m256)x);
#elif defined(HEEDFUL_NEON)
    const F whole = vrndmq_f32(x);
#else
    const F shifter = splat(12582912.0f);  // 1.5 · 2^23: the sum has no fraction bits, so adding it rounds to an integer
    const F nearest = (x + shifter) - shifter, whole = nearest > x ? nearest - 1.0f : nearest;
#endif
    const F p = exp2_polynomial<DEGREE>(x - whole);
    const I exponent = (__builtin_convertvector(whole, I) + 127) << 23;
    return p * (F)exponent;
#endif
}

INLINE F absolute(F x) { return (F)((I)x & 0x7FFFFFFF); }

// Relative error 4e-7. Near 0, where 1 − 2 / (e^2x + 1) would cancel, a series takes its place.
INLINE F tanh(F x) {
    const F y = x * x;
    const F near = x + x * y * (y * (y * -5.3968254e-2f + 1.3333333e-1f) - 3.3333333e-1f);
    const F e = exp2<5>(minimum_of(splat(60.0f), absolute(x) * 2.8853900818f));
    const F far = 1.0f - 2.0f / (e + 1.0f);
    return absolute(x) < 0.15f ? near : (x < 0.0f ? -far : far);
}

}  // namespace heedful::HEEDFUL_ISA
