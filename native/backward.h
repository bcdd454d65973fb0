// The backward pass: queries outside, keys inside (FlashAttention-2, arXiv 2307.08691, §3.2, with the loops exchanged).
// The weights are computed again from the log-sum-exp, and all five products are the one of product.h:
//
//   Sᵀ = K Qᵀ, dPᵀ = V dOᵀ            queries in the lanes, as in the forward pass
//   dQᵀ += Kᵀ dSᵀ                      likewise; complete when the tile's last key is done
//   dV += Pᵀ dO, dK += dSᵀ Q           head sizes in the lanes, summed up for the whole head in float32
//
// with dS = P ∘ (dP − δ), δ = Σ dO ∘ O − d lse, and what soft-cap, dropout and scale make of it.

// The sums of dK and dV of one head: Tk rows, each padded to whole vectors.
struct KeySums {
    float *key, *value;
    int64_t key_row, value_row;

    static int64_t floats(const heedful_problem &p) { return p.Tk * (padded(p.D) + padded(p.Dv)); }
    KeySums(const heedful_problem &p, float *at)
        : key(at), value(at + p.Tk * padded(p.D)), key_row(padded(p.D)), value_row(padded(p.Dv)) {}
};

template <class N, int LANES>
struct Backward {
    const heedful_gradient &g;
    const heedful_problem &p;
    const Rows<LANES> rows;
    const Sight<LANES> sight;
    const Drops<LANES> drops;
    const KeySums sums;
    const int64_t D, Dv, D_row, Dv_row;

    // Of the tile: queries and output gradients as lanes and as rows, and the sums of dQᵀ.
    float *query_lanes, *grad_lanes, *query_rows, *grad_rows, *grad_query, *lse, *delta;
    // Of a block: Sᵀ and then P, dPᵀ and then dS, what is added to the scores, keys and values where they are copied.
    float *scores, *grad_scores, *extra, *keys, *values;
    bool seeing[LANES];  // whether a lane has a query that sees any key

    static int64_t scratch(const heedful_problem &p) {
        return LANES * (3 * padded(p.D) + 2 * padded(p.Dv) + 2) + BLOCK * (3 * LANES + padded(p.D) + padded(p.Dv));
    }

    Backward(const heedful_gradient &g, int64_t b, int64_t kv_head, int64_t first, const KeySums &sums, float *at)
        : g(g), p(g.forward), rows(p, b, kv_head, first), sight(p, rows), drops(p, rows), sums(sums), D(p.D), Dv(p.Dv),
          D_row(padded(D)), Dv_row(padded(Dv)) {
        query_lanes = at, at += LANES * D_row;
        query_rows = at, at += LANES * D_row;
        grad_query = at, at += LANES * D_row;
        grad_lanes = at, at += LANES * Dv_row;
        grad_rows = at, at += LANES * Dv_row;
        scores = at, at += BLOCK * LANES;
        grad_scores = at, at += BLOCK * LANES;
        extra = at, at += BLOCK * LANES;
        keys = at, at += BLOCK * D_row;
        values = at, at += BLOCK * Dv_row;
        lse = at, delta = at + LANES;
    }

    void run() {
        load_tile();
        for (int64_t k = sight.next(0); k < p.Tk; k = sight.next(k + BLOCK)) {
            const int64_t count = p.Tk - k < BLOCK ? p.Tk - k : BLOCK;
            const auto extent = sight.extent(k, k + count);
            if (extent != Sight<LANES>::NONE) visit(k, count, extent == Sight<LANES>::PART || p.mask.data);
        }
        write_query_gradients();
    }

    const N *row_of(const heedful_tensor &tensor, int lane) const {
        return (const N *)tensor.data + rows.b * tensor.batch + rows.head(lane) * tensor.head +
               rows.query(lane) * tensor.token;
    }

