// Tests of the forward pass against the plain one.

#include "problem.h"
#include "tests.h"

static Tensors plain(Problem &problem) {
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    const heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
    check(heedful_forward_plain(&p) == HEEDFUL_OK, "plain forward: status", problem.c.describe());
    return x;
}

static Tensors tiled(Problem &problem, int worker_count) {
    Tensors x = problem.tensors(problem.c.dtype, problem.c.layout);
    const heedful_problem p = problem.with(x, problem.c.dtype, worker_count);
    check(heedful_forward(&p) == HEEDFUL_OK, "forward: status", problem.c.describe());
    return x;
}

static void check_agreement(const Case &c) {
    if (!is_tried()) return;
    Problem problem(c);
    const Tensors before = problem.tensors(c.dtype, c.layout), expected = plain(problem);
    with_each_isa([&] {
        const Tensors actual = tiled(problem, c.workers);
        check_below(tolerance(c.dtype), actual.output.distance_from(expected.output), "output", c.describe());
        check_below(lse_tolerance(c.dtype), actual.lse.distance_from(expected.lse), "lse", c.describe());
        check(actual.output.gaps_are_intact(), "written outside the output", c.describe());
        check(actual.query.same_bytes(before.query) && actual.key.same_bytes(before.key) &&
                  actual.value.same_bytes(before.value),
              "inputs changed", c.describe());
    });
}

static void lengths() {
    uint64_t seed = 1000;
    for (int64_t Tq : EDGES)
        for (int64_t Tk : EDGES) {
            seed++;
            const size_t sizes = HEAD_SIZES.size();
            check_agreement(draw_case(seed, Tq, Tk, HEAD_SIZES[seed % sizes], HEAD_SIZES[seed * 7 % sizes]));
        }
}

static void head_sizes() {
    uint64_t seed = 2000;
    for (int64_t D : HEAD_SIZES)
        for (int64_t Dv : HEAD_SIZES) {
            seed++;
            check_agreement(draw_case(seed, 1 + seed % 5, 1 + seed % 70, D, Dv));
        }
}

static void split_keys() {
    uint64_t seed = 3000;
    for (int64_t T : LONG) {
        for (int64_t Tq : {1, 2, 5, 16, 17, 33}) check_agreement(draw_case(++seed, Tq, T, 16, 9));
        check_agreement(draw_case(++seed, T, 7, 5, 16));
    }
}

// So many tiles that several go through the keys together where there are tile registers. Other processors have none.
static void many_tiles() {
#if defined(__x86_64__)
    uint64_t seed = 3500;
    for (KeyRanges ranges : {NO_RANGES, CAUSAL, WINDOW_AND_SINKS, HOLES}) {
        Case c = draw_case(++seed, 350, 600, 24, 17);
        c.dtype = HEEDFUL_BF16, c.B = 1, c.Hkv = 8, c.Hq = 24, c.ranges = ranges;
        if (ranges == CAUSAL) c.mask_axes = 0;
        check_agreement(c);
    }
#endif
}

static void rows_without_keys() {
    uint64_t seed = 4000;
    for (int dtype : {HEEDFUL_F32, HEEDFUL_BF16, HEEDFUL_F16})
        for (int64_t Tk : {0, 1, 65, 2049})
            for (bool sinks : {false, true}) {
                Case c = draw_case(++seed, 5, Tk, 8, 8);
                c.dtype = dtype, c.ranges = NO_KEYS, c.sinks = sinks;
                check_agreement(c);
            }
}

static void scale_of_zero() {
    for (uint64_t seed = 5000; seed < 5020; seed++) {
        Case c = draw_case(seed, 20, 70, 8, 8);
        c.scale = 0;
        check_agreement(c);
    }
}

// Results are the same bits on every number of threads.
static void threads() {
    for (uint64_t seed = 6000; seed < 6012; seed++) {
        if (!is_tried()) continue;
        Case c = draw_case(seed, 1 + seed % 3 * 70, seed % 2 ? 300 : 2100, 24, 17);
        c.dtype = (int)(seed % 3);
        Problem problem(c);
        with_each_isa([&] {
            const Tensors serial = tiled(problem, 0);
            for (int count : {1, 2, 3, 4}) {
                const Tensors parallel = tiled(problem, count);
                check(parallel.output.same_bytes(serial.output) && parallel.lse.same_bytes(serial.lse),
                      "same bits", c.describe());
            }
        });
    }
}

void test_forward() {
    lengths();
    head_sizes();
    split_keys();
    many_tiles();
    rows_without_keys();
    scale_of_zero();
    threads();
}
