// The forward pass of a few query rows, as in decoding. Its speed is that of reading each key and value once, so the
// vectors lie along what is read, the head sizes, and the scores of a row along the keys.
//
//   S = Q Kᵀ     dot products of a few keys with a few rows, whose sums are folded into one vector
//   O += P V     head size in the lanes
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dropout.h"
#include "heedful.h"
#include "key_visibility.h"
#include "number.h"
#include "online_softmax.h"
#include "operands.h"
#include "output.h"
#include "product.h"
#include "query_rows.h"
#include "scratch.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

template <class N, bool PAIRS, int MAX_ROWS>
struct DecodeTile {
    using T = Operand<PAIRS>;
    using Vector = decltype(load((const T *)nullptr));
    static constexpr int64_t PACK = PAIRS ? 2 : 1;  // numbers in one operand
    // Values are read as they lie, and those of two keys are paired in registers. Of 8 neighbouring features of the output,
    // the first 4 and the others have separate sums then.
    static constexpr int PARTS = PAIRS ? 2 : 1;
    static constexpr int KEYS = 4, ROWS = W / KEYS;  // the dot products of KEYS keys with ROWS rows fill one vector
    static constexpr bool AS_THEY_LIE = std::is_same_v<N, T> || PAIRS;  // numbers in memory are operands

    static int64_t words(int64_t size) { return (size + PACK - 1) / PACK; }  // operands in a row of `size` numbers

    struct Buffers {
        T *Q;      // [MAX_ROWS][D_row], queries, then zeros
        float *O;  // [MAX_ROWS][PARTS][Dv_row], Σ P V
        float *S;  // [MAX_ROWS][BLOCK], finished scores, then weights exp(scores − m) after dropout
        T *P;      // [MAX_ROWS][BLOCK / PACK], the weights as operands; floats take the place of S
        T *K;      // [KEYS][D_row], keys if they must be copied
        T *V;      // [BLOCK][Dv_row], the block's values likewise; join_features() puts a row of O there

        template <class Source>
        Buffers(const heedful_problem &p, Source &source) {
            const int64_t row = padded(words(p.D)), v_row = padded(words(p.Dv));
            Q = (T *)source.take(MAX_ROWS * row);
            O = source.take(MAX_ROWS * PARTS * v_row);
            S = source.take(MAX_ROWS * BLOCK);
            P = PAIRS ? (T *)source.take(MAX_ROWS * BLOCK / PACK) : (T *)S;
            K = (T *)source.take(KEYS * row);
            V = (T *)source.take(BLOCK * v_row);
        }
    };

    // The sums over part of the keys, as save() leaves them for merge().
    struct PartialSums {
        float *m, *l;  // [MAX_ROWS]
        float *O;      // [MAX_ROWS][PARTS][Dv_row]

        template <class Source>
        PartialSums(const heedful_problem &p, Source &source) {
            m = source.take(MAX_ROWS), l = source.take(MAX_ROWS);
            O = source.take(MAX_ROWS * PARTS * padded(words(p.Dv)));
        }
    };

    const heedful_problem &p;
    const QueryRows<MAX_ROWS> rows;
    const KeyVisibility<MAX_ROWS> visibility;
    const Dropout<MAX_ROWS> dropout;
    const int64_t D, Dv, D_words, Dv_words, D_row, Dv_row;  // head sizes, in operands, and of rows in scratch
    const N *const key, *const value;                       // of key 0
    const Buffers buf;
    float m[MAX_ROWS], l[MAX_ROWS];  // maximum of the finished scores, Σ exp(scores − m) before dropout

    DecodeTile(const heedful_problem &problem, int64_t b, int64_t kv_head, int64_t first, Scratch scratch)
        : p(problem), rows(p, b, kv_head, first), visibility(p, rows), dropout(p, rows), D(p.D), Dv(p.Dv),
          D_words(words(D)), Dv_words(words(Dv)), D_row(padded(D_words)), Dv_row(padded(Dv_words)),
          key((const N *)p.key.data + b * p.key.batch + kv_head * p.key.head),
          value((const N *)p.value.data + b * p.value.batch + kv_head * p.value.head), buf(p, scratch) {}

