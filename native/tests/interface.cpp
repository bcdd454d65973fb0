// Tests of the interface: what callers check at load, and the errors that the passes return.

#include "check.h"
#include "problem.h"
#include "tests.h"

static void limits() {
    check(heedful_abi() == HEEDFUL_ABI, "version of the interface", "");
    check(heedful_max_key_ranges() == HEEDFUL_MAX_KEY_RANGES, "maximum number of key ranges", "");
    check(heedful_problem_size() == sizeof(heedful_problem), "size of heedful_problem", "");
    check(heedful_gradient_size() == sizeof(heedful_gradient), "size of heedful_gradient", "");
    check(heedful_summary_size() == sizeof(heedful_summary), "size of heedful_summary", "");
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
    heedful_problem sizes = problem.with(x, HEEDFUL_F32, 0);
    const int64_t one = heedful_forward_scratch(&sizes, 1), two = heedful_forward_scratch(&sizes, 2);
    check(0 < one && one <= two, "scratch grows with the threads", "");
    sizes.D = 0;
    check(heedful_forward_scratch(&sizes, 1) == -1 && heedful_forward_scratch(nullptr, 1) == -1,
          "the scratch of a refused problem is -1", "");
    for (int32_t key_ranges : {-1, HEEDFUL_MAX_KEY_RANGES + 1, 1000}) {
        heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
        p.key_ranges = key_ranges;
        check_refusal(p, HEEDFUL_TOO_MANY_KEY_RANGES, "too many key ranges are refused", false);
    }
    check(x.output.same_bytes(before.output), "a refused problem writes nothing", "");
}

// Every pass refuses what `spoil` makes of a valid problem.
template <class Spoil>
static void check_spoiled(int32_t expected, const char *what, Spoil spoil) {
    Case c = draw_case(1, 3, 5, 8, 8);
    c.B = 2, c.Hq = 4, c.Hkv = 2;  // every axis has a stride that counts
    Problem problem(c);
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
    spoil(p);
    check_refusal(p, expected, what, false);
    check_refusal(p, expected, what, true);
}

static void bad_sizes() {
    using P = heedful_problem;
    const auto all = {&P::B, &P::Hq, &P::Hkv, &P::Tq, &P::Tk, &P::D, &P::Dv};
    for (auto size : all)
        for (int64_t bad : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 31})
            check_spoiled(HEEDFUL_BAD_SIZE, "a size out of range is refused", [&](P &p) { p.*size = bad; });
    for (auto size : {&P::D, &P::Dv})
        check_spoiled(HEEDFUL_BAD_SIZE, "a head size of 0 is refused", [&](P &p) { p.*size = 0; });
    for (auto other : {&P::B, &P::D, &P::Dv})
        check_spoiled(HEEDFUL_BAD_SIZE, "a product of sizes that overflows is refused",
                      [&](P &p) { p.Tk = p.*other = INT32_MAX; });
    check_spoiled(HEEDFUL_BAD_HEADS, "no key heads are refused", [](P &p) { p.Hkv = 0; });
    check_spoiled(HEEDFUL_BAD_HEADS, "heads that cannot be grouped are refused", [](P &p) { p.Hq = 3, p.Hkv = 2; });
    for (double bad : {-0.1, 1.1, (double)NAN, (double)INFINITY})
        check_spoiled(HEEDFUL_BAD_DROPOUT, "a dropout that is no probability is refused",
                      [&](P &p) { p.dropout_p = bad; });
}

