// The forward pass of one tile of query rows. The scores are transposed, so that each query keeps its lane from the dot
// products to the final division, and nothing is ever reduced across a vector.
//
//   Sᵀ = K Qᵀ         keys down, queries across; the numbers of K are broadcast from where they lie
//   m, l              the running maximum and normalizer of each lane (online_softmax.h)
//   Oᵀ += Vᵀ Pᵀ       O is transposed back once, at the end
//
// The names are those of FlashAttention-2 (arXiv 2307.08691, algorithm 1); P and O are not divided by l before the end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "block_products.h"
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

template <class N, bool PAIRS, int LANES>
struct ForwardTile {
    using T = Operand<PAIRS>;
    static constexpr int64_t PACK = NUMBERS_IN<T>;

    // What a tile keeps from one block of keys to the next.
    struct QueryBuffers {
        T *Q;          // [D_words][LANES], queries; negated if the scale is negative
        float *O;      // [Dv][LANES], Σ P V
        float *m, *l;  // [LANES], maximum of S; Σ exp(scores − m) before dropout

        template <class Source>
        QueryBuffers(const heedful_problem &p, Source &source) {
            Q = (T *)source.take(operands<T>(p.D) * LANES);
            O = source.take(whole_steps<T>(p.Dv) * LANES);
            m = source.take(LANES), l = source.take(LANES);
        }
    };

    // What it does not keep, and several tiles may share.
    struct BlockBuffers {
        float *S;  // [BLOCK][LANES], dot products, or finished scores
        T *P;      // [BLOCK / PACK][LANES], weights exp(scores − m) after dropout; floats take the place of S
        T *K;      // the block's keys, if they must be copied
        T *V;      // the block's values likewise; write_output() puts W rows of O there

        template <class Source>
        BlockBuffers(const heedful_problem &p, Source &source) {
            S = source.take(BLOCK * LANES);
            P = PAIRS ? (T *)source.take(BLOCK / PACK * LANES) : (T *)S;
            K = (T *)source.take(BLOCK * operand_row<T>(p.D));
            V = (T *)source.take(BLOCK / PACK * padded(p.Dv));
        }
    };

    struct Buffers : QueryBuffers, BlockBuffers {
        template <class Source>
        Buffers(const heedful_problem &p, Source &source) : QueryBuffers(p, source), BlockBuffers(p, source) {}

        Buffers(const QueryBuffers &own, const BlockBuffers &shared) : QueryBuffers(own), BlockBuffers(shared) {}
    };

    // The sums over part of the keys, as save() leaves them for merge().
    struct PartialSums {
        float *m, *l;  // [LANES]
        float *O;      // [Dv][LANES]

        template <class Source>
        PartialSums(const heedful_problem &p, Source &source) {
            m = source.take(LANES), l = source.take(LANES);
            O = source.take(p.Dv * LANES);
        }
    };

    const heedful_problem &p;
    const QueryRows<LANES> rows;
    const KeyVisibility<LANES> visibility;
    const Dropout<LANES> dropout;
    const int64_t D, Dv, D_words;
    const bool finished;        // whether S becomes finished scores, one by one, before the softmax
    const float missing_scale;  // the positive factor that S and m still lack; the exponential function includes it
    const Buffers buf;
    ValueCache<N> *const cache;  // shared by several tiles, or nullptr
    bool key_seen[BLOCK];  // whether any lane sees the key; set for partially visible blocks only

    ForwardTile(const heedful_problem &problem, int64_t b, int64_t kv_head, int64_t first, Scratch scratch)
        : ForwardTile(problem, b, kv_head, first, Buffers(problem, scratch), nullptr) {}

    ForwardTile(const heedful_problem &problem, int64_t b, int64_t kv_head, int64_t first, const Buffers &buffers,
                ValueCache<N> *values)
        : p(problem), rows(p, b, kv_head, first), visibility(p, rows), dropout(p, rows), D(p.D), Dv(p.Dv),
          D_words(operands<T>(D)), finished(finishes_scores()), missing_scale(finished ? 1.0f : fabsf(p.scale)),
          buf(buffers), cache(values) {}

