/* The C interface that measures the machine's limits, which benchmarks are compared with. */
#ifndef HEEDFUL_PEAKS_H
#define HEEDFUL_PEAKS_H

#include "heedful.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Return the floating-point operations per second of `threads` threads together, measured for about `seconds`: float32
 * multiply-adds, or products of bf16 pairs added to float32 (0 if the instruction set in use has none). The operands
 * stay in registers. */
double heedful_peak_fma(double seconds, heedful_parallel_for parallel_for, int64_t threads);
double heedful_peak_bf16(double seconds, heedful_parallel_for parallel_for, int64_t threads);

/* Read the bytes once, in blocks that the threads take from a shared counter. Returns a value that depends on them. */
uint64_t heedful_stream_read(const void *from, int64_t bytes, heedful_parallel_for parallel_for);

#ifdef __cplusplus
}
#endif
#endif
