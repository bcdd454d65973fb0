// Tests of the plain backward pass against differences of the plain forward pass, and of the backward pass against the
// plain one.

#include "problem.h"
#include "tests.h"

// Draw the gradients of the outputs, as packed floats, and allocate those of bias and sinks. Some are left out.
static Tensors draw_gradients(Problem &problem) {
    const Case &c = problem.c;
    Tensors inputs = problem.tensors(HEEDFUL_F32, PACKED), grads;
    grads.output = problem.numbers({c.B, c.Hq, c.Tq, c.Dv});
    if (problem.draw.chance(0.5)) grads.lse = problem.numbers({1, c.B, c.Hq, c.Tq});
    if (c.bias_axes && problem.draw.chance(0.8)) grads.bias = std::move(inputs.bias), grads.bias.fill(0);
    if (c.sinks && problem.draw.chance(0.8)) grads.sinks = Array(HEEDFUL_F32, {1, 1, 1, c.Hq}, PACKED);
    return grads;
}

// Copy the drawn gradients in a type and layout, and allocate all others.
static Tensors allocate_gradients(const Tensors &drawn, const Case &c, int dtype, Layout layout) {
    Tensors grads = drawn;
    grads.output = drawn.output.copy(dtype, layout);
    grads.query = Array(dtype, {c.B, c.Hq, c.Tq, c.D}, layout);
    grads.key = Array(dtype, {c.B, c.Hkv, c.Tk, c.D}, layout);
    grads.value = Array(dtype, {c.B, c.Hkv, c.Tk, c.Dv}, layout);
    return grads;
}

static heedful_gradient with(Tensors &grads, const heedful_problem &forward) {
    heedful_gradient g{};
    g.forward = forward;
    g.grad_output = grads.output.tensor(), g.grad_query = grads.query.tensor();
    g.grad_key = grads.key.tensor(), g.grad_value = grads.value.tensor();
    g.grad_bias = grads.bias.plane(), g.grad_sinks = (float *)grads.sinks.data();
    g.grad_lse = (const float *)grads.lse.data();
    return g;
}

static Tensors plain(Problem &problem, const Tensors &drawn) {
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED), grads = allocate_gradients(drawn, problem.c, HEEDFUL_F32, PACKED);
    const heedful_gradient g = with(grads, problem.with(x, HEEDFUL_F32, 0));
    check(heedful_backward_plain(&g) == HEEDFUL_OK, "plain backward: status", problem.c.describe());
    return grads;
}

// The inner product of a result and its gradient, without log-sum-exps of −∞, which depend on no input.
static double inner(const Array &x, const Array &grad) {
    double sum = 0;
    grad.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        if (x.at(b, h, t, i) != -INFINITY) sum += (double)x.at(b, h, t, i) * grad.at(b, h, t, i);
    });
    return sum;
}

static void step(Array &x, float length, const Array &direction) {
    x.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        x.set(b, h, t, i, x.at(b, h, t, i) + length * direction.at(b, h, t, i));
    });
}

// The directional derivative of the inner product of results and gradients with respect to one input, by central
// differences.
static double numerical_derivative(Problem &problem, const Tensors &drawn, Array Tensors::*input,
                                   const Array &direction) {
    constexpr float LENGTH = 1e-3f;
    double ends[2];
    for (int end : {0, 1}) {
        Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
        step(x.*input, end ? LENGTH : -LENGTH, direction);
        const heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
        heedful_forward_plain(&p);
        ends[end] = inner(x.output, drawn.output) + inner(x.lse, drawn.lse);
    }
    return (ends[1] - ends[0]) / (2 * LENGTH);
}

static void check_plain_gradient(const Case &c) {
    Problem problem(c);
    const Tensors drawn = draw_gradients(problem);
    Tensors grads = plain(problem, drawn);
    for (auto input : {&Tensors::query, &Tensors::key, &Tensors::value, &Tensors::bias, &Tensors::sinks}) {
        Array direction = grads.*input;
        direction.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
            direction.set(b, h, t, i, problem.draw.number());
        });
        if (direction.empty()) continue;
        const double expected = numerical_derivative(problem, drawn, input, direction);
        check_below(1e-2, distance(inner(grads.*input, direction), expected), "the plain gradient", c.describe());
    }
}

