// Products of bf16 matrices in the processor's tile registers (AMX). A tile has 16 rows of 64 bytes: of A, 16 rows with 16
// pairs each; of B, 16 pairs of neighbouring rows for each of 16 columns; of C, 16 x 16 floats.
#pragma once

#include <cstdint>

#include "pairs.h"

namespace heedful::HEEDFUL_ISA {

constexpr int64_t TILE = 16;  // rows, pairs and columns

#if defined(__AMX_BF16__)

constexpr bool HAS_TILES = true;

// The calling thread's use of the tile registers, for as long as this exists. With USED false, it is nothing.
template <bool USED>
class TileRegisters {
  public:
    TileRegisters() {
        if constexpr (USED) configure();
    }
    ~TileRegisters() {
        if constexpr (USED) _tile_release();
    }
    TileRegisters(const TileRegisters &) = delete;
    TileRegisters &operator=(const TileRegisters &) = delete;

  private:
    static void configure() {
        struct alignas(64) Shapes {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes_of_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        };
        // static: GCC takes the instruction to read 8 bytes only, and would not write the others.
        static constexpr Shapes shapes;
        _tile_loadconfig(&shapes);
    }
};

// ROWS x COLUMNS tiles of C, all in registers: 0 to 3, with those of A in 4 and 5 and those of B in 6 and 7. Strides count
// bytes.
template <int ROWS, int COLUMNS, bool ADD>
INLINE void register_tiles(const Pair *A, int64_t a_row, const Pair *B, int64_t b_row, int64_t K, float *C,
                           int64_t c_row) {
    const Pair *A_below = (const Pair *)((const char *)A + TILE * a_row);
    float *C_below = (float *)((char *)C + TILE * c_row);
    if constexpr (ADD) {
        _tile_loadd(0, C, c_row);
        if constexpr (COLUMNS > 1) _tile_loadd(1, C + TILE, c_row);
        if constexpr (ROWS > 1) _tile_loadd(2, C_below, c_row);
        if constexpr (ROWS > 1 && COLUMNS > 1) _tile_loadd(3, C_below + TILE, c_row);
    } else {
        _tile_zero(0);
        if constexpr (COLUMNS > 1) _tile_zero(1);
        if constexpr (ROWS > 1) _tile_zero(2);
        if constexpr (ROWS > 1 && COLUMNS > 1) _tile_zero(3);
    }
    for (int64_t k = 0; k < K; k += TILE) {
        const Pair *b = (const Pair *)((const char *)B + k * b_row);
        _tile_loadd(4, A + k, a_row);
        _tile_loadd(6, b, b_row);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (COLUMNS > 1) {
            _tile_loadd(7, b + TILE, b_row);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (ROWS > 1) {
            _tile_loadd(5, A_below + k, a_row);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (ROWS > 1 && COLUMNS > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, C, c_row);
    if constexpr (COLUMNS > 1) _tile_stored(1, C + TILE, c_row);
    if constexpr (ROWS > 1) _tile_stored(2, C_below, c_row);
    if constexpr (ROWS > 1 && COLUMNS > 1) _tile_stored(3, C_below + TILE, c_row);
}

// C (M, lanes) is set, or with ADD added to, from A (M, K) and B (K, lanes), all of them in whole tiles. Strides count
// pairs, or floats for C.
template <bool ADD>
static __attribute__((noinline)) void tile_product(int64_t M, int64_t lanes, const Pair *A, int64_t a_row, const Pair *B,
                                                   int64_t b_row, int64_t K, float *C, int64_t c_row) {
    asm volatile("" ::: "memory");  // GCC does not know that tiles are loaded from memory: all must be written by now
    const int64_t a_bytes = sizeof(Pair) * a_row, b_bytes = sizeof(Pair) * b_row, c_bytes = sizeof(float) * c_row;
    const auto rows_of = [&]<int ROWS>(int64_t i) {
        const Pair *a = A + i * a_row;
        float *c = C + i * c_row;
        int64_t lane = 0;
        for (; lane + 2 * TILE <= lanes; lane += 2 * TILE)
            register_tiles<ROWS, 2, ADD>(a, a_bytes, B + lane, b_bytes, K, c + lane, c_bytes);
        if (lane < lanes) register_tiles<ROWS, 1, ADD>(a, a_bytes, B + lane, b_bytes, K, c + lane, c_bytes);
    };
    int64_t i = 0;
    for (; i + 2 * TILE <= M; i += 2 * TILE) rows_of.template operator()<2>(i);
    if (i < M) rows_of.template operator()<1>(i);
}

#else

constexpr bool HAS_TILES = false;

template <bool USED>
struct TileRegisters {};

template <bool ADD>
void tile_product(int64_t M, int64_t lanes, const Pair *A, int64_t a_row, const Pair *B, int64_t b_row, int64_t K, float *C,
                  int64_t c_row);

#endif

}  // namespace heedful::HEEDFUL_ISA
