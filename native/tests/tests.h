// The tests' functions, and the sizes and tolerances that they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../heedful.h"

// Lengths around every edge of a block, a tile and a vector, and around the lengths at which keys are split into
// chunks.
inline const std::vector<int64_t> EDGES = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
inline const std::vector<int64_t> LONG = {1023, 1024, 1025, 2047, 2048, 2049};
inline const std::vector<int64_t> HEAD_SIZES = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 33,
                                              40, 63, 64, 65, 80, 127, 129, 200, 256};

// The largest distance of a result from the plain one, which rounding to the type explains.
inline double tolerance(int dtype) {
    return dtype == HEEDFUL_F32 ? 3e-5 : dtype == HEEDFUL_F16 ? 2e-3 : 2e-2;
}

// The log-sum-exp is always float32, but for bf16 its exponentials have the precision that bf16 needs only.
inline double lse_tolerance(int dtype) { return dtype == HEEDFUL_BF16 ? 3e-4 : 3e-5; }

inline const std::vector<const char *> ISAS = {"generic", "avx2", "avx512", "avx512bf16", "amx", "neon", "neon_bf16"};

// Whether to try the next case: with 3, it is the first of three.
inline int every = 1;
inline bool is_tried() {
    static int64_t cases = 0;
    return cases++ % every == 0;
}

// Call action() with each instruction set of this machine.
template <class Action>
void with_each_isa(Action action) {
    for (const char *isa : ISAS)
        if (heedful_use_isa(isa) == 0) action();
}

void test_isa();
void test_isa_in_use(const std::string &expected);
void test_interface();
void test_number();
void test_forward();
void test_backward();
void test_summary();
