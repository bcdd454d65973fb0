// The keys that the queries of a tile may see.
#pragma once

#include <cassert>
#include <cstdint>

#include "heedful.h"
#include "query_rows.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// The key ranges of each lane, and bounds over all lanes, which decide on a block of keys as a whole.
template <int LANES>
struct KeyVisibility {
    enum Extent { NONE, PARTIAL, FULL };  // how much of a block the lanes see

    int key_ranges;
    // Range r of a lane is the keys [start[r][lane], stop[r][lane]). An idle lane repeats the last query row.
    alignas(64) int32_t start[HEEDFUL_MAX_KEY_RANGES][LANES], stop[HEEDFUL_MAX_KEY_RANGES][LANES];
    // Bounds of range r over the lanes; empty ranges count in highest_start and lowest_stop only.
    int32_t lowest_start[HEEDFUL_MAX_KEY_RANGES], highest_start[HEEDFUL_MAX_KEY_RANGES];
    int32_t lowest_stop[HEEDFUL_MAX_KEY_RANGES], highest_stop[HEEDFUL_MAX_KEY_RANGES];

    KeyVisibility(const heedful_problem &p, const QueryRows<LANES> &rows) : key_ranges(p.key_ranges) {
        assert(key_ranges <= HEEDFUL_MAX_KEY_RANGES);
        load_ranges(p, rows);
        find_bounds();
    }

    __attribute__((always_inline)) void load_ranges(const heedful_problem &p, const QueryRows<LANES> &rows) {
        if (!key_ranges) {  // no ranges: one range of all keys
            key_ranges = 1;
            for (int lane = 0; lane < LANES; lane++) start[0][lane] = 0, stop[0][lane] = (int32_t)p.Tk;
        } else {
            const int64_t base = rows.b * p.range_batch;
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t at = base + rows.query(lane < rows.count ? lane : rows.count - 1) * p.key_ranges;
                for (int r = 0; r < key_ranges; r++)
                    start[r][lane] = p.range_start[at + r], stop[r][lane] = p.range_stop[at + r];
            }
        }
    }

    __attribute__((always_inline)) void find_bounds() {
        for (int r = 0; r < key_ranges; r++) {
            lowest_start[r] = lowest_stop[r] = INT32_MAX, highest_start[r] = highest_stop[r] = 0;
            for (int lane = 0; lane < LANES; lane++) {
                if (start[r][lane] < stop[r][lane] && start[r][lane] < lowest_start[r])
                    lowest_start[r] = start[r][lane];
                if (start[r][lane] > highest_start[r]) highest_start[r] = start[r][lane];
                if (stop[r][lane] < lowest_stop[r]) lowest_stop[r] = stop[r][lane];
                if (start[r][lane] < stop[r][lane] && stop[r][lane] > highest_stop[r])
                    highest_stop[r] = stop[r][lane];
            }
        }
    }

    // How much of the keys [first, last) the lanes see. PARTIAL may also be returned for a block that no lane sees.
    Extent extent(int64_t first, int64_t last) const {
        Extent extent = NONE;
        for (int r = 0; r < key_ranges; r++) {
            if (highest_start[r] <= first && last <= lowest_stop[r]) return FULL;
            if (lowest_start[r] < last && first < highest_stop[r]) extent = PARTIAL;
        }
        return extent;
    }

    // The first key at or after `first` that any lane may see, INT64_MAX if there is none: it skips invisible
    // stretches.
    int64_t next(int64_t first) const {
        int64_t nearest = INT64_MAX;
        for (int r = 0; r < key_ranges; r++)
            if (first < highest_stop[r]) {
                const int64_t from = lowest_start[r] > first ? lowest_start[r] : first;
                if (from < nearest) nearest = from;
            }
        return nearest;
    }

    // For W lanes: all bits set where the lane sees the key, else 0.
    I sees(int64_t key, int lane) const {
        const I k = splat((int32_t)key);
        I seen = (load(&start[0][lane]) <= k) & (k < load(&stop[0][lane]));
        for (int r = 1; r < key_ranges; r++) seen |= (load(&start[r][lane]) <= k) & (k < load(&stop[r][lane]));
        return seen;
    }
    bool lane_sees(int64_t key, int lane) const {
        bool seen = false;
        for (int r = 0; r < key_ranges; r++) seen |= start[r][lane] <= key && key < stop[r][lane];
        return seen;
    }
};

}  // namespace heedful::HEEDFUL_ISA
