// The last step of the forward pass for one query: its row of the output, and its log-sum-exp.
#pragma once

#include <cmath>
#include <cstdint>

#include "dropout.h"
#include "heedful.h"
#include "number.h"

namespace heedful::HEEDFUL_ISA {

// Write O / l and m + ln l; zeros and −∞ for a query that sees no key. O (Dv,) is unnormalised, m in units of finished
// scores.
template <class N>
static void write_row(const heedful_problem &p, int64_t b, int64_t h, int64_t q, const float *O, float m, float l) {
    const float survivors = survivor_scale(p);
    N *to = (N *)p.output.data + b * p.output.batch + h * p.output.head + q * p.output.token;
    narrow_row(O, p.Dv, l == 0 ? 0.0f : survivors / l, to);
    if (p.lse) p.lse[(b * p.Hq + h) * p.Tq + q] = l == 0 ? -INFINITY : m + logf(l);
}

}  // namespace heedful::HEEDFUL_ISA
