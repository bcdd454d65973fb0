// The instruction sets that the library has code for, the functions that each has, and the one in use.
#pragma once

#include <atomic>
#include <cstdint>

#include "heedful.h"

namespace heedful {

struct Kernels {
    int32_t (*forward)(const heedful_problem *);    // returns a heedful_status
    int32_t (*backward)(const heedful_gradient *);  // likewise
    int64_t (*forward_scratch)(const heedful_problem *, int64_t threads);
    int32_t (*summarize)(const heedful_summary *);  // returns a heedful_status
};

// The busiest loops of an instruction set, which peaks.cpp times. Each runs on the calling thread.
struct PeakLoops {
    double (*multiply_adds)(int64_t rounds);  // returns the number of floating-point operations done
    double (*bf16_products)(int64_t rounds);  // likewise; nullptr if the instruction set has none
    uint64_t (*read)(const void *from, int64_t bytes);  // returns a value that depends on all bytes
};

struct InstructionSet {
    const char *name;
    uint32_t needs;  // bits of Feature
    const Kernels *kernels;
    const PeakLoops *peak_loops;
};

// The fastest instruction set on a processor with these features.
const InstructionSet *best_isa(uint32_t features);

// The instruction set of that name, or nullptr if the library or a processor with these features lacks it.
const InstructionSet *find_isa(const char *name, uint32_t features);

extern std::atomic<const InstructionSet *> isa_in_use;

}  // namespace heedful
