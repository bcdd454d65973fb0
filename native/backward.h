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

template <class N, bool PAIRS, int LANES>
struct Backward {
    using T = Operand<PAIRS>;
    static constexpr int64_t PACK = PAIRS ? 2 : 1;  // numbers in one operand

    const heedful_gradient &g;
    const heedful_problem &p;
    const Rows<LANES> rows;
    const Sight<LANES> sight;
    const Drops<LANES> drops;
    const KeySums sums;
    const float kept;
    const int64_t D, Dv, D_row, Dv_row;  // sizes of heads, and of their rows in scratch

    // Of the tile: queries and output gradients in the lanes, and as rows of operands along the lanes; the sums of dQᵀ.
    T *query_lanes, *grad_lanes, *query_rows, *grad_rows;
    float *grad_query, *lse, *delta;
    // Of a block: scores and dPᵀ, and what is added to the scores; Pᵀ and dSᵀ as operands along the lanes, and dSᵀ along
    // the keys; keys and values where they are copied, and keys as operands along the keys.
    float *scores, *grad_weights, *extra;
    T *weights, *slopes, *slopes_by_key, *keys, *values, *keys_by_key;
    bool seeing[LANES];  // whether a lane has a query that sees any key

    static int64_t scratch(const heedful_problem &p) {
        return LANES * (3 * padded(p.D) + 2 * padded(p.Dv) + 2) + BLOCK * (6 * LANES + 2 * padded(p.D) + padded(p.Dv));
    }

    Backward(const heedful_gradient &g, int64_t b, int64_t kv_head, int64_t first, const KeySums &sums, float *at)
        : g(g), p(g.forward), rows(p, b, kv_head, first), sight(p, rows), drops(p, rows), sums(sums),
          kept(p.dropout_p > 0 ? (float)(1.0 / fmax(1.0 - p.dropout_p, 0x1p-32)) : 1.0f), D(p.D), Dv(p.Dv),
          D_row(padded(D)), Dv_row(padded(Dv)) {
        const auto take = [&at](int64_t floats) { return at += floats, at - floats; };
        query_lanes = (T *)take(LANES * D_row), query_rows = (T *)take(LANES * D_row);
        grad_lanes = (T *)take(LANES * Dv_row), grad_rows = (T *)take(LANES * Dv_row);
        grad_query = take(LANES * D_row);
        scores = take(BLOCK * LANES), grad_weights = take(BLOCK * LANES), extra = take(BLOCK * LANES);
        keys = (T *)take(BLOCK * D_row), values = (T *)take(BLOCK * Dv_row);
        weights = (T *)take(BLOCK * LANES), slopes = (T *)take(BLOCK * LANES);
        slopes_by_key = PAIRS ? (T *)take(BLOCK * LANES) : slopes;
        keys_by_key = (T *)take(BLOCK * D_row);
        lse = take(LANES), delta = take(LANES);
    }

    void run() {
        load_tile();
        for (int64_t k = sight.next(0); k < p.Tk; k = sight.next(k + BLOCK)) {
            const int64_t count = p.Tk - k < BLOCK ? p.Tk - k : BLOCK;
            const auto extent = sight.extent(k, k + count);
            const bool alone = k == sight.next(0) && sight.next(k + BLOCK) >= p.Tk && !p.softcap && !g.grad_bias.data;
            if (extent != Sight<LANES>::NONE) visit(k, count, extent == Sight<LANES>::PART || p.mask.data, alone);
        }
        write_query_gradients();
    }

    const N *row_of(const heedful_tensor &tensor, int lane) const {
        return (const N *)tensor.data + rows.b * tensor.batch + rows.head(lane) * tensor.head +
               rows.query(lane) * tensor.token;
    }

    // Queries and output gradients, and of each lane the log-sum-exp and δ. A lane without a key, like
    // an idle one, has zeros everywhere and a log-sum-exp of +∞, which makes its weights 0.
    void load_tile() {
        for (int lane = 0; lane < LANES; lane++) {
            seeing[lane] = lane < rows.count && p.lse[at_lane(lane)] != -INFINITY;
            lse[lane] = seeing[lane] ? p.lse[at_lane(lane)] : INFINITY;
            delta[lane] = 0;
            if (!seeing[lane]) continue;
            delta[lane] = dot(row_of(g.grad_output, lane), row_of(p.output, lane)) - grad_lse_of(lane);
        }
        load_both(p.query, D, D_row, query_lanes, query_rows);
        load_both(g.grad_output, Dv, Dv_row, grad_lanes, grad_rows);
        memset(grad_query, 0, sizeof(float) * LANES * D_row);
    }

