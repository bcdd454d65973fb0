// Tests of the interface: what callers check at load, and the errors that the passes return.

#include "check.h"
#include "problem.h"
#include "tests.h"

static void limits() {
    check(heedful_abi() == HEEDFUL_ABI, "version of the interface", "");
    check(heedful_max_key_ranges() == HEEDFUL_MAX_KEY_RANGES, "maximum number of key ranges", "");
    check(heedful_problem_size() == sizeof(heedful_problem), "size of heedful_problem", "");
    check(heedful_gradient_size() == sizeof(heedful_gradient), "size of heedful_gradient", "");
}

static void unknown_isa() {
    const std::string before = heedful_isa();
    check(heedful_use_isa("sse9") != 0 && heedful_isa() == before, "an unknown instruction set is refused", "");
}

// Every pass refuses the problem with this status, and writes nothing.
static void check_refusal(const heedful_problem &problem, int32_t expected, const char *what, bool plain) {
    heedful_gradient gradient{};
    gradient.forward = problem;
    const int32_t forward = plain ? heedful_forward_plain(&problem) : heedful_forward(&problem);
    const int32_t backward = plain ? heedful_backward_plain(&gradient) : heedful_backward(&gradient);
    check(forward == expected, what, "forward");
    check(backward == expected, what, "backward");
}

static void refusals() {
    Problem problem(draw_case(1, 3, 5, 8, 8));
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    const Tensors before = x;
    for (int32_t dtype : {-1, 3, 1000}) {
        const heedful_problem p = problem.with(x, dtype, 0);
        check_refusal(p, HEEDFUL_UNKNOWN_DTYPE, "an unknown dtype is refused", false);
        check_refusal(p, HEEDFUL_UNKNOWN_DTYPE, "an unknown dtype is refused by the plain kernel", true);
    }
    check_refusal(problem.with(x, HEEDFUL_BF16, 0), HEEDFUL_UNKNOWN_DTYPE, "bf16 is refused by the plain kernel", true);
    for (int32_t key_ranges : {-1, HEEDFUL_MAX_KEY_RANGES + 1, 1000}) {
        heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
        p.key_ranges = key_ranges;
        check_refusal(p, HEEDFUL_TOO_MANY_KEY_RANGES, "too many key ranges are refused", false);
    }
    check(x.output.same_bytes(before.output), "a refused problem writes nothing", "");
}

void test_interface() {
    limits();
    unknown_isa();
    with_each_isa(refusals);
}
