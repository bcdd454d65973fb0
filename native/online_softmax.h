// The constants and the initial state of the online softmax (Milakov and Gimelshein, arXiv 1805.02867): a running
// maximum m and normalizer l, with which each block of keys is added to the sums of the blocks before it.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "number.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

constexpr int64_t BLOCK = 64;             // keys of one block
constexpr float NO_MAXIMUM = -FLT_MAX;    // m before any score: finite, so that −∞ − m is never NaN
constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;
// m may lag behind the largest score by a factor of 2^8 before the sums are rescaled. The sums keep float32's relative
// precision, and rescaling becomes rare.
constexpr float LAG = 8.0f;

// The degree of the polynomial that computes the weights of numbers of type N. Sums are rescaled with degree 5.
template <class N>
constexpr int DEGREE = std::is_same_v<N, float> ? 5 : std::is_same_v<N, Half> ? 4 : 3;

// Set m and l of a query before its first key: an empty sum, or the weight that its sink logit takes.
INLINE void begin_softmax(float sink, float &m, float &l) {
    const bool has_sink = sink != -INFINITY;
    m = has_sink ? sink : NO_MAXIMUM;
    l = has_sink ? 1.0f : 0.0f;
}

}  // namespace heedful::HEEDFUL_ISA