    // Queries and output gradients, and of each lane the log-sum-exp in powers of two and δ. A lane without a key, like
    // an idle one, has zeros everywhere and a log-sum-exp of +∞, which makes its weights 0.
    void load_tile() {
        for (int lane = 0; lane < LANES; lane++) {
            const bool there = lane < rows.count;
            const int64_t at = there ? (rows.b * p.Hq + rows.head(lane)) * p.Tq + rows.query(lane) : 0;
            seeing[lane] = there && p.lse[at] != -INFINITY;
            lse[lane] = seeing[lane] ? p.lse[at] * LOG2_E : INFINITY;
            float *query = query_rows + lane * D_row, *grad = grad_rows + lane * Dv_row;
            memset(query, 0, sizeof(float) * D_row);
            memset(grad, 0, sizeof(float) * Dv_row);
            delta[lane] = 0;
            if (!seeing[lane]) continue;
            copy_row(row_of(p.query, lane), D, query);
            copy_row(row_of(g.grad_output, lane), Dv, grad);
            const N *output = row_of(p.output, lane);
            for (int64_t d = 0; d < Dv; d++) delta[lane] += grad[d] * widen(output[d]);
            if (g.grad_lse) delta[lane] -= g.grad_lse[at];
        }
        transpose_rows(query_rows, D_row, query_lanes);
        transpose_rows(grad_rows, Dv_row, grad_lanes);
        memset(grad_query, 0, sizeof(float) * LANES * D_row);
    }

    static void transpose_rows(const float *from, int64_t row, float *to) {
        for (int lane = 0; lane < LANES; lane += W)
            for (int64_t d = 0; d < row; d += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = load(from + (lane + i) * row + d);
                transpose(v);
                for (int i = 0; i < W; i++) store(to + (d + i) * LANES + lane, v[i]);
            }
    }

    void visit(int64_t k, int64_t count, bool in_part) {
        const bool with_extra = p.mask.data || p.bias.data;
        bool alive[BLOCK];
        if (with_extra) load_extra(k, count);
        if (in_part) find_alive(k, count, alive);
        const N *key = (const N *)p.key.data + rows.b * p.key.batch + rows.kv_head * p.key.head + k * p.key.token;
        const N *value = (const N *)p.value.data + rows.b * p.value.batch + rows.kv_head * p.value.head + k * p.value.token;
        int64_t key_row = p.key.token, value_row = p.value.token;
        const float *K = block_of(key, key_row, D, D_row, count, in_part ? alive : nullptr, keys);
        const float *V = block_of(value, value_row, Dv, Dv_row, count, in_part ? alive : nullptr, values);

        product<LANES, false>(count, K, key_row, 1, query_lanes, LANES, D, scores, LANES);
        product<LANES, false>(count, V, value_row, 1, grad_lanes, LANES, Dv, grad_scores, LANES);
        differentiate(k, count, in_part, with_extra);
        product<LANES, true>(D, K, 1, key_row, grad_scores, LANES, count, grad_query, LANES);
        add_rows(count, scores, grad_rows, Dv_row, sums.value + k * sums.value_row);
        add_rows(count, grad_scores, query_rows, D_row, sums.key + k * sums.key_row);
    }

    // A block of keys or values as floats: as they lie where they are floats that all may read, else copied, zeros for
    // those that nobody sees.
    const float *block_of(const N *from, int64_t &row, int64_t size, int64_t padded_row, int64_t count, const bool *alive,
                          float *copy) const {
        if (std::is_same_v<N, float> && !alive) return (const float *)from;
        for (int64_t r = 0; r < count; r++) copy_row(!alive || alive[r] ? from + r * row : nullptr, size, copy + r * padded_row);
        row = padded_row;
        return copy;
    }

    // What is added to each score: the bias in powers of two, −∞ where the mask hides.
    void load_extra(int64_t k, int64_t count) {
        for (int lane = 0; lane < LANES; lane++) {
            if (!seeing[lane]) {
                for (int64_t r = 0; r < count; r++) extra[r * LANES + lane] = -INFINITY;
                continue;
            }
            const float *bias = (const float *)p.bias.data + (p.bias.data ? plane_at(p.bias, lane) + k * p.bias.key : 0);
            const uint8_t *mask = (const uint8_t *)p.mask.data + (p.mask.data ? plane_at(p.mask, lane) + k * p.mask.key : 0);
            for (int64_t r = 0; r < count; r++) {
                const bool shown = !p.mask.data || mask[r * p.mask.key];
                extra[r * LANES + lane] = !shown ? -INFINITY : p.bias.data ? bias[r * p.bias.key] * LOG2_E : 0.0f;
            }
        }
    }

    int64_t plane_at(const heedful_plane &plane, int lane) const {
        return rows.b * plane.batch + rows.head(lane) * plane.head + rows.query(lane) * plane.query;
    }

