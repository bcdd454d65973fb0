// All code of one instruction set, compiled into that instruction set's namespace. Each file in isa/ includes it once:
//
//     #define HEEDFUL_ISA avx2
//     #include "../kernels.h"
#pragma once

#include "backward_pass.h"
#include "forward_pass.h"
#include "isa.h"
#include "peak_loops.h"
#include "summary_pass.h"

namespace heedful::HEEDFUL_ISA {

extern const Kernels kernels;  // extern: isa.cpp lists them
extern const PeakLoops peak_loops;

const Kernels kernels = {forward, backward, forward_scratch, summarize};
const PeakLoops peak_loops = {multiply_adds, bf16_products<HAS_PAIRS>(), read_all};

}  // namespace heedful::HEEDFUL_ISA
