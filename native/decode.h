// The forward pass for a few query rows, as in decoding: bound by reading the keys and values once, so that vectors lie
// along what is read, the head sizes, and each row of scores along the keys.
//
//   S = Q Kᵀ     dot products of a few keys with a few rows, their sums folded into one vector
//   O += P V     lanes along the values' head size

template <class N, bool PAIRS, int MOST_ROWS>
struct Decode {
    using T = Operand<PAIRS>;
    using Vector = decltype(load((const T *)nullptr));
    static constexpr int64_t PACK = PAIRS ? 2 : 1;
    // A pair of values is multiplied by (weight, 0) and by (0, weight): even and odd features of the output have sums of
    // their own, and values are read as they lie.
    static constexpr int PARTS = PAIRS ? 2 : 1;

    const heedful_problem &p;
    const Rows<MOST_ROWS> rows;
    const Sight<MOST_ROWS> sight;
    const Drops<MOST_ROWS> drops;
    const int64_t D, Dv, words, v_words, q_row, o_row;
    const N *const key, *const value;  // of key 0

    T *query, *weights, *copied_keys, *values;
    float *scores, *output;
    float maximum[MOST_ROWS], normaliser[MOST_ROWS];

    // Floats of scratch that a tile needs.
    static int64_t scratch(const heedful_problem &p) {
        return MOST_ROWS * (padded(p.D) + PARTS * padded(p.Dv) + (1 + PARTS) * BLOCK) + BLOCK * padded(p.Dv) +
               KEYS * padded(p.D);
    }

    Decode(const heedful_problem &p, int64_t b, int64_t kv_head, int64_t first, float *at)
        : p(p), rows(p, b, kv_head, first), sight(p, rows), drops(p, rows), D(p.D), Dv(p.Dv),
          words((D + PACK - 1) / PACK), v_words((Dv + PACK - 1) / PACK), q_row(padded(words)), o_row(padded(v_words)),
          key((const N *)p.key.data + b * p.key.batch + kv_head * p.key.head),
          value((const N *)p.value.data + b * p.value.batch + kv_head * p.value.head) {
        query = (T *)at, at += MOST_ROWS * q_row;
        output = at, at += MOST_ROWS * PARTS * o_row;
        scores = at, at += MOST_ROWS * BLOCK;
        weights = PAIRS ? (T *)at : (T *)scores, at += MOST_ROWS * PARTS * BLOCK;
        copied_keys = (T *)at, at += KEYS * q_row;
        values = (T *)at;
    }

    // An empty sum; `sinks`: with the sink logit in it.
    void begin(bool sinks) {
        memset(query, 0, sizeof(float) * MOST_ROWS * q_row);
        for (int m = 0; m < rows.count; m++) {
            const N *from = (const N *)p.query.data + rows.b * p.query.batch + rows.head(m) * p.query.head +
                            rows.query(m) * p.query.token;
            copy_row(from, D, query + m * q_row);
            begin_sums(sinks && p.sinks ? p.sinks[rows.head(m)] : -INFINITY, maximum[m], normaliser[m]);
        }
        memset(output, 0, sizeof(float) * rows.count * PARTS * o_row);
    }

    // Attend to the keys first…last-1.
    void attend(int64_t first, int64_t last) {
        for (int64_t k = sight.next(first); k < last; k = sight.next(k + BLOCK)) {
            const int64_t count = last - k < BLOCK ? last - k : BLOCK;
            const auto extent = sight.extent(k, k + count);
            if (extent == Sight<MOST_ROWS>::NONE) continue;
            const bool in_part = extent == Sight<MOST_ROWS>::PART || p.mask.data;
            bool alive[BLOCK] = {};
            score(k, count);
            for (int m = 0; m < rows.count; m++) {
                shape_scores(m, k, count);
                if (in_part) hide(m, k, count, alive);
                weigh(m, k, count);
            }
            gather(k, count, in_part ? alive : nullptr);
        }
    }

    static constexpr int KEYS = 4, ROWS = W / KEYS;  // whose dot products fill one vector