    // Which keys of the block any query of the tile sees.
    void find_alive(int64_t k, int64_t count, bool *alive) const {
        for (int64_t r = 0; r < count; r++) {
            I seen{};
            for (int lane = 0; lane < LANES; lane += W) {
                const I sees = sight.sees(k + r, lane);
                seen |= p.mask.data ? sees & (load(extra + r * LANES + lane) != -INFINITY) : sees;
            }
            alive[r] = any(seen);
        }
    }

    // From Sᵀ and dPᵀ to the weights as values met them, and to dS but for the scale.
    void differentiate(int64_t k, int64_t count, bool in_part, bool with_extra) {
        const float cap = p.softcap, inward = cap ? p.scale / cap : p.scale, outward = (cap ? cap : 1.0f) * LOG2_E;
        const float kept = p.dropout_p > 0 ? (float)(1.0 / fmax(1.0 - p.dropout_p, 0x1p-32)) : 1.0f;
        for (int64_t r = 0; r < count; r++)
            for (int lane = 0; lane < LANES; lane += W) {
                float *s = scores + r * LANES + lane, *grad = grad_scores + r * LANES + lane;
                F capped = load(s) * inward;
                if (cap) capped = tanh(capped);
                F score = capped * outward;
                if (with_extra) score = score + load(extra + r * LANES + lane);
                if (in_part) score = sight.sees(k + r, lane) ? score : splat(-INFINITY);
                F weight = exp2<true>(score - load(lse + lane)), slope = load(grad);
                F met = weight;
                if (p.dropout_p > 0) {
                    const I keeps = drops.keeps(k + r, lane);
                    met = keeps ? weight * kept : F{};
                    slope = keeps ? slope * kept : F{};
                }
                slope = weight * (slope - load(delta + lane));
                if (in_part || with_extra) slope = score == -INFINITY ? F{} : slope;
                if (g.grad_bias.data) add_bias_gradient(k + r, lane, slope);
                store(s, met);
                store(grad, cap ? slope * (1.0f - capped * capped) : slope);
            }
    }

    void add_bias_gradient(int64_t key, int lane, F slope) const {
        for (int i = lane; i < lane + W && i < rows.count; i++)
            ((float *)g.grad_bias.data)[plane_at(g.grad_bias, i) + key * g.grad_bias.key] += slope[i - lane];
    }

    // Rows of dK or dV: what each key's lanes give, times the queries' rows.
    void add_rows(int64_t count, const float *A, const float *B, int64_t row, float *to) const {
        int64_t d = 0;
        for (; d + 4 * W <= row; d += 4 * W) product<4 * W, true>(count, A, LANES, 1, B + d, row, LANES, to + d, row);
        for (; d < row; d += W) product<W, true>(count, A, LANES, 1, B + d, row, LANES, to + d, row);
    }

    void write_query_gradients() {
        for (int lane = 0; lane < rows.count; lane += W)
            for (int64_t d = 0; d < D; d += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = load(grad_query + (d + i) * LANES + lane);
                transpose(v);
                for (int i = 0; i < W && lane + i < rows.count; i++) {
                    alignas(64) float part[W];
                    store(part, v[i]);
                    narrow_row(part, D - d < W ? D - d : W, p.scale, (N *)row_of(g.grad_query, lane + i) + d);
                }
            }
    }
};

// Every head's queries in a fixed order; heads at once, and with few heads also parts of their queries, whose sums of dK
// and dV are added in order afterwards. Sizes alone say how many parts.
template <class N>
struct BackwardPass {
    static constexpr int64_t FEW_HEADS = 8, MOST_FLOATS = 1 << 23;
    const heedful_gradient &g;
    const heedful_problem &p;
    const int64_t rows, tiles, heads, floats, parts;
    float *all_sums = nullptr;
    std::atomic<int32_t> failed{0};

    explicit BackwardPass(const heedful_gradient &g)
        : g(g), p(g.forward), rows(p.Tq * (p.Hq / p.Hkv)), tiles((rows + WIDE - 1) / WIDE), heads(p.B * p.Hkv),
          floats(KeySums::floats(p)), parts(parts_of_a_head()) {}

