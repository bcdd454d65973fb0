// The exported functions of the library: they check the arguments and call the kernels of the instruction set in use.

#include "export.h"
#include "heedful.h"
#include "isa.h"
#include "processor.h"
#include "validation.h"

extern "C" {
EXPORT int32_t heedful_abi(void) { return HEEDFUL_ABI; }
EXPORT int32_t heedful_max_key_ranges(void) { return HEEDFUL_MAX_KEY_RANGES; }
EXPORT int64_t heedful_problem_size(void) { return sizeof(heedful_problem); }
EXPORT int64_t heedful_gradient_size(void) { return sizeof(heedful_gradient); }
EXPORT int64_t heedful_summary_size(void) { return sizeof(heedful_summary); }

EXPORT const char *heedful_isa(void) { return heedful::isa_in_use.load()->name; }

EXPORT int32_t heedful_use_isa(const char *name) {
    const heedful::InstructionSet *isa = heedful::find_isa(name, heedful::processor_features());
    if (!isa) return 1;
    heedful::isa_in_use = isa;
    return 0;
}

EXPORT int32_t heedful_forward(const heedful_problem *problem) {
    if (const int32_t status = heedful::check(problem)) return status;
    return heedful::isa_in_use.load()->kernels->forward(problem);
}

EXPORT int64_t heedful_forward_scratch(const heedful_problem *problem, int64_t threads) {
    if (!problem || heedful::check_dtype(*problem) || heedful::check_sizes(*problem)) return -1;
    return heedful::isa_in_use.load()->kernels->forward_scratch(problem, threads);
}

EXPORT int32_t heedful_backward(const heedful_gradient *gradient) {
    if (const int32_t status = heedful::check(gradient)) return status;
    return heedful::isa_in_use.load()->kernels->backward(gradient);
}

EXPORT int32_t heedful_summarize(const heedful_summary *summary) {
    if (const int32_t status = heedful::check(summary)) return status;
    return heedful::isa_in_use.load()->kernels->summarize(summary);
}
}
