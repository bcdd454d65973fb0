// The keys that the queries of a tile may see.
#pragma once

#include <cassert>
#include <cstdint>

#include "heedful.h"
#include "query_rows.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// The keys [first, last) of a block, counted from its first key; or some lanes.
struct Span {
    int64_t first, last;

    int64_t count() const { return last - first; }
    bool contains(int64_t r) const { return first <= r && r < last; }
};

// The keys [first, first + count), from the first to the last that any lane may see. Each vector of lanes sees nothing
// outside its span, which begins at an even key, because keys may be paired.
template <int LANES>
struct KeyBlock {
    int64_t first, count;
    bool partial;  // whether some lane does not see some key
    bool ragged;   // whether a vector's span is shorter than the block, so that each vector is computed by itself
    Span spans[(LANES + W - 1) / W];

    const Span &span(int lane) const { return spans[lane / W]; }

    // Call work(keys, lanes) for a few keys at a time, and the whole vectors of lanes that may see any of them. A block
    // that is not ragged is one part.
    template <class Work>
    void for_each_part(Work work) const {
        const int64_t step = ragged ? 16 : count;
        for (int64_t r = 0; r < count; r += step) {
            const Span keys{r, r + step < count ? r + step : count};
            const Span seen_by = lanes(keys);
            if (seen_by.count() > 0) work(keys, seen_by);
        }
    }

    // From the first to the last of the lanes whose spans contain any of the keys.
    Span lanes(Span keys) const {
        Span lanes{LANES, 0};
        for (int lane = 0; lane < LANES; lane += W)
            if (span(lane).first < keys.last && keys.first < span(lane).last) {
                if (lane < lanes.first) lanes.first = lane;
                lanes.last = lane + W;
            }
        return lanes;
    }
};

// The key ranges of each lane, and bounds over all lanes, which decide on a block of keys as a whole.
template <int LANES>
struct KeyVisibility {
    const bool masked;  // whether a dense mask may hide keys within the ranges
    int key_ranges;
    // Range r of a lane is the keys [start[r][lane], stop[r][lane]). An idle lane repeats the last query row.
    alignas(64) int32_t start[HEEDFUL_MAX_KEY_RANGES][LANES], stop[HEEDFUL_MAX_KEY_RANGES][LANES];
    // Bounds of range r over the lanes; empty ranges count in highest_start and lowest_stop only.
    int32_t lowest_start[HEEDFUL_MAX_KEY_RANGES], highest_start[HEEDFUL_MAX_KEY_RANGES];
    int32_t lowest_stop[HEEDFUL_MAX_KEY_RANGES], highest_stop[HEEDFUL_MAX_KEY_RANGES];

    KeyVisibility(const heedful_problem &p, const QueryRows<LANES> &rows)
        : masked(p.mask.data), key_ranges(p.key_ranges) {
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

    // Whether every lane sees the keys [first, last).
    bool all_see(int64_t first, int64_t last) const {
        bool seen = false;
        for (int r = 0; r < key_ranges; r++) seen |= highest_start[r] <= first && last <= lowest_stop[r];
        return seen && !masked;
    }

    // The end of the keys [first, last) that any lane may see.
    int64_t end(int64_t first, int64_t last) const {
        int64_t end = first;
        for (int r = 0; r < key_ranges; r++)
            if (lowest_start[r] < last && highest_stop[r] > end) end = highest_stop[r];
        return end < last ? end : last;
    }

    // From the first to the last of the keys [first, last) that W lanes may see; {0, 0} if there are none.
    Span span(int lane, int64_t first, int64_t last) const {
        int64_t from = last, to = first;
        for (int r = 0; r < key_ranges; r++)
            for (int i = lane; i < lane + W; i++) {
                const int64_t begin = start[r][i] > first ? start[r][i] : first;
                const int64_t end = stop[r][i] < last ? stop[r][i] : last;
                if (begin < end) from = begin < from ? begin : from, to = end > to ? end : to;
            }
        return from < to ? Span{(from - first) / 2 * 2, to - first} : Span{0, 0};
    }

    // The block of keys from `first`, which some lane sees, to `last` at most.
    KeyBlock<LANES> block(int64_t first, int64_t last) const {
        const int64_t stop_at = end(first, last);
        KeyBlock<LANES> block{first, stop_at - first, !all_see(first, stop_at), false, {}};
        for (int lane = 0; lane < LANES; lane += W) {
            Span &own = block.spans[lane / W];
            own = block.partial ? span(lane, first, stop_at) : Span{0, block.count};
            block.ragged |= own.count() < block.count;
        }
        return block;
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
