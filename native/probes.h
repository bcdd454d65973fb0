// The busiest loops of one instruction set: enough independent accumulators that nothing ever waits.

#if defined(__AVX512F__)
constexpr int BUSY = 24;  // of 32 registers; two units of latency 4, or 6 for bf16, need at most 12
#else
constexpr int BUSY = 12;  // of 16
#endif

// Stores what was computed, so that it has to be.
INLINE void use(const F c[BUSY]) {
    volatile float used;
    for (int i = 0; i < BUSY; i++) used = c[i][0];
    (void)used;
}

// c ← c · a + b settles at b / (1 − a): no overflow, no denormals.
static double multiply_adds(int64_t rounds) {
    F c[BUSY];
    volatile float half = 0.5f, one = 1.0f;  // which the compiler has to believe could be anything
    const F a = splat(half), b = splat(one);
    for (int i = 0; i < BUSY; i++) c[i] = splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 32
        for (int i = 0; i < BUSY; i++) c[i] = multiply_add(c[i], a, b);
    use(c);
    return 2.0 * W * BUSY * (double)rounds;
}

#if defined(__AVX512BF16__)
static double bf16_products(int64_t rounds) {
    F c[BUSY];
    volatile int bits = 0x3DCC3DCC;  // two bf16 of 0.1
    const PairVector a = (PairVector)_mm512_set1_epi32(bits);
    for (int i = 0; i < BUSY; i++) c[i] = splat((float)i);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 32
        for (int i = 0; i < BUSY; i++) c[i] = multiply_add(a, a, c[i]);
    use(c);
    return 4.0 * W * BUSY * (double)rounds;
}
#else
constexpr double (*bf16_products)(int64_t) = nullptr;
#endif

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