    // Start with empty sums, or with the sink logits in them.
    void begin(bool with_sinks) {
        memset(buf.Q, 0, sizeof(float) * MAX_ROWS * D_row);
        for (int row = 0; row < rows.count; row++) {
            copy_row((const N *)p.query.data + rows.offset_in(p.query, row), D, buf.Q + row * D_row);
            begin_softmax(with_sinks && p.sinks ? p.sinks[rows.head(row)] : -INFINITY, m[row], l[row]);
        }
        memset(buf.O, 0, sizeof(float) * rows.count * PARTS * Dv_row);
    }

    // Add the keys [first, last) to the sums.
    void attend(int64_t first, int64_t last) {
        for (int64_t k = visibility.next(first); k < last; k = visibility.next(k + BLOCK)) {
            const int64_t end = visibility.end(k, k + BLOCK < last ? k + BLOCK : last), count = end - k;
            const bool partial = !visibility.all_see(k, end);
            bool seen[BLOCK] = {};  // whether any row sees the key
            compute_scores(k, count);
            for (int row = 0; row < rows.count; row++) {
                finish_scores(row, k, count);
                if (partial) mask_scores(row, k, count, seen);
                compute_weights(row, k, count);
            }
            accumulate_values(k, count, partial ? seen : nullptr);
        }
    }

    // Compute the dot products of all rows with a block of keys, key by key in the order of memory. The last key
    // repeats up to a multiple of KEYS. Meanwhile their values are fetched from memory.
    void compute_scores(int64_t k, int64_t count) {
        const bool in_place = AS_THEY_LIE && D % (W * PACK) == 0;
        for (int64_t r = 0; r < count; r += KEYS) {
            const T *keys[KEYS];
            for (int j = 0; j < KEYS; j++) {
                const int64_t at = k + (r + j < count ? r + j : count - 1);
                const N *from = key + at * p.key.token;
                prefetch_row(value + at * p.value.token, Dv);
                keys[j] = in_place ? (const T *)from : buf.K + j * D_row;
                if (!in_place) copy_padded(from, D, buf.K + j * D_row, D_row);
            }
            for (int row = 0; row < rows.count; row += ROWS)
                compute_dots(buf.Q + row * D_row, keys, buf.S + row * BLOCK + r);
        }
    }

    // Copy `count` numbers to a row of `row` operands that ends with zeros; nullptr gives zeros alone.
    void copy_padded(const N *from, int64_t count, T *to, int64_t row) const {
        memset(to, 0, sizeof(T) * row);
        if (from) copy_row(from, count, to);
    }