// The weights before dropout: the output of attention if the values are the rows of an identity matrix.
static Array weights(Problem &problem) {
    const Case &c = problem.c;
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
    x.value = Array(HEEDFUL_F32, {c.B, c.Hkv, c.Tk, c.Tk}, PACKED);
    x.output = Array(HEEDFUL_F32, {c.B, c.Hq, c.Tq, c.Tk}, PACKED);
    x.value.fill(0);
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t h = 0; h < c.Hkv; h++)
            for (int64_t k = 0; k < c.Tk; k++) x.value.set(b, h, k, k, 1);
    heedful_problem p = problem.with(x, HEEDFUL_F32, 0);
    p.Dv = c.Tk, p.dropout_p = 0;
    heedful_forward_plain(&p);
    return x.output;
}

static void add_square(Array &sums, int64_t b, int64_t h, int64_t t, int64_t i, double term) {
    sums.set(b, h, t, i, sums.at(b, h, t, i) + (float)(term * term));
}

// The size of the terms of each gradient, as sums of their squares. Rounding errors have that size even if the terms
// cancel, as for a single key or a bias that all keys share. Each row of queries, keys and values has one sum.
static Tensors squares_of_terms(Problem &problem, const Tensors &drawn) {
    const Case &c = problem.c;
    const auto zeros = [](Sizes sizes) {
        Array x = Array(HEEDFUL_F32, sizes, PACKED).broadcast();
        x.fill(0);
        return x;
    };
    Tensors squares;
    squares.query = zeros({c.B, c.Hq, c.Tq, 1});
    squares.key = squares.value = zeros({c.B, c.Hkv, c.Tk, 1});
    squares.bias = drawn.bias, squares.sinks = zeros({1, 1, 1, c.Hq});
    const Array weight = weights(problem);
    const double survivors = c.dropout_p < 1 ? 1 / (1 - c.dropout_p) : 0;
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t h = 0; h < c.Hq; h++)
            for (int64_t q = 0; q < c.Tq; q++) {
                double square = 0, sink_weight = 1;
                for (int64_t d = 0; d < c.Dv; d++) square += std::pow(drawn.output.at(b, h, q, d), 2);
                const double lse_grad = drawn.lse.empty() ? 0 : std::fabs(drawn.lse.at(0, b, h, q));
                const double grad = survivors * std::sqrt(square) + lse_grad;
                const int64_t kv_head = h / (c.Hq / c.Hkv);
                for (int64_t k = 0; k < c.Tk; k++) {
                    const double w = weight.at(b, h, q, k);
                    if (w == 0) continue;
                    sink_weight -= w;
                    add_square(squares.query, b, h, q, 0, w * grad * c.scale);
                    add_square(squares.key, b, kv_head, k, 0, w * grad * c.scale);
                    add_square(squares.value, b, kv_head, k, 0, w * survivors);
                    if (!squares.bias.empty()) add_square(squares.bias, b, h, q, k, w * grad);
                }
                add_square(squares.sinks, 0, 0, 0, h, sink_weight * grad);
            }
    return squares;
}

// The largest distance of any number from the expected one, in units of the size of its terms.
static double distance_in_terms(const Array &actual, const Array &expected, const Array &squares) {
    constexpr double MIN_UNIT = 1e-3;
    double worst = 0;
    actual.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        const double unit = MIN_UNIT + std::sqrt(squares.at(b, h, t, i)) + std::fabs(expected.at(b, h, t, i));
        const double difference = std::fabs(actual.at(b, h, t, i) - expected.at(b, h, t, i)) / unit;
        worst = std::fmax(worst, difference == difference ? difference : INFINITY);
    });
    return worst;
}

// Run the kernels of the instruction set in use, forward and backward.
static Tensors tiled(Problem &problem, const Tensors &drawn, int worker_count) {
    const Case &c = problem.c;
    Tensors x = problem.tensors(c.dtype, c.layout), grads = allocate_gradients(drawn, c, c.dtype, c.layout);
    const heedful_problem p = problem.with(x, c.dtype, worker_count);
    check(heedful_forward(&p) == HEEDFUL_OK, "forward: status", c.describe());
    const Tensors before = x;
    const Array grad_output = grads.output;
    const heedful_gradient g = with(grads, p);
    check(heedful_backward(&g) == HEEDFUL_OK, "backward: status", c.describe());
    for (auto input : {&Tensors::query, &Tensors::key, &Tensors::value, &Tensors::bias, &Tensors::sinks,
                       &Tensors::output, &Tensors::lse})
        check((x.*input).same_bytes(before.*input), "backward: inputs changed", c.describe());
    check(grads.output.same_bytes(grad_output) && grads.lse.same_bytes(drawn.lse),
          "backward: gradients of the outputs changed", c.describe());
    return grads;
}