    int64_t at_lane(int lane) const { return (rows.b * p.Hq + rows.head(lane)) * p.Tq + rows.query(lane); }
    float grad_lse_of(int lane) const { return g.grad_lse ? g.grad_lse[at_lane(lane)] : 0.0f; }

    float dot(const N *one, const N *other) const {
        float sum = 0;
        for (int64_t d = 0; d < Dv; d++) sum += widen(one[d]) * widen(other[d]);
        return sum;
    }

    // The tile's rows of a tensor across the lanes, and one below the other.
    void load_both(const heedful_tensor &tensor, int64_t size, int64_t row, T *lanes, T *below) const {
        const auto row_at = [&](int lane) { return seeing[lane] ? row_of(tensor, lane) : nullptr; };
        load_lanes<N, PAIRS, LANES>(row_at, rows.count, size, false, lanes);
        if constexpr (PAIRS)
            for (int lane = 0; lane < LANES; lane += 2)
                pair_rows(row_at(lane), row_at(lane + 1), size, below + lane / 2 * row);
        else
            for (int lane = 0; lane < LANES; lane++) copy_row(row_at(lane), size, below + lane * row);
    }

    void visit(int64_t k, int64_t count, bool in_part, bool alone) {
        const bool with_extra = p.mask.data || p.bias.data;
        bool alive[BLOCK];
        if (with_extra) load_extra(k, count);
        if (in_part) find_alive(k, count, alive);
        const Block K(*this, p.key, k, D, D_row, count, in_part ? alive : nullptr, keys);
        const Block V(*this, p.value, k, Dv, Dv_row, count, in_part ? alive : nullptr, values);

        product<LANES, false>(count, K.first, K.row, 1, query_lanes, LANES, (D + PACK - 1) / PACK, scores, LANES);
        product<LANES, false>(count, V.first, V.row, 1, grad_lanes, LANES, (Dv + PACK - 1) / PACK, grad_weights, LANES);
        if (alone) find_delta(k, count, in_part, with_extra);
        differentiate(k, count, in_part, with_extra);
        add_query_gradients(K, count);
        add_rows(count, weights, grad_rows, Dv, Dv_row, sums.value + k * sums.value_row);
        add_rows(count, slopes, query_rows, D, D_row, sums.key + k * sums.key_row);
    }

    // A block of keys or values as operands along the head size: as they lie where their type allows it and all may be
    // read, else copied, with zeros for those that nobody sees.
    struct Block {
        const N *from;  // where they lie
        int64_t token;
        const bool *alive;
        const T *first;
        int64_t row;

        Block(const Backward &tile, const heedful_tensor &tensor, int64_t k, int64_t size, int64_t padded_row,
              int64_t count, const bool *alive, T *copy)
            : from((const N *)tensor.data + tile.rows.b * tensor.batch + tile.rows.kv_head * tensor.head + k * tensor.token),
              token(tensor.token), alive(alive), first((const T *)from), row(tensor.token / PACK) {
            const bool as_they_lie =
                std::is_same_v<N, T> || (PAIRS && size % 2 == 0 && token % 2 == 0 && (uintptr_t)from % 4 == 0);
            if (as_they_lie && !alive) return;
            first = copy, row = padded_row;
            for (int64_t r = 0; r < count; r++) {
                if (at(r))
                    copy_row(at(r), size, copy + r * row);
                else
                    memset(copy + r * row, 0, sizeof(T) * row);
            }
        }
        const N *at(int64_t r) const { return !alive || alive[r] ? from + r * token : nullptr; }
    };

    // dQᵀ += Kᵀ dSᵀ
    void add_query_gradients(const Block &K, int64_t count) {
        if constexpr (PAIRS) {
            for (int64_t r = 0; r < count; r += 2)
                pair_rows(K.at(r), r + 1 < count ? K.at(r + 1) : nullptr, D, keys_by_key + r / 2 * D_row);
            product<LANES, true>(D, keys_by_key, 1, D_row, slopes_by_key, LANES, (count + 1) / 2, grad_query, LANES);
        } else {
            product<LANES, true>(D, K.first, 1, K.row, slopes_by_key, LANES, count, grad_query, LANES);
        }
    }

    // What is added to each score: the bias, −∞ where the mask hides.
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
                extra[r * LANES + lane] = !shown ? -INFINITY : p.bias.data ? bias[r * p.bias.key] : 0.0f;
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

    // δ of a tile that sees one block alone: Σ P ∘ dP, which is dSᵀ's sum where δ is 0. It lacks the error that the output was
    // rounded with; such are the first queries of a causal head, whose gradients are the largest.
    __attribute__((noinline)) void find_delta(int64_t k, int64_t count, bool in_part, bool with_extra) {
        for (int lane = 0; lane < LANES; lane += W) {
            store(delta + lane, F{});
            F sum{}, weight, slope;
            for (int64_t r = 0; r < count; r++) {
                differentiate_one(k, r, lane, in_part, with_extra, weight, slope);
                sum = sum + slope;
            }
            for (int i = lane; i < lane + W; i++)
                if (seeing[i]) delta[i] = sum[i - lane] - grad_lse_of(i);
        }
    }

