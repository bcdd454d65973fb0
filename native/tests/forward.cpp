// The tiled forward pass against the plain one.

#include "problem.h"
#include "tests.h"

static Tensors plain(Problem &problem) {
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    const heedful_problem p = problem.on(x, HEEDFUL_F32, 0);
    check(heedful_forward_plain(&p) == 0, "plain: memory", problem.c.describe());
    return x;
}

static Tensors tiled(Problem &problem, int worker_count) {
    Tensors x = problem.tensors(problem.c.dtype, problem.c.layout);
    const heedful_problem p = problem.on(x, problem.c.dtype, worker_count);
    check(heedful_forward(&p) == 0, "memory", problem.c.describe());
    return x;
}

static void agrees(const Case &c) {
    Problem problem(c);
    const Tensors before = problem.tensors(c.dtype, c.layout), expected = plain(problem);
    with_each_isa([&] {
        const Tensors found = tiled(problem, c.workers);
        check_below(tolerance(c.dtype), found.output.distance_from(expected.output), "output", c.describe());
        check_below(lse_tolerance(c.dtype), found.lse.distance_from(expected.lse), "lse", c.describe());
        check(found.output.gaps_hold(), "written outside the output", c.describe());
        check(found.query.same_bytes(before.query) && found.key.same_bytes(before.key) &&
                  found.value.same_bytes(before.value),
              "inputs changed", c.describe());
    });
}

static void lengths() {
    uint64_t seed = 1000;
    for (int64_t Tq : EDGES)
        for (int64_t Tk : EDGES) {
            seed++;
            agrees(draw_case(seed, Tq, Tk, HEAD_SIZES[seed % HEAD_SIZES.size()], HEAD_SIZES[seed * 7 % HEAD_SIZES.size()]));
        }
}

static void head_sizes() {
    uint64_t seed = 2000;
    for (int64_t D : HEAD_SIZES)
        for (int64_t Dv : HEAD_SIZES) {
            seed++;
            agrees(draw_case(seed, 1 + seed % 5, 1 + seed % 70, D, Dv));
        }
}

static void split_keys() {
    uint64_t seed = 3000;
    for (int64_t T : LONG) {
        for (int64_t Tq : {1, 2, 5, 16, 17, 33}) agrees(draw_case(++seed, Tq, T, 16, 9));
        agrees(draw_case(++seed, T, 7, 5, 16));
    }
}

static void nothing_to_see() {
    uint64_t seed = 4000;
    for (int dtype : {HEEDFUL_F32, HEEDFUL_BF16, HEEDFUL_F16})
        for (int64_t Tk : {0, 1, 65, 2049})
            for (bool sinks : {false, true}) {
                Case c = draw_case(++seed, 5, Tk, 8, 8);
                c.dtype = dtype, c.runs = NOTHING_SEEN, c.sinks = sinks;
                agrees(c);
            }
}

static void scale_of_zero() {
    for (uint64_t seed = 5000; seed < 5020; seed++) {
        Case c = draw_case(seed, 20, 70, 8, 8);
        c.scale = 0;
        agrees(c);
    }
}

// Results are the same bits for every number of threads.
static void threads() {
    for (uint64_t seed = 6000; seed < 6012; seed++) {
        Case c = draw_case(seed, 1 + seed % 3 * 70, seed % 2 ? 300 : 2100, 24, 17);
        c.dtype = (int)(seed % 3);
        Problem problem(c);
        with_each_isa([&] {
            const Tensors alone = tiled(problem, 0);
            for (int count : {1, 2, 3, 4}) {
                const Tensors together = tiled(problem, count);
                check(together.output.same_bytes(alone.output) && together.lse.same_bytes(alone.lse),
                      "same bits", c.describe());
            }
        });
    }
}

void test_forward() {
    lengths();
    head_sizes();
    split_keys();
    nothing_to_see();
    scale_of_zero();
    threads();
}