    // Whether S becomes finished scores, one by one, before the softmax. Otherwise it stays dot products.
    // - The soft-cap is no factor, and the bias is added to scaled dot products.
    // - A sink logit is a finished score. The running maximum starts with it, so the others must have the same unit.
    // - A scale near 0 as a factor of the exponent would make NaN of 0 · −∞.
    bool finishes_scores() const { return p.softcap != 0 || p.bias.data || p.sinks || fabsf(p.scale) < 1e-30f; }

    // Exponents of 2 from differences of S. The difference comes first, so that the largest score has the weight 1 exactly.
    F exponents(F differences) const { return differences * (missing_scale * LOG2_E); }

    // Start with empty sums, or with the sink logits in them.
    void begin(bool with_sinks) {
        load_queries();
        for (int lane = 0; lane < LANES; lane++) {
            const float sink = with_sinks && p.sinks && lane < rows.count ? p.sinks[rows.head(lane)] : -INFINITY;
            begin_softmax(sink, buf.m[lane], buf.l[lane]);
        }
        memset(buf.O, 0, sizeof(float) * whole_steps<T>(Dv) * LANES);
    }

    // A block whose weights are in P, and whose values are operands.
    struct WeightedBlock {
        KeyBlock<LANES> keys;
        OperandColumns<PAIRS> values;
    };

    // Add the keys [first, last) to the sums. Tile registers load P from the cache, which its stores take a while to reach:
    // a block's values are added up after the next block's scores.
    void attend(int64_t first, int64_t last) {
        std::optional<WeightedBlock> waiting;
        for (int64_t k = next_block(first); k < last; k = next_block(k + BLOCK)) {
            const KeyBlock<LANES> block = visibility.block(k, k + BLOCK < last ? k + BLOCK : last);
            compute_scores(block);
            if (waiting) accumulate_values(*waiting);
            waiting = weigh(block);
            if constexpr (!BY_TILES<T>) accumulate_values(*waiting), waiting.reset();
        }
        if (waiting) accumulate_values(*waiting);
    }

    // The first key of the next block. By tiles, blocks begin at multiples of BLOCK, so that several tiles share values.
    int64_t next_block(int64_t first) const {
        const int64_t next = visibility.next(first);
        return BY_TILES<T> ? next / BLOCK * BLOCK : next;
    }

    // Turn the scores of a block into weights.
    WeightedBlock weigh(const KeyBlock<LANES> &block) {
        if (finished) finish_scores(block);
        if (block.partial) mask_scores(block);
        const bool *seen = block.partial ? find_seen_keys(block) : nullptr;
        for (int lane = 0; lane < LANES; lane += W) {
            update_maximum(lane, block.span(lane));
            compute_weights(lane, block);
        }
        return {block, columns_of(rows_of(p.value, block, Dv, seen), block.first)};
    }

    OperandColumns<PAIRS> columns_of(const KeyRows<N> &values, int64_t first) const {
        if constexpr (BY_TILES<T>)
            if (cache && cache->has_room_for(values)) return cache->columns(values, first);
        return {values, buf.V};
    }

    void load_queries() {
        // A negative scale changes the signs of the queries, so that the largest score remains the largest.
        load_lanes<N, PAIRS, LANES>([&](int lane) { return (const N *)p.query.data + rows.offset_in(p.query, lane); },
                                    rows.count, D, !finished && p.scale < 0, buf.Q);
    }

    // Sᵀ = K Qᵀ, with the keys as they lie if their type allows it.
    void compute_scores(const KeyBlock<LANES> &block) {
        const OperandRows<PAIRS> keys(rows_of(p.key, block, D, nullptr), buf.K);
        product_with_keys(block, keys, buf.Q, D_words, buf.S);
    }

    KeyRows<N> rows_of(const heedful_tensor &tensor, const KeyBlock<LANES> &block, int64_t size, const bool *seen) const {
        const N *head = (const N *)tensor.data + rows.b * tensor.batch + rows.kv_head * tensor.head;
        return {head + block.first * tensor.token, tensor.token, block.count, size, seen};
    }

