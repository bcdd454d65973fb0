// Tests of the conversions between float and half: those of the generic instruction set directly, all others through
// attention.

#include "../number.h"

#include <bit>

#include "half.h"
#include "problem.h"
#include "tests.h"

using heedful::generic::Half;
using heedful::generic::narrow;
using heedful::generic::widen;

static uint16_t narrowed(float x) {
    Half half;
    narrow(x, half);
    return half.bits;
}

static void every_half_is_widened() {
    int wrong = 0;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const float actual = widen(Half{(uint16_t)bits}), expected = float_of_half((uint16_t)bits);
        const bool both_nan = actual != actual && expected != expected;
        wrong += !both_nan && std::bit_cast<uint32_t>(actual) != std::bit_cast<uint32_t>(expected);
    }
    check(wrong == 0, "every half is widened exactly", "");
}

static void floats_are_narrowed() {
    int wrong = 0;
    for (uint64_t word = 0; word < uint64_t{1} << 32; word += 4999) {
        const float x = std::bit_cast<float>((uint32_t)word);
        wrong += narrowed(x) != (x == x ? half_of_float(x) : (0x7E00 | (word >> 16 & 0x8000)));
    }
    check(wrong == 0, "floats are rounded to the nearest half", "");
    for (uint32_t bits = 0; bits < 0x7C00; bits++) {
        const float low = float_of_half((uint16_t)bits);
        const float high = bits == 0x7BFF ? 65536.0f : float_of_half((uint16_t)(bits + 1));
        const float middle = (low + high) / 2;
        for (float x : {low, middle, std::nextafterf(middle, 0), std::nextafterf(middle, 1e9f)})
            wrong += narrowed(x) != half_of_float(x) || narrowed(-x) != (0x8000 | half_of_float(x));
    }
    check(wrong == 0, "floats around the middle of two halves are rounded to the even one", "");
}

// A query that sees one key returns its value, whatever half that is.
static void attention_keeps_every_half(int64_t Tq) {
    Case c = draw_case(1, Tq, 1, 8, 1024);
    c.B = 64, c.Hq = c.Hkv = 1, c.dtype = HEEDFUL_F16, c.layout = PACKED;
    c.ranges = NO_RANGES, c.mask_axes = c.bias_axes = 0, c.sinks = false, c.dropout_p = 0, c.softcap = 0;
    Problem problem(c);
    Tensors x = problem.tensors(c.dtype, c.layout);
    x.value.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        x.value.set(b, h, t, i, float_of_half((uint16_t)(b * 1024 + i)));
    });
    const heedful_problem p = problem.with(x, c.dtype, 0);
    check(heedful_forward(&p) == HEEDFUL_OK, "halves: status", c.describe());
    int wrong = 0;
    x.output.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) {
        const float actual = x.output.at(b, h, t, i), expected = x.value.at(b, h, 0, i);
        wrong += actual != expected && !(actual != actual && expected != expected);
    });
    check(wrong == 0, "attention on one key keeps every half", c.describe());
}

void test_number() {
    every_half_is_widened();
    floats_are_narrowed();
    with_each_isa([] {
        attention_keeps_every_half(1);
        attention_keeps_every_half(9);
    });
}
