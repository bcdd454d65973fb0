// The plain backward pass against the slope of the plain forward pass.

#include "problem.h"
#include "tests.h"

static heedful_gradient on(Tensors &grads, const heedful_problem &forward) {
    heedful_gradient g{};
    g.forward = forward;
    g.grad_output = grads.output.tensor(), g.grad_query = grads.query.tensor();
    g.grad_key = grads.key.tensor(), g.grad_value = grads.value.tensor();
    g.grad_bias = grads.bias.plane(), g.grad_sinks = (float *)grads.sinks.data();
    return g;
}

static double inner(const Array &x, const Array &y) {
    double sum = 0;
    x.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { sum += (double)x.at(b, h, t, i) * y.at(b, h, t, i); });
    return sum;
}

static void step(Array &x, float length, const Array &direction) {
    x.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        x.set(b, h, t, i, x.at(b, h, t, i) + length * direction.at(b, h, t, i));
    });
}

// How fast the output's inner product with `grad_output` grows as one of the inputs moves in a direction.
static double slope(Problem &problem, const Array &grad_output, Array Tensors::*input, const Array &direction) {
    constexpr float LENGTH = 1e-3f;
    double ends[2];
    for (int end : {0, 1}) {
        Tensors x = problem.tensors(HEEDFUL_F32, PACKED);
        step(x.*input, end ? LENGTH : -LENGTH, direction);
        const heedful_problem p = problem.on(x, HEEDFUL_F32, 0);
        heedful_forward_plain(&p);
        ends[end] = inner(x.output, grad_output);
    }
    return (ends[1] - ends[0]) / (2 * LENGTH);
}

static void plain_is_the_slope(const Case &c) {
    Problem problem(c);
    Tensors x = problem.tensors(HEEDFUL_F32, PACKED), grads = x;
    grads.output = problem.numbers({c.B, c.Hq, c.Tq, c.Dv});
    grads.bias.fill(0);
    const heedful_gradient g = on(grads, problem.on(x, HEEDFUL_F32, 0));
    heedful_backward_plain(&g);
    for (auto input : {&Tensors::query, &Tensors::key, &Tensors::value, &Tensors::bias, &Tensors::sinks}) {
        Array direction = x.*input;
        direction.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
            direction.set(b, h, t, i, problem.draw.number());
        });
        check_below(1e-2, distance(inner(grads.*input, direction), slope(problem, grads.output, input, direction)),
                    "the plain gradient", c.describe());
    }
}

void test_backward() {
    for (uint64_t seed = 7000; seed < 7100; seed++) plain_is_the_slope(draw_case(seed, 1 + seed % 7, 1 + seed % 9, 4, 3));
}