static void bad_tensors() {
    using P = heedful_problem;
    using T = heedful_tensor;
    static int32_t numbers[1000];
    for (auto tensor : {&P::query, &P::key, &P::value, &P::output}) {
        check_spoiled(HEEDFUL_MISSING_TENSOR, "a missing tensor is refused", [&](P &p) { (p.*tensor).data = nullptr; });
        for (auto stride : {&T::batch, &T::head, &T::token})
            for (int64_t bad : {int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{1} << 60})
                check_spoiled(HEEDFUL_BAD_STRIDE, "a stride out of range is refused",
                              [&](P &p) { p.*tensor.*stride = bad; });
    }
    for (int64_t overlap : {0, 1, 7})
        check_spoiled(HEEDFUL_BAD_STRIDE, "an output whose rows overlap is refused",
                      [&](P &p) { p.output.token = overlap; });
    for (auto plane : {&P::mask, &P::bias})
        for (auto stride : {&heedful_plane::batch, &heedful_plane::head, &heedful_plane::query, &heedful_plane::key})
            for (int64_t bad : {int64_t{-1}, INT64_MAX, int64_t{1} << 60})
                check_spoiled(HEEDFUL_BAD_STRIDE, "a plane's stride out of range is refused", [&](P &p) {
                    p.*plane = {numbers, 0, 0, 0, 0};
                    p.*plane.*stride = bad;
                });
    for (int64_t bad : {int64_t{-1}, INT64_MAX})
        check_spoiled(HEEDFUL_BAD_STRIDE, "a stride of key ranges out of range is refused", [&](P &p) {
            p.range_start = p.range_stop = numbers;
            p.key_ranges = 1, p.range_batch = bad;
        });
    for (auto pointer : {&P::range_start, &P::range_stop})
        check_spoiled(HEEDFUL_MISSING_TENSOR, "missing key ranges are refused", [&](P &p) {
            p.range_start = p.range_stop = numbers;
            p.key_ranges = 1, p.range_batch = 0, p.*pointer = nullptr;
        });
}

static void bad_gradients() {
    Case c = draw_case(1, 3, 5, 8, 8);
    c.lse = true, c.sinks = false, c.bias_axes = 0;
    Problem problem(c);
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED), grads = problem.tensors(HEEDFUL_F32, PACKED);
    heedful_gradient valid{};
    valid.forward = problem.with(x, HEEDFUL_F32, 0);
    valid.grad_output = grads.output.tensor(), valid.grad_query = grads.query.tensor();
    valid.grad_key = grads.key.tensor(), valid.grad_value = grads.value.tensor();
    const auto refused = [&](int32_t expected, const char *what, auto spoil) {
        heedful_gradient g = valid;
        spoil(g);
        check(heedful_backward(&g) == expected, what, "backward");
        check(heedful_backward_plain(&g) == expected, what, "plain backward");
    };
    using G = heedful_gradient;
    refused(HEEDFUL_OK, "a valid gradient is accepted", [](G &) {});
    refused(HEEDFUL_MISSING_TENSOR, "a missing lse is refused", [](G &g) { g.forward.lse = nullptr; });
    for (auto tensor : {&G::grad_output, &G::grad_query, &G::grad_key, &G::grad_value}) {
        refused(HEEDFUL_MISSING_TENSOR, "a missing tensor is refused", [&](G &g) { (g.*tensor).data = nullptr; });
        refused(HEEDFUL_BAD_STRIDE, "a negative stride is refused", [&](G &g) { (g.*tensor).token = -1; });
    }
    for (auto tensor : {&G::grad_query, &G::grad_key, &G::grad_value})
        refused(HEEDFUL_BAD_STRIDE, "a gradient whose rows overlap is refused", [&](G &g) { (g.*tensor).token = 1; });
    float numbers[1000];
    refused(HEEDFUL_MISSING_TENSOR, "the gradient of no bias is refused", [&](G &g) { g.grad_bias.data = numbers; });
    refused(HEEDFUL_MISSING_TENSOR, "the gradient of no sinks is refused", [&](G &g) { g.grad_sinks = numbers; });
    check(heedful_forward(nullptr) == HEEDFUL_MISSING_TENSOR && heedful_backward(nullptr) == HEEDFUL_MISSING_TENSOR,
          "no problem at all is refused", "");
}

// Key ranges of any numbers are valid: a query sees those keys of them that exist.
static void wild_key_ranges() {
    Problem problem(draw_case(1, 3, 5, 8, 8));
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    const int32_t wild[] = {INT32_MIN, -1, 0, 3, 5, 6, INT32_MAX};
    for (int32_t start : wild)
        for (int32_t stop : wild) {
            const int32_t starts[] = {start, 0, start, stop, 2, 4}, stops[] = {stop, 2, stop, start, 3, stop};
            heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
            p.range_start = starts, p.range_stop = stops, p.key_ranges = 2, p.range_batch = 0;
            check(heedful_forward(&p) == HEEDFUL_OK, "key ranges of any numbers are accepted", "");
        }
    check(x.output.gaps_are_intact(), "key ranges of any numbers write nothing else", "");
}

void test_interface() {
    limits();
    unknown_isa();
    with_each_isa(refusals);
    with_each_isa(wild_key_ranges);
    bad_sizes();
    bad_tensors();
    bad_gradients();
}
