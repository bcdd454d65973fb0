// The functions that the library has once for each instruction set.
#pragma once

#include "heedful.h"

namespace heedful {

struct Kernels {
    int32_t (*forward)(const heedful_problem *);    // returns a heedful_status
    int32_t (*backward)(const heedful_gradient *);  // likewise
    int64_t (*forward_scratch)(const heedful_problem *, int64_t threads);
};

// The busiest loops of an instruction set, which peaks.cpp times. Each runs on the calling thread.
struct PeakLoops {
    double (*multiply_adds)(int64_t rounds);  // returns the number of floating-point operations done
    double (*bf16_products)(int64_t rounds);  // likewise; nullptr if the instruction set has none
    uint64_t (*read)(const void *from, int64_t bytes);  // returns a value that depends on all bytes
};

namespace generic {
extern const Kernels kernels;
extern const PeakLoops peak_loops;
}  // namespace generic
namespace avx2 {
extern const Kernels kernels;
extern const PeakLoops peak_loops;
}  // namespace avx2
namespace avx512 {
extern const Kernels kernels;
extern const PeakLoops peak_loops;
}  // namespace avx512
namespace avx512bf16 {
extern const Kernels kernels;
extern const PeakLoops peak_loops;
}  // namespace avx512bf16

}  // namespace heedful
