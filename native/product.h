// The one matrix product behind all of attention: C[row][lane] (+)= Σ_k A[row, k] · B[k][lane].
//
// A's numbers are broadcast from where they lie, whatever its two strides; B and C have vectors along the lanes. A
// register tile of ROWS x VECTORS accumulators hides the latency of the multiply-add. What is added to C is summed up by
// itself first: rounding errors then grow with the root of a block and of the number of blocks, not of all keys.

// The operand types: plain floats, or pairs of bf16 in one 32-bit word, multiplied and added two at a time.
#if defined(__AVX512BF16__)
struct Pair {
    uint32_t bits;
};
using PairVector = __m512bh;
INLINE PairVector broadcast(const Pair *p) { return (__m512bh)_mm512_set1_epi32((int)p->bits); }
INLINE PairVector load(const Pair *p) { return (__m512bh)_mm512_loadu_si512(p); }
INLINE F multiply_add(PairVector a, PairVector b, F c) { return (F)_mm512_dpbf16_ps((__m512)c, a, b); }
#endif
INLINE F broadcast(const float *p) { return splat(*p); }
INLINE F multiply_add(F a, F b, F c) { return a * b + c; }

#if defined(__AVX512BF16__)
template <bool PAIRS>
using Operand = std::conditional_t<PAIRS, Pair, float>;
#else
template <bool PAIRS>
using Operand = float;
#endif

template <int ROWS, int VECTORS, bool ADD, class T>
INLINE void register_tile(const T *A, int64_t a_row, int64_t a_k, const T *B, int64_t b_k, int64_t K, float *C,
                          int64_t c_row) {
    using Vector = decltype(load(B));
    F c[ROWS][VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) c[i][j] = F{};
    for (int64_t k = 0; k < K; k++) {
        Vector b[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) b[j] = load(B + k * b_k + j * W);
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++) {
            Vector a = broadcast(A + i * a_row + k * a_k);
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++) c[i][j] = multiply_add(a, b[j], c[i][j]);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            float *to = C + i * c_row + j * W;
            store(to, ADD ? load(to) + c[i][j] : c[i][j]);
        }
}

// Rows in tiles of ROWS, what is left in a smaller one.
template <int ROWS, int VECTORS, bool ADD, class T>
INLINE void row_tiles(int64_t M, const T *A, int64_t a_row, int64_t a_k, const T *B, int64_t b_k, int64_t K, float *C,
                      int64_t c_row) {
    int64_t i = 0;
    for (; i + ROWS <= M; i += ROWS)
        register_tile<ROWS, VECTORS, ADD>(A + i * a_row, a_row, a_k, B, b_k, K, C + i * c_row, c_row);
    if constexpr (ROWS > 1)
        if (i < M)
            row_tiles<(ROWS > 8 ? ROWS / 2 : ROWS - 1), VECTORS, ADD>(M - i, A + i * a_row, a_row, a_k, B, b_k, K,
                                                                      C + i * c_row, c_row);
}

// How many vectors of lanes a register tile spans, and how many rows the registers then hold.
#if defined(__AVX512F__)
constexpr int MOST_VECTORS = 4, ACCUMULATORS = 24;
#elif defined(__AVX2__)
constexpr int MOST_VECTORS = 2, ACCUMULATORS = 12;
#else
constexpr int MOST_VECTORS = 2, ACCUMULATORS = 8;
#endif

template <int LANES, bool ADD, class T>
static __attribute__((noinline)) void product(int64_t M, const T *A, int64_t a_row, int64_t a_k, const T *B,
                                              int64_t b_k, int64_t K, float *C, int64_t c_row) {
    constexpr int VECTORS = LANES / W < MOST_VECTORS ? LANES / W : MOST_VECTORS;
    for (int lane = 0; lane < LANES; lane += VECTORS * W)
        row_tiles<ACCUMULATORS / VECTORS, VECTORS, ADD>(M, A, a_row, a_k, B + lane, b_k, K, C + lane, c_row);
}
