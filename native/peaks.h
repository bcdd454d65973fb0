/* peaks.h: what the machine could do at most, measured, for benchmarks to compare with. Pointers and numbers only. */
#ifndef HEEDFUL_PEAKS_H
#define HEEDFUL_PEAKS_H

#include "heedful.h"

namespace heedful {

/* The instructions that one instruction set has for it; each runs `rounds` of them on the calling thread. */
struct Peaks {
    double (*multiply_add)(int64_t rounds);  /* returns the floating-point operations done */
    double (*bf16_products)(int64_t rounds); /* NULL where the instruction set has none */
    uint64_t (*read)(const void *from, int64_t bytes);
};

namespace generic {
extern const Peaks peaks;
}
namespace avx2 {
extern const Peaks peaks;
}
namespace avx512 {
extern const Peaks peaks;
}
namespace avx512bf16 {
extern const Peaks peaks;
}

}  // namespace heedful

extern "C" {

/* Floating-point operations per second of all threads together, for about so many seconds: float32 multiply-adds,
 * and products of bf16 pairs added to float32 (0 where the instruction set in use has none). Registers only. */
double heedful_peak_fma(double seconds, heedful_parallel_for parallel_for, int64_t threads);
double heedful_peak_bf16(double seconds, heedful_parallel_for parallel_for, int64_t threads);

/* Reads the bytes once, in blocks that threads take as they come. The result depends on all of them. */
uint64_t heedful_stream_read(const void *from, int64_t bytes, heedful_parallel_for parallel_for);
}
#endif