    // Scale, soft-cap and bias.
    void finish_scores(const KeyBlock<LANES> &block) {
        const float cap = p.softcap, inner_scale = cap ? p.scale / cap : p.scale;
        for (int64_t i = 0; i < block.count * LANES; i += W) {
            const F s = load(buf.S + i) * inner_scale;
            store(buf.S + i, cap ? tanh(s) * cap : s);
        }
        if (p.bias.data) add_bias(block.first, block.count);
    }

    void add_bias(int64_t k, int64_t count) {
        const auto row_of = [&](int lane) {
            return (const float *)p.bias.data + rows.offset_in(p.bias, lane) + k * p.bias.key;
        };
        if (p.bias.key != 1) {
            for (int lane = 0; lane < rows.count; lane++)
                for (int64_t r = 0; r < count; r++) buf.S[r * LANES + lane] += row_of(lane)[r * p.bias.key];
            return;
        }
        for (int lane = 0; lane < rows.count; lane += W)
            for (int64_t r = 0; r < count; r += W) {
                F v[W];
                for (int i = 0; i < W; i++)
                    v[i] = lane + i < rows.count ? lane_vector(row_of(lane + i), r, count) : F{};
                transpose(v);
                for (int i = 0; i < W && r + i < count; i++) {
                    float *s = buf.S + (r + i) * LANES + lane;
                    store(s, load(s) + v[i]);
                }
            }
    }

    // Set the scores of invisible keys to −∞.
    void mask_scores(const KeyBlock<LANES> &block) {
        const F hidden = splat(-INFINITY);
        for (int lane = 0; lane < LANES; lane += W)
            for (int64_t r = block.span(lane).first; r < block.span(lane).last; r++) {
                float *s = buf.S + r * LANES + lane;
                store(s, visibility.sees(block.first + r, lane) ? load(s) : hidden);
            }
        if (p.mask.data) apply_mask(block.first, block.count);
    }

    void apply_mask(int64_t k, int64_t count) {
        for (int64_t r = 0; r < count; r++)  // idle lanes, which have no mask, must not make a key count as seen
            for (int lane = rows.count; lane < LANES; lane++) buf.S[r * LANES + lane] = -INFINITY;
        for (int lane = 0; lane < rows.count; lane++) {
            const uint8_t *mask = (const uint8_t *)p.mask.data + rows.offset_in(p.mask, lane) + k * p.mask.key;
            for (int64_t r = 0; r < count; r++)
                if (!mask[r * p.mask.key]) buf.S[r * LANES + lane] = -INFINITY;
        }
    }

    // Find the keys with any weight, nullptr if all have. The values of the others are not read, so that NaN there does
    // no harm.
    const bool *find_seen_keys(const KeyBlock<LANES> &block) {
        bool all = true;
        for (int64_t r = 0; r < block.count; r++) {
            I lanes{};
            for (int lane = 0; lane < LANES; lane += W)
                if (block.span(lane).contains(r)) lanes |= load(buf.S + r * LANES + lane) != -INFINITY;
            all &= key_seen[r] = any(lanes);
        }
        return all ? nullptr : key_seen;
    }

    // Raise m to the largest scores of a vector's span where it lags too far behind, and rescale the sums made with the
    // old m.
    void update_maximum(int lane, Span span) {
        const float lag = LAG * LN_2 / missing_scale;
        const float *s = buf.S + span.first * LANES + lane;
        F a = splat(-INFINITY), b = a, c = a, d = a;
        int64_t r = span.first;
        for (; r + 4 <= span.last; r += 4, s += 4 * LANES) {
            a = maximum_of(a, load(s)), b = maximum_of(b, load(s + LANES));
            c = maximum_of(c, load(s + 2 * LANES)), d = maximum_of(d, load(s + 3 * LANES));
        }
        for (; r < span.last; r++, s += LANES) a = maximum_of(a, load(s));
        const F highest = maximum_of(maximum_of(a, b), maximum_of(c, d)), old = load(buf.m + lane);
        if (!any(highest > old + lag)) return;
        const F raised = maximum_of(old, highest);
        const F correction = exp2<5>(exponents(old - raised));
        store(buf.m + lane, raised);
        store(buf.l + lane, load(buf.l + lane) * correction);
        for (int64_t v = 0; v < Dv; v++) {
            float *o = buf.O + v * LANES + lane;
            store(o, load(o) * correction);
        }
    }

