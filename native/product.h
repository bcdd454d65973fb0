// The one matrix product of all kernels: C[row][lane] (+)= Σ_k A[row, k] · B[k][lane].
//
// In vectors, the numbers of A are broadcast from wherever its two strides put them; the vectors of B and C lie along the
// lanes. A register tile of ROWS x VECTORS accumulators hides the latency of the multiply-add. A product that is added to
// C is summed on its own first, so that rounding errors grow with the square root of a block's length and of the number
// of blocks, not of the number of all keys.
//
// Where the instruction set has tile registers, they multiply pairs (matrix_tiles.h). They compute whole tiles: rows and k
// are rounded up to STEP, and A, B and C have as many.
#pragma once

#include <cassert>
#include <cstdint>
#include <type_traits>

#include "matrix_tiles.h"
#include "pairs.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// The operand types: floats, or pairs of bf16.
template <bool PAIRS>
using Operand = std::conditional_t<PAIRS, Pair, float>;

template <class T>
constexpr int64_t NUMBERS_IN = std::is_same_v<T, Pair> ? 2 : 1;

// Whether tile registers multiply operands of type T, and in what steps rows and k are multiplied.
template <class T>
constexpr bool BY_TILES = HAS_TILES && std::is_same_v<T, Pair>;
template <class T>
constexpr int64_t STEP = BY_TILES<T> ? TILE : 1;

template <class T>
constexpr int64_t whole_steps(int64_t count) {
    return (count + STEP<T> - 1) / STEP<T> * STEP<T>;
}

INLINE F broadcast(const float *p) { return splat(*p); }
INLINE F multiply_add(F a, F b, F c) { return a * b + c; }

// ROWS rows of C and VECTORS vectors of each, all in registers.
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

// M rows of C in tiles of ROWS rows; the remainder takes smaller tiles.
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

// The widest register tile, in vectors, and the accumulators that fit the registers beside the operands.
#if defined(__AVX512F__) || defined(HEEDFUL_NEON)
constexpr int MAX_VECTORS = 4, ACCUMULATORS = 24;
#elif defined(__AVX2__)
constexpr int MAX_VECTORS = 2, ACCUMULATORS = 12;
#else
constexpr int MAX_VECTORS = 2, ACCUMULATORS = 8;
#endif

template <int VECTORS, bool ADD, class T>
INLINE void lane_tiles(int64_t M, int64_t lanes, const T *A, int64_t a_row, int64_t a_k, const T *B, int64_t b_k,
                       int64_t K, float *C, int64_t c_row) {
    int64_t lane = 0;
    for (; lane + VECTORS * W <= lanes; lane += VECTORS * W)
        row_tiles<ACCUMULATORS / VECTORS, VECTORS, ADD>(M, A, a_row, a_k, B + lane, b_k, K, C + lane, c_row);
    if constexpr (VECTORS > 1)
        if (lane < lanes)
            lane_tiles<VECTORS - 1, ADD>(M, lanes - lane, A, a_row, a_k, B + lane, b_k, K, C + lane, c_row);
}

// C (M, lanes) is set, or with ADD added to, from A (M, K) and B (K, lanes). Strides count operands, or floats for C. The
// lanes are whole vectors. For tile registers, a_k is 1, and operands of A and B beyond K are zeros.
template <bool ADD, class T>
static __attribute__((noinline)) void product(int64_t M, int64_t lanes, const T *A, int64_t a_row, int64_t a_k,
                                              const T *B, int64_t b_k, int64_t K, float *C, int64_t c_row) {
    if constexpr (BY_TILES<T>) {
        assert(a_k == 1);
        tile_product<ADD>(whole_steps<T>(M), lanes, A, a_row, B, b_k, whole_steps<T>(K), C, c_row);
    } else if (ADD && a_row == 1) {  // known to the compiler, so that a tile of many rows needs one address for all
        lane_tiles<MAX_VECTORS, ADD>(M, lanes, A, 1, a_k, B, b_k, K, C, c_row);
    } else {
        lane_tiles<MAX_VECTORS, ADD>(M, lanes, A, a_row, a_k, B, b_k, K, C, c_row);
    }
}

}  // namespace heedful::HEEDFUL_ISA
