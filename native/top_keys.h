// The keys with the largest values of each lane, in descending order. Of equal values, the earlier key comes first.
#pragma once

#include <cmath>
#include <cstdint>

#include "vector.h"

namespace heedful::HEEDFUL_ISA {

template <int LANES>
struct TopKeys {
    const int64_t size;  // keys of each lane
    float *values;       // [size][LANES], −∞ where there are fewer keys
    int32_t *keys;       // [size][LANES], −1 likewise

    template <class Source>
    TopKeys(int64_t top_k, Source &source) : size(top_k) {
        values = source.take(size * LANES);
        keys = (int32_t *)source.take(size * LANES);
    }

    void begin() {
        for (int64_t i = 0; i < size * LANES; i++) values[i] = -INFINITY, keys[i] = -1;
    }

    // Offer `count` keys from `first` to W lanes, with the values of key i at from[i * LANES]. Nearly all are too small.
    void offer(int lane, int64_t first, int64_t count, const float *from) {
        const float *last = values + (size - 1) * LANES + lane;
        F threshold = load(last);
        for (int64_t i = 0; i < count; i++) {
            const F x = load(from + i * LANES);
            const I larger = x > threshold;
            if (!any(larger)) continue;
            for (int j = 0; j < W; j++)
                if (larger[j]) insert(lane + j, x[j], (int32_t)(first + i));
            threshold = load(last);
        }
    }

    void insert(int lane, float value, int32_t key) {
        int64_t at = size - 1;
        for (; at > 0 && values[(at - 1) * LANES + lane] < value; at--) {
            values[at * LANES + lane] = values[(at - 1) * LANES + lane];
            keys[at * LANES + lane] = keys[(at - 1) * LANES + lane];
        }
        values[at * LANES + lane] = value, keys[at * LANES + lane] = key;
    }

    float value(int64_t i, int lane) const { return values[i * LANES + lane]; }
    int64_t key(int64_t i, int lane) const { return keys[i * LANES + lane]; }
};

}  // namespace heedful::HEEDFUL_ISA