    // Pᵀ = exp(scores − m), added to l, then dropped out and stored as operands of the second product.
    void compute_weights(int lane, const KeyBlock<LANES> &block) {
        const Span span = block.span(lane);
        const F m = load(buf.m + lane), factor = splat(missing_scale * LOG2_E);
        const bool drops = p.dropout_p > 0;  // kept, as the factor is: a store might change what p refers to
        F sums[2] = {};
        for (int64_t r = span.first; r < span.last; r += 2) {
            F pair[2];
            for (int i = 0; i < 2; i++) {
                if (r + i >= span.last) {
                    pair[i] = F{};
                    continue;
                }
                pair[i] = exp2<DEGREE<N>>((load(buf.S + (r + i) * LANES + lane) - m) * factor);
                sums[i] += pair[i];
                if (drops) pair[i] = dropout.keeps(block.first + r + i, lane) ? pair[i] : F{};
            }
            store_weights(r, span.last, lane, pair);
        }
        if constexpr (PAIRS) store_no_weights(span, lane);
        store(buf.l + lane, load(buf.l + lane) + (sums[0] + sums[1]));
    }

    void store_weights(int64_t r, int64_t count, int lane, const F pair[2]) {
        if constexpr (PAIRS) {
            store_pairs(buf.P + r / 2 * LANES + lane, pair[0], pair[1]);
        } else {
            store(buf.P + r * LANES + lane, pair[0]);
            if (r + 1 < count) store(buf.P + (r + 1) * LANES + lane, pair[1]);
        }
    }

    // Store zeros outside a vector's span, where its last operands are whole.
    void store_no_weights(Span span, int lane) {
        const Span whole = whole_operands<T>(span);
        const F none[2] = {};
        for (int64_t r = whole.first; r < span.first; r += 2) store_weights(r, whole.last, lane, none);
        for (int64_t r = (span.last + 1) / 2 * 2; r < whole.last; r += 2) store_weights(r, whole.last, lane, none);
    }

    // Oᵀ += Vᵀ Pᵀ. The values of keys that no lane sees have not been read.
    void accumulate_values(const WeightedBlock &block) {
        product_over_keys(block.keys, Dv, block.values, buf.P, buf.O);
    }

    void save(Scratch memory) const {
        const PartialSums to(p, memory);
        memcpy(to.m, buf.m, sizeof(float) * LANES);
        memcpy(to.l, buf.l, sizeof(float) * LANES);
        memcpy(to.O, buf.O, sizeof(float) * Dv * LANES);
    }

    // Add the sums over other keys.
    void merge(Scratch memory) {
        const PartialSums from(p, memory);
        for (int lane = 0; lane < LANES; lane += W) {
            const F ours = load(buf.m + lane), theirs = load(from.m + lane), raised = maximum_of(ours, theirs);
            const F keep = exp2<5>(exponents(ours - raised)), add = exp2<5>(exponents(theirs - raised));
            store(buf.m + lane, raised);
            store(buf.l + lane, load(buf.l + lane) * keep + load(from.l + lane) * add);
            for (int64_t d = 0; d < Dv; d++) {
                float *o = buf.O + d * LANES + lane;
                store(o, load(o) * keep + load(from.O + d * LANES + lane) * add);
            }
        }
    }

    // Divide by l, and write each lane's row of the output and its log-sum-exp.
    void write_output() {
        static_assert(BLOCK / PACK >= W);
        float *row = (float *)buf.V;  // [W][padded(Dv)]
        for (int lane = 0; lane < rows.count; lane += W) {
            for (int64_t d = 0; d < Dv; d += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = d + i < Dv ? load(buf.O + (d + i) * LANES + lane) : F{};
                transpose(v);
                for (int i = 0; i < W; i++) store(row + i * padded(Dv) + d, v[i]);
            }
            for (int i = lane; i < lane + W && i < rows.count; i++)
                write_row<N>(p, rows.b, rows.head(i), rows.query(i), row + (i - lane) * padded(Dv),
                             buf.m[i] * missing_scale, buf.l[i]);
        }
    }
};

}  // namespace heedful::HEEDFUL_ISA