    // The dot products of KEYS keys with ROWS query rows.
    void compute_dots(const T *q, const T *const keys[KEYS], float *to) const {
        F sums[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) sums[i] = F{};
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; j++)  // one key after the other: sequential reads are the fastest
            for (int64_t at = 0; at < D_words; at += W) {
                const Vector numbers = load(keys[j] + at);
#pragma GCC unroll 4
                for (int i = 0; i < ROWS; i++)
                    sums[i * KEYS + j] = multiply_add(numbers, load(q + i * D_row + at), sums[i * KEYS + j]);
            }
        const F dots = sums_of(sums);
        for (int i = 0; i < ROWS; i++) memcpy(to + i * BLOCK, (const float *)&dots + i * KEYS, sizeof(float) * KEYS);
    }

    // Scale, soft-cap and bias of a row's scores, and −∞ beyond `count`.
    void finish_scores(int row, int64_t k, int64_t count) {
        float *s = buf.S + row * BLOCK;
        for (int64_t r = 0; r < count; r += W) {
            const F dot = load(s + r);
            store(s + r, p.softcap ? tanh(dot * (p.scale / p.softcap)) * p.softcap : dot * p.scale);
        }
        if (p.bias.data) {
            const float *bias = (const float *)p.bias.data + rows.offset_in(p.bias, row) + k * p.bias.key;
            for (int64_t r = 0; r < count; r++) s[r] += bias[r * p.bias.key];
        }
        for (int64_t r = count; r < BLOCK; r++) s[r] = -INFINITY;
    }

    // Set the scores of invisible keys to −∞, and mark the others as seen.
    void mask_scores(int row, int64_t k, int64_t count, bool *seen) {
        float *s = buf.S + row * BLOCK;
        const uint8_t *mask =
            p.mask.data ? (const uint8_t *)p.mask.data + rows.offset_in(p.mask, row) + k * p.mask.key : nullptr;
        for (int64_t r = 0; r < count; r++) {
            if (visibility.lane_sees(k + r, row) && (!mask || mask[r * p.mask.key]))
                seen[r] = true;
            else
                s[r] = -INFINITY;
        }
    }

    // P = exp(S − m) in place of the row's scores, added to l, then dropped out.
    void compute_weights(int row, int64_t k, int64_t count) {
        float *s = buf.S + row * BLOCK;
        F highest = splat(-INFINITY);
        for (int64_t r = 0; r < BLOCK; r += W) highest = maximum_of(highest, load(s + r));
        update_maximum(row, highest_of(highest));
        const F maximum = splat(m[row]);
        F sum{};
        for (int64_t r = 0; r < BLOCK; r += W) {
            const F weight = exp2<DEGREE<N>>((load(s + r) - maximum) * LOG2_E);
            sum += weight;
            store(s + r, weight);
        }
        l[row] += sum_of(sum);
        if (p.dropout_p > 0)
            for (int64_t r = 0; r < count; r++)
                if (!dropout.lane_keeps(k + r, row)) s[r] = 0.0f;
        if constexpr (PAIRS)
            for (int64_t r = 0; r < BLOCK; r += W) store_row(buf.P + (row * BLOCK + r) / PACK, load(s + r));
    }

    // Raise m if the block's highest score leaves it too far behind, and rescale the sums made with the old m.
    void update_maximum(int row, float highest) {
        if (!(highest > m[row] + LAG * LN_2)) return;
        const F correction = exp2<5>(splat((m[row] - highest) * LOG2_E));
        m[row] = highest, l[row] *= correction[0];
        float *o = buf.O + row * PARTS * Dv_row;
        for (int64_t d = 0; d < PARTS * Dv_row; d += W) store(o + d, load(o + d) * correction);
    }

    // O += P V, without reading the values of keys that no row sees.
    void accumulate_values(int64_t k, int64_t count, const bool *seen) {
        const N *from = value + k * p.value.token;
        const T *B = (const T *)from;
        int64_t b_k = p.value.token / PACK;
        if (!AS_THEY_LIE || seen || Dv % (W * PACK) || p.value.token % PACK) {
            B = buf.V, b_k = Dv_row;
            for (int64_t r = 0; r < count; r++)
                copy_padded(!seen || seen[r] ? from + r * p.value.token : nullptr, Dv, buf.V + r * b_k, b_k);
        }
        constexpr int64_t WIDE_VECTORS = PAIRS ? 2 : ACCUMULATORS / 3;
        int64_t d = 0;
        for (; d + WIDE_VECTORS * W <= Dv_words; d += WIDE_VECTORS * W)
            accumulate_columns<WIDE_VECTORS>(B + d, b_k, count, buf.O + d);
        for (; d < Dv_words; d += W) accumulate_columns<1>(B + d, b_k, count, buf.O + d);
    }

    // VECTORS vectors of each value at once: as many as the registers hold for a few query rows.
    template <int VECTORS>
    void accumulate_columns(const T *B, int64_t b_k, int64_t count, float *to) const {
        if constexpr (PAIRS) {
            int row = 0;
            for (; row + 4 <= rows.count; row += 4) accumulate_pairs<4, VECTORS>(row, B, b_k, count, to);
            for (; row < rows.count; row++) accumulate_pairs<1, VECTORS>(row, B, b_k, count, to);
        } else {
            row_tiles<2, VECTORS, true>(rows.count, buf.P, BLOCK, 1, B, b_k, count, to, Dv_row);
        }
    }

    // COUNT query rows from `first`. An odd last value is paired with zeros.
    template <int COUNT, int VECTORS>
    __attribute__((always_inline)) void accumulate_pairs(int first, const T *B, int64_t b_k, int64_t count, float *to) const {
        F sums[COUNT][VECTORS][2];
        for (auto &row : sums)
            for (auto &vector : row) vector[0] = vector[1] = F{};
        for (int64_t r = 0; r < count; r += 2) {
            const T *even = B + r * b_k, *odd = r + 1 < count ? even + b_k : nullptr;
#pragma GCC unroll 2
            for (int j = 0; j < VECTORS; j++) {
                Vector low, high;
                pair_numbers(load(even + j * W), odd ? load(odd + j * W) : Vector{}, low, high);
#pragma GCC unroll 4
                for (int i = 0; i < COUNT; i++) {
                    const Vector weights = broadcast(buf.P + ((first + i) * BLOCK + r) / PACK);
                    sums[i][j][0] = multiply_add(weights, low, sums[i][j][0]);
                    sums[i][j][1] = multiply_add(weights, high, sums[i][j][1]);
                }
            }
        }
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < VECTORS; j++)
                for (int part = 0; part < 2; part++) {
                    float *o = to + ((first + i) * PARTS + part) * Dv_row + j * W;
                    store(o, load(o) + sums[i][j][part]);
                }
    }

    void save(Scratch memory) const {
        const PartialSums to(p, memory);
        memcpy(to.m, m, sizeof m);
        memcpy(to.l, l, sizeof l);
        memcpy(to.O, buf.O, sizeof(float) * rows.count * PARTS * Dv_row);
    }

    // Add the sums over other keys.
    void merge(Scratch memory) {
        const PartialSums from(p, memory);
        for (int row = 0; row < rows.count; row++) {
            const float raised = fmaxf(m[row], from.m[row]);
            const F keep = exp2<5>(splat((m[row] - raised) * LOG2_E));
            const F add = exp2<5>(splat((from.m[row] - raised) * LOG2_E));
            m[row] = raised;
            l[row] = l[row] * keep[0] + from.l[row] * add[0];
            float *o = buf.O + row * PARTS * Dv_row;
            const float *theirs = from.O + row * PARTS * Dv_row;
            for (int64_t d = 0; d < PARTS * Dv_row; d += W) store(o + d, load(o + d) * keep + load(theirs + d) * add);
        }
    }

    // Divide by l, and write each row of the output and its log-sum-exp.
    void write_output() {
        for (int row = 0; row < rows.count; row++) {
            float *o = buf.O + row * PARTS * Dv_row;
            if constexpr (PAIRS) o = join_features(o);
            write_row<N>(p, rows.b, rows.head(row), rows.query(row), o, m[row], l[row]);
        }
    }

    // Put the features of a row in order: of 8 neighbours, the first 4 are in o[0][Dv_row], the others in o[1][Dv_row].
    float *join_features(const float *o) {
        float *row = (float *)buf.V;  // [2 * Dv_row]
        for (int64_t d = 0; d < Dv_row; d += 4) {
            memcpy(row + 2 * d, o + d, 4 * sizeof(float));
            memcpy(row + 2 * d + 4, o + Dv_row + d, 4 * sizeof(float));
        }
        return row;
    }
};

}  // namespace heedful::HEEDFUL_ISA