    // All rows' scores with a block of keys, key after key as they lie in memory; beyond `count` its last key repeats.
    void score(int64_t k, int64_t count) {
        const bool whole = as_they_lie && D % (W * PACK) == 0;
        for (int64_t r = 0; r < count; r += KEYS) {
            const T *keys[KEYS];
            for (int j = 0; j < KEYS; j++) {
                const N *from = key + (k + (r + j < count ? r + j : count - 1)) * p.key.token;
                keys[j] = whole ? (const T *)from : copied_keys + j * q_row;
                if (!whole) copy_padded(from, D, copied_keys + j * q_row, q_row);
            }
            for (int m = 0; m < rows.count; m += ROWS) dots(query + m * q_row, keys, scores + m * BLOCK + r);
        }
    }

    static constexpr bool as_they_lie = std::is_same_v<N, T> || PAIRS;

    // A row of `count` numbers as `row` operands, zeros at the end, or zeros alone.
    void copy_padded(const N *from, int64_t count, T *to, int64_t row) const {
        memset(to, 0, sizeof(T) * row);
        if (from) copy_row(from, count, to);
    }

    // The dot products of KEYS keys with ROWS query rows.
    void dots(const T *q, const T *const keys[KEYS], float *to) const {
        F sums[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) sums[i] = F{};
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; j++)  // one after the other: memory is fastest read as it lies
            for (int64_t at = 0; at < words; at += W) {
                const Vector theirs = load(keys[j] + at);
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; i++)
                    sums[i * KEYS + j] = multiply_add(theirs, load(q + i * q_row + at), sums[i * KEYS + j]);
            }
        const F found = sums_of(sums);
        for (int i = 0; i < ROWS; i++) memcpy(to + i * BLOCK, (const float *)&found + i * KEYS, sizeof(float) * KEYS);
    }

    // A row's scores scaled, capped, biased, and −∞ beyond `count`.
    void shape_scores(int m, int64_t k, int64_t count) {
        float *s = scores + m * BLOCK;
        for (int64_t r = 0; r < count; r += W) {
            const F dot = load(s + r);
            store(s + r, p.softcap ? tanh(dot * (p.scale / p.softcap)) * p.softcap : dot * p.scale);
        }
        if (p.bias.data) {
            const float *bias = (const float *)p.bias.data + plane_at(p.bias, m) + k * p.bias.key;
            for (int64_t r = 0; r < count; r++) s[r] += bias[r * p.bias.key];
        }
        for (int64_t r = count; r < BLOCK; r++) s[r] = -INFINITY;
    }

    int64_t plane_at(const heedful_plane &plane, int m) const {
        return rows.b * plane.batch + rows.head(m) * plane.head + rows.query(m) * plane.query;
    }

    // −∞ where the row may not see a key; a key that some row sees is alive.
    void hide(int m, int64_t k, int64_t count, bool *alive) {
        float *s = scores + m * BLOCK;
        const uint8_t *mask = p.mask.data ? (const uint8_t *)p.mask.data + plane_at(p.mask, m) + k * p.mask.key : nullptr;
        for (int64_t r = 0; r < count; r++) {
            bool seen = false;
            for (int run = 0; run < sight.runs; run++)
                seen |= sight.start[run][m] <= k + r && k + r < sight.stop[run][m];
            if (seen && (!mask || mask[r * p.mask.key]))
                alive[r] = true;
            else
                s[r] = -INFINITY;
        }
    }

    // e^(S − m) in place of the row's scores, its sum into l; what was summed before is rescaled where m rises.
    void weigh(int m, int64_t k, int64_t count) {
        float *s = scores + m * BLOCK;
        F highest = splat(-INFINITY);
        for (int64_t r = 0; r < BLOCK; r += W) highest = maximum_of(highest, load(s + r));
        raise_maximum(m, highest_of(highest));
        const F top = splat(maximum[m]);
        F sum{};
        for (int64_t r = 0; r < BLOCK; r += W) {
            const F weight = exp2<!PAIRS>((load(s + r) - top) * LOG2_E);
            sum += weight;
            store(s + r, weight);
        }
        normaliser[m] += sum_of(sum);
        if (p.dropout_p > 0)
            for (int64_t r = 0; r < count; r++)
                if (!drops.keeps_one(k + r, m)) s[r] = 0.0f;
        if constexpr (PAIRS)
            for (int64_t r = 0; r < BLOCK; r += W)
                split_pairs(load(s + r), weights + 2 * m * BLOCK + r, weights + (2 * m + 1) * BLOCK + r);
    }

    void raise_maximum(int m, float highest) {
        if (!(highest > maximum[m] + LAG * LN_2)) return;
        const F correction = exp2<true>(splat((maximum[m] - highest) * LOG2_E));
        maximum[m] = highest, normaliser[m] *= correction[0];
        float *o = output + m * PARTS * o_row;
        for (int64_t d = 0; d < PARTS * o_row; d += W) store(o + d, load(o + d) * correction);
    }

    // O += P V. Values that no row sees are not read.
    void gather(int64_t k, int64_t count, const bool *alive) {
        const N *from = value + k * p.value.token;
        const T *B = (const T *)from;
        int64_t b_k = p.value.token / PACK;
        if (!as_they_lie || alive || Dv % (W * PACK) || p.value.token % PACK) {
            B = values, b_k = o_row;
            for (int64_t r = 0; r < count; r++)
                copy_padded(!alive || alive[r] ? from + r * p.value.token : nullptr, Dv, values + r * b_k, b_k);
        }
        constexpr int64_t WIDE_VECTORS = PAIRS ? 4 : ACCUMULATORS / 3;
        int64_t d = 0;
        for (; d + WIDE_VECTORS * W <= v_words; d += WIDE_VECTORS * W)
            add_values<WIDE_VECTORS>(B + d, b_k, count, output + d);
        for (; d < v_words; d += W) add_values<1>(B + d, b_k, count, output + d);
    }

    // As much of a row of values at once as the registers hold for a few query rows.
    template <int VECTORS>
    void add_values(const T *B, int64_t b_k, int64_t count, float *to) const {
        row_tiles<2 * PARTS, VECTORS, true>(rows.count * PARTS, weights, BLOCK, 1, B, b_k, count, to, o_row);
    }

    // Leave the unfinished sums, and add such sums of other keys.
    void save(float *to) const {
        memcpy(to, maximum, sizeof maximum);
        memcpy(to + MOST_ROWS, normaliser, sizeof normaliser);
        memcpy(to + 2 * MOST_ROWS, output, sizeof(float) * rows.count * PARTS * o_row);
    }
    void join(const float *from) {
        for (int m = 0; m < rows.count; m++) {
            const float raised = fmaxf(maximum[m], from[m]);
            const F keep = exp2<true>(splat((maximum[m] - raised) * LOG2_E));
            const F add = exp2<true>(splat((from[m] - raised) * LOG2_E));
            maximum[m] = raised;
            normaliser[m] = normaliser[m] * keep[0] + from[MOST_ROWS + m] * add[0];
            float *o = output + m * PARTS * o_row;
            const float *theirs = from + 2 * MOST_ROWS + m * PARTS * o_row;
            for (int64_t d = 0; d < PARTS * o_row; d += W) store(o + d, load(o + d) * keep + load(theirs + d) * add);
        }
    }

    // Divide, and write each row's output.
    void finish() {
        for (int m = 0; m < rows.count; m++) {
            float *o = output + m * PARTS * o_row;
            if constexpr (PAIRS) o = features_in_turn(o);
            write_row<N>(p, rows.b, rows.head(m), rows.query(m), o, maximum[m], normaliser[m]);
        }
    }

    // Even and odd features, one row after the other, as one row.
    float *features_in_turn(const float *o) {
        float *row = (float *)values;
        for (int64_t d = 0; d < o_row; d += W) {
            F low, high;
            interleave(load(o + d), load(o + o_row + d), low, high);
            store(row + 2 * d, low), store(row + 2 * d + W, high);
        }
        return row;
    }
};