    // From Sᵀ and dPᵀ to the weights as values met them, and to dSᵀ but for the scale.
    void differentiate(int64_t k, int64_t count, bool in_part, bool with_extra) {
        for (int64_t r = 0; r < count; r += 2)
            for (int lane = 0; lane < LANES; lane += W) {
                F weight[2], slope[2];
                for (int i = 0; i < 2; i++) {
                    weight[i] = slope[i] = F{};
                    if (r + i < count) differentiate_one(k, r + i, lane, in_part, with_extra, weight[i], slope[i]);
                }
                store_operands(r, lane, count, weight, slope);
            }
    }

    __attribute__((always_inline)) void differentiate_one(int64_t k, int64_t r, int lane, bool in_part, bool with_extra,
                                                          F &weight, F &slope) const {
        const float cap = p.softcap, inward = cap ? p.scale / cap : p.scale;
        F capped = load(scores + r * LANES + lane) * inward;
        if (cap) capped = tanh(capped);
        F score = rounded(cap ? capped * cap : capped);
        if (with_extra) score = score + load(extra + r * LANES + lane);
        if (in_part) score = sight.sees(k + r, lane) ? score : splat(-INFINITY);
        // A weight is at most 1, also where scores are so large that their rounding exceeds that.
        const F all = exp2<!PAIRS>(minimum_of(F{}, (score - load(lse + lane)) * LOG2_E));
        weight = all, slope = load(grad_weights + r * LANES + lane);
        if (p.dropout_p > 0) {
            const I keeps = drops.keeps(k + r, lane);
            weight = keeps ? weight * kept : F{};
            slope = keeps ? slope * kept : F{};
        }
        slope = all * (slope - load(delta + lane));
        if (in_part || with_extra) slope = score == -INFINITY ? F{} : slope;
        if (g.grad_bias.data) add_bias_gradient(k + r, lane, slope);
        if (cap) slope = slope * (1.0f - capped * capped);
    }

    __attribute__((always_inline)) void store_operands(int64_t r, int lane, int64_t count, const F weight[2], const F slope[2]) {
        if constexpr (PAIRS) store_pairs(slopes_by_key + r / 2 * LANES + lane, slope[0], slope[1]);
        for (int i = 0; i < 2 && r + i < count; i++) {
            store_row(weights + ((r + i) * LANES + lane) / PACK, weight[i]);
            store_row(slopes + ((r + i) * LANES + lane) / PACK, slope[i]);
        }
    }

    void add_bias_gradient(int64_t key, int lane, F slope) const {
        for (int i = lane; i < lane + W && i < rows.count; i++)
            ((float *)g.grad_bias.data)[plane_at(g.grad_bias, i) + key * g.grad_bias.key] += slope[i - lane];
    }

    // Rows of dK or dV: what each key's lanes give, times the tile's rows.
    void add_rows(int64_t count, const T *A, const T *B, int64_t size, int64_t row, float *to) const {
        const int64_t a_row = LANES / PACK;
        int64_t d = 0;
        for (; d + 4 * W <= size; d += 4 * W) product<4 * W, true>(count, A, a_row, 1, B + d, row, a_row, to + d, row);
        for (; d < size; d += W) product<W, true>(count, A, a_row, 1, B + d, row, a_row, to + d, row);
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
template <class N, bool PAIRS>
struct BackwardPass {
    using Tile = Backward<N, PAIRS, WIDE>;
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
        float *scratch = allocate(Tile::scratch(p) + (parts > 1 ? 0 : floats));
        if (!scratch) {
            failed = 1;
            return;
        }
        for (int64_t item = next(); item >= 0; item = next()) {
            const int64_t head = item / parts, part = item % parts;
            float *at = parts > 1 ? all_sums + item * floats : scratch + Tile::scratch(p);
            memset(at, 0, sizeof(float) * floats);
            const KeySums sums(p, at);
            for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; tile++)
                Tile(g, head / p.Hkv, head % p.Hkv, tile * WIDE, sums, scratch).run();
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
        case HEEDFUL_F32: return BackwardPass<float, false>(*g).run();
        case HEEDFUL_F16: return BackwardPass<Half, false>(*g).run();
#if defined(__AVX512BF16__)
        default: return BackwardPass<Bf16, true>(*g).run();
#else
        default: return BackwardPass<Bf16, false>(*g).run();
#endif
    }
}