constexpr struct {
    const char *name;
    Array Tensors::*array;
} RESULTS[] = {{"grad_query", &Tensors::query}, {"grad_key", &Tensors::key}, {"grad_value", &Tensors::value},
               {"grad_bias", &Tensors::bias}, {"grad_sinks", &Tensors::sinks}};

static Case backward_case(uint64_t seed, int64_t Tq, int64_t Tk, int64_t D, int64_t Dv) {
    Case c = draw_case(seed, Tq, Tk, D, Dv);
    c.lse = true;
    return c;
}

static void check_agreement(const Case &c) {
    if (!is_tried()) return;
    Problem problem(c);
    const Tensors drawn = draw_gradients(problem), expected = plain(problem, drawn);
    const Tensors squares = squares_of_terms(problem, drawn);
    with_each_isa([&] {
        const Tensors actual = tiled(problem, drawn, c.workers);
        for (const auto &result : RESULTS) {
            const Array &array = actual.*result.array;
            check_below(tolerance(c.dtype), distance_in_terms(array, expected.*result.array, squares.*result.array),
                        result.name, c.describe());
            check(array.gaps_are_intact(), "written outside a gradient", c.describe());
        }
    });
}

static void lengths() {
    uint64_t seed = 8000;
    for (int64_t Tq : EDGES)
        for (int64_t Tk : EDGES) {
            seed++;
            check_agreement(backward_case(seed, Tq, Tk, HEAD_SIZES[seed % 14], HEAD_SIZES[seed * 5 % 14]));
        }
    check_agreement(backward_case(++seed, 5, 2049, 16, 9));
    check_agreement(backward_case(++seed, 2049, 5, 9, 16));
}

static void head_sizes() {
    uint64_t seed = 9000;
    for (size_t i = 0; i < HEAD_SIZES.size(); i++)
        for (size_t j : {i, i * 7 + 3, i * 11 + 5}) {
            seed++;
            const int64_t D = HEAD_SIZES[i], Dv = HEAD_SIZES[j % HEAD_SIZES.size()];
            check_agreement(backward_case(seed, 1 + seed % 20, 1 + seed % 70, D, Dv));
        }
}

static void rows_without_keys() {
    uint64_t seed = 10000;
    for (int dtype : {HEEDFUL_F32, HEEDFUL_BF16, HEEDFUL_F16})
        for (int64_t Tk : {0, 1, 65})
            for (bool sinks : {false, true}) {
                Case c = backward_case(++seed, 70, Tk, 8, 8);
                c.dtype = dtype, c.ranges = NO_KEYS, c.sinks = sinks;
                check_agreement(c);
            }
}

static void scale_of_zero() {
    for (uint64_t seed = 11000; seed < 11012; seed++) {
        Case c = backward_case(seed, 20, 70, 8, 8);
        c.scale = 0;
        check_agreement(c);
    }
}

// Gradients are the same bits on every number of threads, with few heads, whose queries are split, and with many.
static void threads() {
    for (uint64_t seed = 12000; seed < 12012; seed++) {
        if (!is_tried()) continue;
        Case c = backward_case(seed, seed % 2 ? 130 : 300, 70, 24, 17);
        c.dtype = (int)(seed % 3);
        if (seed % 4 > 1) c.B = 2, c.Hkv = 4, c.Hq = 8, c.Tq = 70;
        Problem problem(c);
        const Tensors drawn = draw_gradients(problem);
        with_each_isa([&] {
            const Tensors serial = tiled(problem, drawn, 0);
            for (int count : {1, 2, 3, 4}) {
                const Tensors parallel = tiled(problem, drawn, count);
                for (const auto &result : RESULTS)
                    check((parallel.*result.array).same_bytes(serial.*result.array), "same bits", c.describe());
            }
        });
        check_agreement(c);
    }
}

void test_backward() {
    for (uint64_t seed = 7000; seed < 7100; seed++)
        check_plain_gradient(backward_case(seed, 1 + seed % 7, 1 + seed % 9, 4, 3));
    lengths();
    head_sizes();
    rows_without_keys();
    scale_of_zero();
    threads();
}
