// Products of bf16 matrices in the processor's tile registers (AMX), where it has them and the system allows their use. A
// tile has 16 rows of 64 bytes: 16 keys with 32 numbers each, or 16 pairs of numbers for each of 16 lanes.
#pragma once

#include <cstdint>

#include "pairs.h"
#include "processor.h"

#if defined(__AVX512BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HEEDFUL_TILES __attribute__((target("amx-tile,amx-bf16")))
#endif

namespace heedful::HEEDFUL_ISA {

constexpr int64_t TILE_ROWS = 16, TILE_PAIRS = 16;

#if defined(HEEDFUL_TILES)

constexpr bool HAS_TILES = true;

// Whether the processor has the registers, and the system lets this process use them, which it must be asked once.
static bool tiles_usable() {
    static const bool usable = [] {
        constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return (processor_features() & AMX_BF16) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }();
    return usable;
}

// The calling thread's use of the tile registers, for as long as this exists.
class TileRegisters {
  public:
    const bool usable = tiles_usable();

    TileRegisters() {
        if (usable) configure();
    }
    ~TileRegisters() {
        if (usable) release_all();
    }
    TileRegisters(const TileRegisters &) = delete;
    TileRegisters &operator=(const TileRegisters &) = delete;

  private:
    HEEDFUL_TILES static void configure() {
        struct alignas(64) Shapes {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes_of_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        };
        // static: GCC takes the instruction to read 8 bytes only, and would not write the others.
        static constexpr Shapes shapes;
        _tile_loadconfig(&shapes);
    }
    HEEDFUL_TILES static void release_all() { _tile_release(); }
};

// C (16 · row_tiles, LANES) from A (16 · row_tiles, K) and B (K, LANES). K counts pairs, in multiples of 16. Strides count
// pairs, or floats for C.
template <int LANES>
HEEDFUL_TILES static void tile_product(int64_t row_tiles, const Pair *A, int64_t a_row, const Pair *B, int64_t K,
                                       float *C) {
    constexpr int64_t STEP = LANES >= 32 ? 32 : 16, LANE_BYTES = sizeof(float) * LANES;
    const int64_t a_bytes = sizeof(Pair) * a_row;
    for (int64_t row = 0; row < row_tiles; row += 2) {
        const bool two_rows = row + 1 < row_tiles;
        for (int64_t lane = 0; lane < LANES; lane += STEP) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t k = 0; k < K; k += TILE_PAIRS) {
                const Pair *a = A + row * TILE_ROWS * a_row + k, *b = B + k * LANES + lane;
                _tile_loadd(4, a, a_bytes);
                _tile_loadd(6, b, LANE_BYTES);
                _tile_dpbf16ps(0, 4, 6);
                if constexpr (STEP == 32) {
                    _tile_loadd(7, b + 16, LANE_BYTES);
                    _tile_dpbf16ps(1, 4, 7);
                }
                if (!two_rows) continue;
                _tile_loadd(5, a + TILE_ROWS * a_row, a_bytes);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (STEP == 32) _tile_dpbf16ps(3, 5, 7);
            }
            float *c = C + row * TILE_ROWS * LANES + lane;
            _tile_stored(0, c, LANE_BYTES);
            if constexpr (STEP == 32) _tile_stored(1, c + 16, LANE_BYTES);
            if (!two_rows) continue;
            _tile_stored(2, c + TILE_ROWS * LANES, LANE_BYTES);
            if constexpr (STEP == 32) _tile_stored(3, c + TILE_ROWS * LANES + 16, LANE_BYTES);
        }
    }
}

#else

constexpr bool HAS_TILES = false;

struct TileRegisters {
    const bool usable = false;
};

#endif

}  // namespace heedful::HEEDFUL_ISA
