// The busiest loops of an instruction set: enough independent accumulators that no instruction waits for another.
#pragma once

#include <cstdint>

#include "matrix_tiles.h"
#include "product.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

#if defined(__AVX512F__) || defined(HEEDFUL_NEON)
constexpr int ACCUMULATED = 24;  // of 32 registers; two units with a latency of 4, or 6 for bf16, need at most 12
#else
constexpr int ACCUMULATED = 12;  // of 16 registers
#endif

// Store the results, so that the compiler cannot drop their computation.
INLINE void use(const F c[ACCUMULATED]) {
    volatile float used;
    for (int i = 0; i < ACCUMULATED; i++) used = c[i][0];
    (void)used;
}

// c ← c · a + b converges to b / (1 − a): it neither overflows nor becomes denormal.
static double multiply_adds(int64_t rounds) {
    F c[ACCUMULATED];
    volatile float half = 0.5f, one = 1.0f;  // volatile: the compiler must not know the values
    const F a = splat(half), b = splat(one);
    for (int i = 0; i < ACCUMULATED; i++) c[i] = splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 32
        for (int i = 0; i < ACCUMULATED; i++) c[i] = multiply_add(c[i], a, b);
    use(c);
    return 2.0 * W * ACCUMULATED * (double)rounds;
}

template <bool PAIRS>
static double pair_products(int64_t rounds) {
    F c[ACCUMULATED];
    volatile uint32_t bits = 0x3DCC3DCC;  // two bf16, each 0.1
    const Operand<PAIRS> tenths{bits};
    const auto a = broadcast(&tenths);
    for (int i = 0; i < ACCUMULATED; i++) c[i] = splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 32
        for (int i = 0; i < ACCUMULATED; i++) c[i] = multiply_add(a, a, c[i]);
    use(c);
    return 4.0 * W * ACCUMULATED * (double)rounds;
}

#if defined(__AMX_BF16__)
static double tile_products(int64_t rounds) {
    const TileRegisters<true> registers;
    for (int64_t round = 0; round < rounds; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return 4.0 * 2 * TILE * TILE * 2 * TILE * (double)rounds;
}
#endif

template <bool PAIRS>
constexpr auto bf16_products() -> double (*)(int64_t) {
#if defined(__AMX_BF16__)
    return tile_products;
#else
    if constexpr (PAIRS)
        return pair_products<PAIRS>;
    else
        return nullptr;
#endif
}

// The exclusive or of all words: it depends on every byte and costs one instruction a vector.
static uint64_t read_all(const void *from, int64_t bytes) {
    constexpr int64_t VECTORS = 4, WORDS = VECTORS * W;
    const auto *words = (const int32_t *)from;
    I sums[VECTORS] = {};
    int64_t i = 0;
    for (; i + WORDS <= bytes / 4; i += WORDS)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[v] ^= load(words + i + v * W);
    uint64_t sum = 0;
    for (; i < bytes / 4; i++) sum ^= (uint32_t)words[i];
    for (const I &vector : sums)
        for (int lane = 0; lane < W; lane++) sum ^= (uint32_t)vector[lane];
    return sum;
}

}  // namespace heedful::HEEDFUL_ISA
