// The library's doors: which instruction set runs, and nothing else.

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "heedful.h"
#include "isa.h"

namespace heedful {

struct Choice {
    const char *name;
    const Kernels *kernels;
    bool (*runs_here)();
};

// Best last.
static const Choice choices[] = {
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
     [] { return choices[2].runs_here() && __builtin_cpu_supports("avx512bf16"); }},
#endif
};

static const Choice *best() {
    const Choice *found = choices;
    for (const Choice &choice : choices)
        if (choice.runs_here()) found = &choice;
    return found;
}

static std::atomic<const Choice *> chosen{best()};

}  // namespace heedful

extern "C" {
#define EXPORT __attribute__((visibility("default")))

EXPORT int32_t heedful_abi(void) { return HEEDFUL_ABI; }

EXPORT const char *heedful_isa(void) { return heedful::chosen.load()->name; }

EXPORT int32_t heedful_use_isa(const char *name) {
    for (const heedful::Choice &choice : heedful::choices)
        if (!strcmp(choice.name, name) && choice.runs_here()) {
            heedful::chosen = &choice;
            return 0;
        }
    return 1;
}

EXPORT int32_t heedful_forward(const heedful_problem *problem) {
    return heedful::chosen.load()->kernels->forward(problem);
}

EXPORT int32_t heedful_backward(const heedful_gradient *gradient) {
    return heedful::chosen.load()->kernels->backward(gradient);
}
}
