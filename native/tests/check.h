// The tests' checks: they count what passed, and print what failed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

struct Tally {
    int64_t passed = 0, failed = 0;
};
inline Tally tally;

// `where` describes the case.
inline void check(bool holds, const char *what, const std::string &where) {
    (holds ? tally.passed : tally.failed)++;
    if (!holds) printf("FAILED  %s\n        %s\n", what, where.c_str());
}

inline void check_below(double limit, double distance, const char *what, const std::string &where) {
    char text[100];
    snprintf(text, sizeof text, "%s: %.2g away, at most %.2g allowed", what, distance, limit);
    check(distance < limit, text, where);
}

// The distance of a number from the expected one, in units of 1 + |expected|. It is infinite for NaN.
inline double distance(double actual, double expected) {
    if (actual == expected) return 0;  // also for −∞
    const double difference = std::fabs(actual - expected) / (1 + std::fabs(expected));
    return difference == difference ? difference : INFINITY;
}
