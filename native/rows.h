// A tile of query rows in the lanes: which rows they are, and which keys they may see.

// The rows of one (batch entry, key/value head): every query of every query head in its group, query by query, so that
// neighbours in the lanes see nearly the same keys.
template <int LANES>
struct Rows {
    int64_t b, kv_head, first;  // of Tq · group rows
    int count;                  // of LANES; the rest are idle
    int64_t group;

    Rows(const heedful_problem &p, int64_t b, int64_t kv_head, int64_t first)
        : b(b), kv_head(kv_head), first(first), group(p.Hq / p.Hkv) {
        int64_t left = p.Tq * group - first;
        count = left < LANES ? (int)left : LANES;
    }
    int64_t query(int lane) const { return (first + lane) / group; }
    int64_t head(int lane) const { return kv_head * group + (first + lane) % group; }
};

// The runs of keys of each lane, and what they say of a block of keys as a whole.
template <int LANES>
struct Sight {
    enum Extent { NONE, PART, ALL };

    static constexpr int MOST_RUNS = 2;
    int runs;
    alignas(64) int32_t start[MOST_RUNS][LANES], stop[MOST_RUNS][LANES];
    int32_t lowest_start[MOST_RUNS], highest_start[MOST_RUNS], lowest_stop[MOST_RUNS], highest_stop[MOST_RUNS];

    Sight(const heedful_problem &p, const Rows<LANES> &rows) : runs(p.runs) {
        if (!runs) {  // no intervals: every lane sees every key
            runs = 1;
            for (int lane = 0; lane < LANES; lane++) start[0][lane] = 0, stop[0][lane] = (int32_t)p.Tk;
        } else {
            const int64_t base = rows.b * p.runs_batch;
            for (int lane = 0; lane < LANES; lane++) {
                const int64_t at = base + rows.query(lane < rows.count ? lane : rows.count - 1) * p.runs;
                for (int r = 0; r < runs; r++) start[r][lane] = p.start[at + r], stop[r][lane] = p.stop[at + r];
            }
        }
        for (int r = 0; r < runs; r++) {
            lowest_start[r] = lowest_stop[r] = INT32_MAX, highest_start[r] = highest_stop[r] = 0;
            for (int lane = 0; lane < LANES; lane++) {
                if (start[r][lane] < stop[r][lane] && start[r][lane] < lowest_start[r]) lowest_start[r] = start[r][lane];
                if (start[r][lane] > highest_start[r]) highest_start[r] = start[r][lane];
                if (stop[r][lane] < lowest_stop[r]) lowest_stop[r] = stop[r][lane];
                if (start[r][lane] < stop[r][lane] && stop[r][lane] > highest_stop[r]) highest_stop[r] = stop[r][lane];
            }
        }
    }

    Extent extent(int64_t first, int64_t last) const {
        Extent found = NONE;
        for (int r = 0; r < runs; r++) {
            if (highest_start[r] <= first && last <= lowest_stop[r]) return ALL;
            if (lowest_start[r] < last && first < highest_stop[r]) found = PART;
        }
        return found;
    }

    // The first key at or after `first` that any lane may see, so that whole stretches are stepped over.
    int64_t next(int64_t first) const {
        int64_t nearest = INT64_MAX;
        for (int r = 0; r < runs; r++)
            if (first < highest_stop[r]) {
                const int64_t from = lowest_start[r] > first ? lowest_start[r] : first;
                if (from < nearest) nearest = from;
            }
        return nearest;
    }

    I sees(int64_t key, int lane) const {
        const I k = splat((int32_t)key);
        I seen = (load(&start[0][lane]) <= k) & (k < load(&stop[0][lane]));
        for (int r = 1; r < runs; r++) seen |= (load(&start[r][lane]) <= k) & (k < load(&stop[r][lane]));
        return seen;
    }
};
