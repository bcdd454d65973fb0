// The conversions of half precision, from the definition of the format. The library's conversions are tested with them.
#pragma once

#include <cmath>
#include <cstdint>

inline float float_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : (float)(sign * INFINITY);
    return (float)(sign * std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25));
}

// The nearest half, and of two the even one.
inline uint16_t half_of_float(float x) {
    if (std::isnan(x)) return 0x7E00;
    const double size = std::fmin(std::fabs((double)x), 0x1p20);
    int exponent;
    std::frexp(size, &exponent);                // the size is in [2^(exponent - 1), 2^exponent)
    if (exponent < -13 || size == 0) exponent = -13;  // subnormal
    const int units = (int)std::nearbyint(std::ldexp(size, 11 - exponent));
    const int bits = ((exponent + 13) << 10) + units;
    return (uint16_t)((std::signbit(x) ? 0x8000 : 0) | (bits < 0x7C00 ? bits : 0x7C00));
}