    int64_t parts_of_a_head() const {
        int64_t parts = heads < FEW_HEADS ? FEW_HEADS / heads : 1;
        while (parts > 1 && (parts > tiles || parts * heads * floats > MOST_FLOATS)) parts--;
        return parts;
    }

    int32_t run() {
        if (parts > 1 && !(all_sums = allocate(heads * parts * floats))) return 1;
        share_out(bias_is_shared() ? nullptr : p.parallel_for, heads * parts, [this](auto next) { visit(next); });
        if (parts > 1)
            share_out(p.parallel_for, heads, [this](auto next) {
                for (int64_t head = next(); head >= 0; head = next()) join(head);
            });
        free(all_sums);
        if (g.grad_sinks && !failed) sink_gradients();
        return failed;
    }

    static float *allocate(int64_t floats) { return (float *)aligned_alloc(64, (sizeof(float) * floats + 63) / 64 * 64); }

    // Whether two heads or batch entries add to one number of the bias gradient: then one after the other.
    bool bias_is_shared() const {
        const heedful_plane &bias = g.grad_bias;
        return bias.data && ((p.B > 1 && !bias.batch) || (p.Hq > 1 && !bias.head) || parts > 1);
    }

    template <class Next>
    void visit(Next next) {
        float *scratch = allocate(Backward<N, WIDE>::scratch(p) + (parts > 1 ? 0 : floats));
        if (!scratch) {
            failed = 1;
            return;
        }
        for (int64_t item = next(); item >= 0; item = next()) {
            const int64_t head = item / parts, part = item % parts;
            float *at = parts > 1 ? all_sums + item * floats : scratch + Backward<N, WIDE>::scratch(p);
            memset(at, 0, sizeof(float) * floats);
            const KeySums sums(p, at);
            for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; tile++)
                Backward<N, WIDE>(g, head / p.Hkv, head % p.Hkv, tile * WIDE, sums, scratch).run();
            if (parts == 1) write_sums(head, sums);
        }
        free(scratch);
    }

    void join(int64_t head) {
        float *first = all_sums + head * parts * floats;
        for (int64_t part = 1; part < parts; part++)
            for (int64_t i = 0; i < floats; i++) first[i] += first[part * floats + i];
        write_sums(head, KeySums(p, first));
    }

    void write_sums(int64_t head, const KeySums &sums) const {
        const int64_t b = head / p.Hkv, h = head % p.Hkv;
        for (int64_t k = 0; k < p.Tk; k++) {
            N *key = (N *)g.grad_key.data + b * g.grad_key.batch + h * g.grad_key.head + k * g.grad_key.token;
            N *value = (N *)g.grad_value.data + b * g.grad_value.batch + h * g.grad_value.head + k * g.grad_value.token;
            narrow_row(sums.key + k * sums.key_row, p.D, p.scale, key);
            narrow_row(sums.value + k * sums.value_row, p.Dv, 1.0f, value);
        }
    }

    // d sink = −Σ exp(sink − lse) δ: a key whose value is 0.
    void sink_gradients() const {
        for (int64_t h = 0; h < p.Hq; h++) {
            double sum = 0;
            for (int64_t b = 0; b < p.B; b++)
                for (int64_t q = 0; q < p.Tq; q++) {
                    const N *grad = (const N *)g.grad_output.data + b * g.grad_output.batch + h * g.grad_output.head + q * g.grad_output.token;
                    const N *output = (const N *)p.output.data + b * p.output.batch + h * p.output.head + q * p.output.token;
                    const int64_t at = (b * p.Hq + h) * p.Tq + q;
                    if (p.lse[at] == -INFINITY) continue;
                    float delta = g.grad_lse ? -g.grad_lse[at] : 0.0f;
                    for (int64_t d = 0; d < p.Dv; d++) delta += widen(grad[d]) * widen(output[d]);
                    sum -= (double)expf(p.sinks[h] - p.lse[at]) * delta;
                }
            g.grad_sinks[h] = (float)sum;
        }
    }
};

static int32_t backward(const heedful_gradient *g) {
    const heedful_problem &p = g->forward;
    if (!p.B || !p.Hq || !p.Hkv) return 0;
    switch (p.dtype) {
        case HEEDFUL_F32: return BackwardPass<float>(*g).run();
        case HEEDFUL_F16: return BackwardPass<Half>(*g).run();
        default: return BackwardPass<Bf16>(*g).run();
    }
}
