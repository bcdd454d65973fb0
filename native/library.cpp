// The exported functions of the library: they choose an instruction set, check the arguments and call its kernels.

#include <atomic>
#include <cstring>

#include "heedful.h"
#include "isa.h"
#include "validation.h"

namespace heedful {

struct InstructionSet {
    const char *name;
    const Kernels *kernels;
    bool (*supported)();
};

// In ascending order of preference.
static const InstructionSet instruction_sets[] = {
    {"generic", &generic::kernels, [] { return true; }},
#if defined(__x86_64__)
    {"avx2", &avx2::kernels,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }},
    {"avx512", &avx512::kernels,
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
    {"avx512bf16", &avx512bf16::kernels,
     [] { return instruction_sets[2].supported() && __builtin_cpu_supports("avx512bf16"); }},
#endif
};

static const InstructionSet *best() {
    const InstructionSet *last = instruction_sets;
    for (const InstructionSet &isa : instruction_sets)
        if (isa.supported()) last = &isa;
    return last;
}

static std::atomic<const InstructionSet *> in_use{best()};

}  // namespace heedful

extern "C" {
#define EXPORT __attribute__((visibility("default")))

EXPORT int32_t heedful_abi(void) { return HEEDFUL_ABI; }
EXPORT int32_t heedful_max_key_ranges(void) { return HEEDFUL_MAX_KEY_RANGES; }
EXPORT int64_t heedful_problem_size(void) { return sizeof(heedful_problem); }
EXPORT int64_t heedful_gradient_size(void) { return sizeof(heedful_gradient); }

EXPORT const char *heedful_isa(void) { return heedful::in_use.load()->name; }

EXPORT int32_t heedful_use_isa(const char *name) {
    for (const heedful::InstructionSet &isa : heedful::instruction_sets)
        if (!strcmp(isa.name, name) && isa.supported()) {
            heedful::in_use = &isa;
            return 0;
        }
    return 1;
}

EXPORT int32_t heedful_forward(const heedful_problem *problem) {
    if (const int32_t status = heedful::check(problem)) return status;
    return heedful::in_use.load()->kernels->forward(problem);
}

EXPORT int64_t heedful_forward_scratch(const heedful_problem *problem, int64_t threads) {
    if (!problem || heedful::check_dtype(*problem) || heedful::check_sizes(*problem)) return -1;
    return heedful::in_use.load()->kernels->forward_scratch(problem, threads);
}

EXPORT int32_t heedful_backward(const heedful_gradient *gradient) {
    if (const int32_t status = heedful::check(gradient)) return status;
    return heedful::in_use.load()->kernels->backward(gradient);
}
}
