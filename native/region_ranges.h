// The sums of weights in regions: ranges of keys, each with a start and a stop of its own for each lane.
#pragma once

#include <algorithm>
#include <cstdint>

#include "heedful.h"
#include "key_visibility.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

template <int LANES>
struct RegionRanges {
    const int64_t regions;
    int32_t *start, *stop;  // [regions][LANES]
    float *sums;            // [regions][LANES]
    int32_t *bounds;        // [regions][4]: the lowest and highest start, and the lowest and highest stop

    template <class Source>
    RegionRanges(const heedful_summary &s, Source &source) : regions(s.regions) {
        start = (int32_t *)source.take(regions * LANES), stop = (int32_t *)source.take(regions * LANES);
        sums = source.take(regions * LANES);
        bounds = (int32_t *)source.take(regions * 4);
    }

    // Load the ranges of `count` queries from `first`. Idle lanes repeat the last one.
    void load(const heedful_summary &s, int64_t b, int64_t first, int count) {
        for (int64_t region = 0; region < regions; region++) {
            int32_t *starts = start + region * LANES, *stops = stop + region * LANES;
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t query = first + (lane < count ? lane : count - 1);
                const int64_t at = b * s.region_batch + query * regions + region;
                starts[lane] = s.region_start[at], stops[lane] = s.region_stop[at];
                sums[region * LANES + lane] = 0;
            }
            bounds[region * 4] = *std::min_element(starts, starts + LANES);
            bounds[region * 4 + 1] = *std::max_element(starts, starts + LANES);
            bounds[region * 4 + 2] = *std::min_element(stops, stops + LANES);
            bounds[region * 4 + 3] = *std::max_element(stops, stops + LANES);
        }
    }

    // Add the weights of a block of keys, [count][LANES].
    void add(const KeyBlock<LANES> &block, const float *weights) {
        for (int64_t region = 0; region < regions; region++) {
            const int32_t *bound = bounds + region * 4;
            const int64_t end = block.first + block.count;
            if (end <= bound[0] || bound[3] <= block.first) continue;
            const bool whole = bound[1] <= block.first && end <= bound[2];
            for (int lane = 0; lane < LANES; lane += W)
                if (whole)
                    add_lanes<true>(region, lane, block, weights + lane);
                else
                    add_lanes<false>(region, lane, block, weights + lane);
        }
    }

    template <bool WHOLE>
    void add_lanes(int64_t region, int lane, const KeyBlock<LANES> &block, const float *weights) {
        const int64_t at = region * LANES + lane;
        const I from = HEEDFUL_ISA::load(start + at), to = HEEDFUL_ISA::load(stop + at);
        F sum{};
        for (int64_t r = 0; r < block.count; r++) {
            const F weight = HEEDFUL_ISA::load(weights + r * LANES);
            const I key = splat((int32_t)(block.first + r));
            sum += WHOLE ? weight : (F)((I)weight & (from <= key) & (key < to));
        }
        store(sums + at, HEEDFUL_ISA::load(sums + at) + sum);
    }

    float mass(int64_t region, int lane) const { return sums[region * LANES + lane]; }
};

}  // namespace heedful::HEEDFUL_ISA
