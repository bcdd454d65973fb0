// The forward pass of one tile of query rows: scores transposed, so that each query owns a lane from the dot product to
// the last division, and nothing is ever reduced across a vector.
//
//   Sᵀ = K Qᵀ        keys down, queries across; K's numbers are broadcast from where they lie
//   m, l             running maximum and normaliser, lane by lane (Milakov and Gimelshein, arXiv 1805.02867)
//   Oᵀ += Vᵀ Pᵀ      and O is transposed back once, at the end

template <class N, bool PAIRS, int LANES>
struct Forward {
    using T = Operand<PAIRS>;
    static constexpr int64_t PACK = PAIRS ? 2 : 1;  // numbers in one operand
    static constexpr int VECTORS = LANES / W;

    const heedful_problem &p;
    const Rows<LANES> rows;
    const Sight<LANES> sight;
    const Drops<LANES> drops;
    const int64_t D, Dv, D_words;
    // What a difference of scores is multiplied by before the softmax: the scale, or 1 where they were scaled one by one.
    const float scale;

    T *query, *weights, *keys, *values;
    float *scores, *output, *maximum, *normaliser;
    bool alive[BLOCK];  // whether any lane sees the key

    // Floats of scratch that a tile needs.
    static int64_t scratch(const heedful_problem &p) {
        return padded(p.D) * LANES + 2 * BLOCK * LANES + padded(p.Dv) * LANES + BLOCK * (padded(p.D) + padded(p.Dv)) +
               2 * LANES;
    }

    Forward(const heedful_problem &p, int64_t b, int64_t kv_head, int64_t first, float *at)
        : p(p), rows(p, b, kv_head, first), sight(p, rows), drops(p, rows), D(p.D), Dv(p.Dv),
          D_words((p.D + PACK - 1) / PACK), scale(singly() ? 1.0f : fabsf(p.scale)) {
        query = (T *)at, at += padded(D) * LANES;
        scores = at, at += BLOCK * LANES;
        weights = PAIRS ? (T *)at : (T *)scores, at += BLOCK * LANES;
        output = at, at += padded(Dv) * LANES;
        keys = (T *)at, at += BLOCK * padded(D);
        values = (T *)at, at += BLOCK * padded(Dv);
        maximum = at, normaliser = at + LANES;
    }

    // Whether scores are transformed one by one before the softmax, not just masked and multiplied (by a scale other than
    // 0, which would make NaN of −∞).
    bool singly() const { return p.softcap != 0 || p.bias.data || p.sinks || p.scale == 0; }

    // An empty sum; `sinks`: with the sink logit in it.
    void begin(bool sinks) {
        load_queries();
        for (int lane = 0; lane < LANES; lane++) {
            const float sink = sinks && p.sinks && lane < rows.count ? p.sinks[rows.head(lane)] : -INFINITY;
            begin_sums(sink, maximum[lane], normaliser[lane]);
        }
        memset(output, 0, sizeof(float) * Dv * LANES);
    }

    // Attend to the keys first…last-1.
    void attend(int64_t first, int64_t last) {
        for (int64_t k = sight.next(first); k < last; k = sight.next(k + BLOCK)) {
            const int64_t count = last - k < BLOCK ? last - k : BLOCK;
            const auto extent = sight.extent(k, k + count);
            if (extent == Sight<LANES>::NONE) continue;
            score(k, count);
            if (singly()) shape_scores(k, count);
            const bool in_part = extent == Sight<LANES>::PART || p.mask.data;
            if (in_part) hide(k, count), find_alive(count);
            raise_maximum(count);
            weigh(k, count);
            gather(k, count, in_part);
        }
    }

    void load_queries() {
        // A negative scale changes the queries' signs, so that the largest score stays the largest.
        load_lanes<N, PAIRS, LANES>(
            [&](int lane) {
                return (const N *)p.query.data + rows.b * p.query.batch + rows.head(lane) * p.query.head +
                       rows.query(lane) * p.query.token;
            },
            rows.count, D, !singly() && p.scale < 0, query);
    }

