// The tests' names, and what they share.
#pragma once

#include <cstdint>
#include <vector>

#include "../heedful.h"

// Lengths around every edge of a block, a tile and a vector; and around the places where keys are split among threads.
inline const std::vector<int64_t> EDGES = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
inline const std::vector<int64_t> LONG = {1023, 1024, 1025, 2047, 2048, 2049};
inline const std::vector<int64_t> HEAD_SIZES = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 33, 40, 63, 64, 65, 80, 127, 129, 200, 256};

// How far a result may be from the plain one: what rounding to the type allows.
inline double tolerance(int dtype) {
    return dtype == HEEDFUL_F32 ? 3e-5 : dtype == HEEDFUL_F16 ? 2e-3 : 2e-2;
}

// The log-sum-exp is always float; for bf16 its exponentials may be no better than a bf16 can tell.
inline double lse_tolerance(int dtype) { return dtype == HEEDFUL_BF16 ? 3e-4 : 3e-5; }

template <class What>  // what() with every instruction set that this machine has
void with_each_isa(What what) {
    for (const char *isa : {"generic", "avx2", "avx512", "avx512bf16"})
        if (heedful_use_isa(isa) == 0) what();
}

void test_forward();
void test_backward();
