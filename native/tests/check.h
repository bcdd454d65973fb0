// What a test says: passed, or failed with its reason.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

struct Tally {
    int64_t passed = 0, failed = 0;
};
inline Tally tally;

inline void check(bool holds, const char *what, const std::string &where) {
    (holds ? tally.passed : tally.failed)++;
    if (!holds) printf("FAILED  %s\n        %s\n", what, where.c_str());
}

inline void check_below(double limit, double distance, const char *what, const std::string &where) {
    char text[100];
    snprintf(text, sizeof text, "%s: %.2g away, at most %.2g allowed", what, distance, limit);
    check(distance < limit, text, where);
}

// How far a number is from the one expected, in units of 1 + |expected|; a NaN is infinitely far.
inline double distance(double found, double expected) {
    if (found == expected) return 0;  // −∞ too
    const double apart = std::fabs(found - expected) / (1 + std::fabs(expected));
    return apart == apart ? apart : INFINITY;
}