    // Sᵀ of a block: the keys as they lie where their type allows it, else copied into `keys`.
    void score(int64_t k, int64_t count) {
        const N *from = (const N *)p.key.data + rows.b * p.key.batch + rows.kv_head * p.key.head + k * p.key.token;
        const T *A = keys;
        int64_t a_row = padded(D) / PACK;
        if constexpr (std::is_same_v<N, T>)
            A = from, a_row = p.key.token;
        else if (PAIRS && D % 2 == 0 && p.key.token % 2 == 0 && (uintptr_t)from % 4 == 0)
            A = (const T *)from, a_row = p.key.token / 2;
        else
            for (int64_t r = 0; r < count; r++) copy_row(from + r * p.key.token, D, keys + r * a_row);
        product<LANES, false>(count, A, a_row, 1, query, LANES, D_words, scores, LANES);
    }

    // Scores scaled, capped and biased.
    void shape_scores(int64_t k, int64_t count) {
        const float cap = p.softcap, inward = cap ? p.scale / cap : p.scale;
        for (int64_t i = 0; i < count * LANES; i += W) {
            const F s = load(scores + i) * inward;
            store(scores + i, cap ? tanh(s) * cap : s);
        }
        if (!p.bias.data) return;
        for (int lane = 0; lane < rows.count; lane++) {
            const float *bias = (const float *)p.bias.data + plane_at(p.bias, lane) + k * p.bias.key;
            for (int64_t r = 0; r < count; r++) scores[r * LANES + lane] += bias[r * p.bias.key];
        }
    }

    int64_t plane_at(const heedful_plane &plane, int lane) const {
        return rows.b * plane.batch + rows.head(lane) * plane.head + rows.query(lane) * plane.query;
    }

    // −∞ where a lane may not see a key.
    void hide(int64_t k, int64_t count) {
        const F hidden = splat(-INFINITY);
        for (int64_t r = 0; r < count; r++)
            for (int lane = 0; lane < LANES; lane += W) {
                float *s = scores + r * LANES + lane;
                store(s, sight.sees(k + r, lane) ? load(s) : hidden);
            }
        if (!p.mask.data) return;
        for (int64_t r = 0; r < count; r++)  // idle lanes see nothing: no key is alive on their account
            for (int lane = rows.count; lane < LANES; lane++) scores[r * LANES + lane] = -INFINITY;
        for (int lane = 0; lane < rows.count; lane++) {
            const uint8_t *mask = (const uint8_t *)p.mask.data + plane_at(p.mask, lane) + k * p.mask.key;
            for (int64_t r = 0; r < count; r++)
                if (!mask[r * p.mask.key]) scores[r * LANES + lane] = -INFINITY;
        }
    }

    // Which keys have a weight at all: the values of the others are not read, so that whatever is there harms nothing.
    void find_alive(int64_t count) {
        for (int64_t r = 0; r < count; r++) {
            I seen{};
            for (int lane = 0; lane < LANES; lane += W) seen |= load(scores + r * LANES + lane) != -INFINITY;
            alive[r] = any(seen);
        }
    }

    // Let m follow the block's largest scores where it lags too far behind, and rescale what was summed with the old one.
    void raise_maximum(int64_t count) {
        const float lag = LAG * LN_2 / scale;
        for (int lane = 0; lane < LANES; lane += W) {
            const float *s = scores + lane;
            F a = splat(-INFINITY), b = a, c = a, d = a;
            int64_t r = 0;
            for (; r + 4 <= count; r += 4, s += 4 * LANES) {
                a = maximum_of(a, load(s)), b = maximum_of(b, load(s + LANES));
                c = maximum_of(c, load(s + 2 * LANES)), d = maximum_of(d, load(s + 3 * LANES));
            }
            for (; r < count; r++, s += LANES) a = maximum_of(a, load(s));
            const F highest = maximum_of(maximum_of(a, b), maximum_of(c, d)), old = load(maximum + lane);
            if (!any(highest > old + lag)) continue;
            const F raised = maximum_of(old, highest), correction = exp2<true>((old - raised) * (scale * LOG2_E));
            store(maximum + lane, raised);
            store(normaliser + lane, load(normaliser + lane) * correction);
            for (int64_t d = 0; d < Dv; d++) {
                float *o = output + d * LANES + lane;
                store(o, load(o) * correction);
            }
        }
    }

