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

// 2^x for x < 128, and exactly 0 for very negative x. Minimax polynomials on [-½, ½] with a relative error of 7.5e-8,
// or of 7.5e-5 if not EXACT, which suffices for results that are rounded to bf16.
template <bool EXACT>
INLINE F exp2(F x) {
    x = maximum_of(splat(-200.0f), x);
#if defined(__AVX512F__)
    F whole = (F)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    F whole = (F)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(HEEDFUL_NEON)
    F whole = vrndnq_f32(x);
#else
    F shifter = splat(12582912.0f);  // 1.5 · 2^23: the sum has no fraction bits, so adding it rounds to an integer
    F whole = (x + shifter) - shifter;
#endif
    F f = x - whole, p;
    if (EXACT) {
        p = splat(1.327647200e-3f);
        p = p * f + 9.675541345e-3f;
        p = p * f + 5.550713274e-2f;
        p = p * f + 2.402211972e-1f;
        p = p * f + 6.931469671e-1f;
        p = p * f + 1.000000072f;
    } else {
        p = splat(5.517166914e-2f);
        p = p * f + 2.426111229e-1f;
        p = p * f + 6.932609855e-1f;
        p = p * f + 9.999280735e-1f;
    }
#if defined(__AVX512F__)
    return (F)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    I exponent = (__builtin_convertvector(whole, I) + 127) << 23;
    return whole < -126.0f ? F{} : p * (F)exponent;  // flushes denormals, below 1e-38, to 0
#endif
}

INLINE F absolute(F x) { return (F)((I)x & 0x7FFFFFFF); }

// Relative error 4e-7. Near 0, where 1 − 2 / (e^2x + 1) would cancel, a series takes its place.
INLINE F tanh(F x) {
    const F y = x * x;
    const F near = x + x * y * (y * (y * -5.3968254e-2f + 1.3333333e-1f) - 3.3333333e-1f);
    const F e = exp2<true>(minimum_of(splat(60.0f), absolute(x) * 2.8853900818f));
    const F far = 1.0f - 2.0f / (e + 1.0f);
    return absolute(x) < 0.15f ? near : (x < 0.0f ? -far : far);
}

}  // namespace heedful::HEEDFUL_ISA
