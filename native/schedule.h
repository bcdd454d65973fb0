// Which tiles there are, and how threads come by them. What a tile computes never depends on who computes it.

// Tiles taken from a shared counter: those with many keys first, whoever is free takes the next.
template <class Work>
static void share_out(heedful_parallel_for parallel_for, int64_t items, const Work &work) {
    struct Shared {
        const Work &work;
        std::atomic<int64_t> next;
        int64_t items;
    } shared{work, {0}, items};
    const auto take = [](int64_t, int64_t, void *context) {
        auto &shared = *(Shared *)context;
        shared.work([&shared] {
            const int64_t item = shared.next.fetch_add(1, std::memory_order_relaxed);
            return item < shared.items ? item : -1;
        });
    };
    if (parallel_for && items > 1)
        parallel_for(0, items, 1, take, &shared);
    else
        take(0, items, &shared);
}

// The widest tile; what is left over of a head's rows takes a narrower one. Heads with very few rows take another kernel;
// left-over rows do not, so that the backward pass finds the very scores that its log-sum-exp was taken of.
constexpr int WIDE = 64, MIDDLE = 32, NARROW = 16, FEW = 8;
// With few tiles (decoding), the keys are split too, by sizes alone and never by the number of threads.
constexpr int64_t FEW_TILES = 64, CHUNK = 1024;

template <class N, bool PAIRS>
struct ForwardPass {
    const heedful_problem &p;
    const int64_t rows, tiles, heads, chunks, saved;  // saved: floats of one unfinished tile
    float *unfinished = nullptr;
    std::atomic<int32_t> failed{0};

    explicit ForwardPass(const heedful_problem &p)
        : p(p), rows(p.Tq * (p.Hq / p.Hkv)), tiles((rows + WIDE - 1) / WIDE), heads(p.B * p.Hkv),
          chunks(heads * tiles < FEW_TILES && p.Tk >= 2 * CHUNK ? (p.Tk + CHUNK - 1) / CHUNK : 1),
          saved((padded(p.Dv) + W + 2) * WIDE) {}

    int32_t run() {
        if (chunks > 1) {
            unfinished = (float *)aligned_alloc(64, sizeof(float) * heads * tiles * chunks * saved);
            if (!unfinished) return 1;
        }
        share_out(p.parallel_for, heads * tiles * chunks, [this](auto next) {
            in_scratch(next, [this](int64_t item, float *at) { attend(item, at); });
        });
        if (chunks > 1)
            share_out(p.parallel_for, heads * tiles, [this](auto next) {
                in_scratch(next, [this](int64_t item, float *at) { join(item, at); });
            });
        free(unfinished);
        return failed;
    }

    template <class Next, class Tile>
    void in_scratch(Next next, Tile tile) {
        const int64_t floats = Forward<N, PAIRS, WIDE>::scratch(p);
        float *at = (float *)aligned_alloc(64, (sizeof(float) * floats + 63) / 64 * 64);
        if (!at) {
            failed = 1;
            return;
        }
        for (int64_t item = next(); item >= 0; item = next()) tile(item, at);
        free(at);
    }

    // Calls what(tile) with the tile of the width that its rows need.
    template <class What>
    void with_tile(int64_t item, float *at, What what) {
        const int64_t first = (tiles - 1 - item % tiles) * WIDE, head = item / tiles;
        const int64_t b = head / p.Hkv, kv_head = head % p.Hkv, count = rows - first;
        if (count > MIDDLE) {
            Forward<N, PAIRS, WIDE> tile(p, b, kv_head, first, at);
            what(tile);
        } else if (count > NARROW) {
            Forward<N, PAIRS, MIDDLE> tile(p, b, kv_head, first, at);
            what(tile);
        } else if (rows > FEW) {
            Forward<N, PAIRS, NARROW> tile(p, b, kv_head, first, at);
            what(tile);
        } else {
            Decode<N, PAIRS, FEW> tile(p, b, kv_head, first, at);
            what(tile);
        }
    }

    void attend(int64_t item, float *at) {
        const int64_t chunk = item % chunks;
        with_tile(item / chunks, at, [&](auto &tile) {
            tile.begin(chunk == 0);
            if (chunks == 1) {
                tile.attend(0, p.Tk);
                tile.finish();
            } else {
                tile.attend(chunk * CHUNK, chunk * CHUNK + CHUNK < p.Tk ? chunk * CHUNK + CHUNK : p.Tk);
                tile.save(unfinished + item * saved);
            }
        });
    }

    void join(int64_t item, float *at) {
        with_tile(item, at, [&](auto &tile) {
            tile.begin(false);
            for (int64_t chunk = 0; chunk < chunks; chunk++) tile.join(unfinished + (item * chunks + chunk) * saved);
            tile.finish();
        });
    }
};

static int32_t forward(const heedful_problem *p) {
    if (!p->B || !p->Hq || !p->Tq) return 0;
    switch (p->dtype) {
        case HEEDFUL_F32: return ForwardPass<float, false>(*p).run();
        case HEEDFUL_F16: return ForwardPass<Half, false>(*p).run();
#if defined(__AVX512BF16__)
        default: return ForwardPass<Bf16, true>(*p).run();
#else
        default: return ForwardPass<Bf16, false>(*p).run();
#endif
    }
}