    // Pᵀ = e^(scale (S − m)), its sums into l, and the weights as operands of the second product.
    void weigh(int64_t k, int64_t count) {
        for (int lane = 0; lane < LANES; lane += W) {
            const F m = load(maximum + lane);
            F sums[2] = {};
            for (int64_t r = 0; r < count; r += 2) {
                F pair[2];
                for (int i = 0; i < 2; i++) {
                    if (r + i >= count) {
                        pair[i] = F{};
                        continue;
                    }
                    pair[i] = exp2<!PAIRS>((load(scores + (r + i) * LANES + lane) - m) * (scale * LOG2_E));
                    sums[i] += pair[i];
                    if (p.dropout_p > 0) pair[i] = drops.keeps(k + r + i, lane) ? pair[i] : F{};
                }
                store_weights(r, count, lane, pair);
            }
            store(normaliser + lane, load(normaliser + lane) + (sums[0] + sums[1]));
        }
    }

    void store_weights(int64_t r, int64_t count, int lane, const F pair[2]) {
        if constexpr (PAIRS) {
            store_pairs(weights + r / 2 * LANES + lane, pair[0], pair[1]);
        } else {
            store(weights + r * LANES + lane, pair[0]);
            if (r + 1 < count) store(weights + (r + 1) * LANES + lane, pair[1]);
        }
    }

    // Oᵀ += Vᵀ Pᵀ. Values whose key no lane sees are not read.
    void gather(int64_t k, int64_t count, bool in_part) {
        const N *from = (const N *)p.value.data + rows.b * p.value.batch + rows.kv_head * p.value.head + k * p.value.token;
        const auto row = [&](int64_t r) { return r < count && (!in_part || alive[r]) ? from + r * p.value.token : nullptr; };
        const T *A = values;
        int64_t a_k = padded(Dv);
        if constexpr (PAIRS) {
            for (int64_t r = 0; r < count; r += 2) pair_rows(row(r), row(r + 1), Dv, values + r / 2 * a_k);
        } else if (std::is_same_v<N, T> && !in_part) {
            A = (const T *)from, a_k = p.value.token;
        } else {
            for (int64_t r = 0; r < count; r++) copy_row(row(r), Dv, values + r * a_k);
        }
        product<LANES, true>(Dv, A, 1, a_k, weights, LANES, (count + PACK - 1) / PACK, output, LANES);
    }

    // Leave the unfinished sums, and add such sums of other keys.
    void save(float *to) const {
        memcpy(to, maximum, sizeof(float) * LANES);
        memcpy(to + LANES, normaliser, sizeof(float) * LANES);
        memcpy(to + 2 * LANES, output, sizeof(float) * Dv * LANES);
    }
    void join(const float *from) {
        for (int lane = 0; lane < LANES; lane += W) {
            const F ours = load(maximum + lane), theirs = load(from + lane), raised = maximum_of(ours, theirs);
            const F keep = exp2<true>((ours - raised) * (scale * LOG2_E));
            const F add = exp2<true>((theirs - raised) * (scale * LOG2_E));
            store(maximum + lane, raised);
            store(normaliser + lane, load(normaliser + lane) * keep + load(from + LANES + lane) * add);
            for (int64_t d = 0; d < Dv; d++) {
                float *o = output + d * LANES + lane;
                store(o, load(o) * keep + load(from + (d + 2) * LANES + lane) * add);
            }
        }
    }

    // Divide, and put each lane's output back in its row.
    void finish() {
        float *row = (float *)keys;  // W rows of Dv, where the keys were
        for (int lane = 0; lane < rows.count; lane += W) {
            for (int64_t d = 0; d < Dv; d += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = d + i < Dv ? load(output + (d + i) * LANES + lane) : F{};
                transpose(v);
                for (int i = 0; i < W; i++) store(row + i * padded(Dv) + d, v[i]);
            }
            for (int i = lane; i < lane + W && i < rows.count; i++)
                write_row<N>(p, rows.b, rows.head(i), rows.query(i), row + (i - lane) * padded(Dv), maximum[i] * scale,
                             normaliser[i]);
        }
    }
};
