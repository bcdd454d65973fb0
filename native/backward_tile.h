// The backward pass of one tile of query rows: queries outside, keys inside (FlashAttention-2, arXiv 2307.08691,
// section 3.2, with the loops exchanged). The weights P are recomputed from the log-sum-exp L, and all five products
// are the one of product.h:
//
//   Sᵀ = K Qᵀ, dPᵀ = V dOᵀ            queries in the lanes, as in the forward pass
//   dQᵀ += Kᵀ dSᵀ                      likewise; complete after the tile's last key
//   dV += Pᵀ dO, dK += dSᵀ Q           head sizes in the lanes; sums over all queries of the heads, in float32
//
// Here P = exp(S − L), dS = P ∘ (dP − δ) and δ = Σ dO ∘ O − dL; soft-cap, dropout and scale are applied where they arise.
// Where float32 rounds a large L too coarsely, P = exp(S − m) / l takes its place, with m and l of the recomputed scores;
// so it does in heads of few rows, whose scores DecodeTile rounds in another order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "block_products.h"
#include "dropout.h"
#include "heedful.h"
#include "key_visibility.h"
#include "number.h"
#include "online_softmax.h"
#include "operands.h"
#include "product.h"
#include "query_rows.h"
#include "scratch.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

constexpr int64_t ROWS_TO_SPARE = HAS_TILES ? TILE - 1 : 0;

// The sums of dK and dV of one key/value head, of which dK still lacks the scale.
struct KeyValueGradients {
    float *dK, *dV;  // [Tk][D_row], [Tk][Dv_row], with room for the rows that products compute in whole steps
    int64_t D_row, Dv_row;

    template <class Source>
    KeyValueGradients(const heedful_problem &p, Source &source) {
        D_row = padded(p.D), Dv_row = padded(p.Dv);
        dK = source.take((p.Tk + ROWS_TO_SPARE) * D_row);
        dV = source.take((p.Tk + ROWS_TO_SPARE) * Dv_row);
    }
};

template <class N, bool PAIRS, int LANES>
struct BackwardTile {
    using T = Operand<PAIRS>;
    static constexpr int64_t PACK = NUMBERS_IN<T>;

    // Pairs hold two neighbours along the dimension that their product sums over, which their shape divides by PACK.
    struct Buffers {
        T *Q_lanes;   // [D / PACK][LANES], queries
        T *Q_rows;    // [LANES / PACK][D_row], the same
        T *dO_lanes;  // [Dv / PACK][LANES], gradients of the output
        T *dO_rows;   // [LANES / PACK][Dv_row], the same
        float *dQ;    // [D_row][LANES], Σ Kᵀ dSᵀ, which still lacks the scale
        float *S;     // [BLOCK][LANES], dot products, which still lack the scale
        float *dP;    // [BLOCK][LANES]
        float *bias;  // [BLOCK][LANES], in units of finished scores: bias, and −∞ where the mask hides the key
        T *K;         // the block's keys, if they must be copied
        T *V;         // the block's values likewise
        T *P;         // [BLOCK][LANES / PACK], weights after dropout
        T *dS;        // [BLOCK][LANES / PACK], gradients of the dot products, which still lack the scale
        T *dS_keys;   // [BLOCK / PACK][LANES], the same; for floats it is dS
        T *K_keys;    // the block's keys as operands along the keys; for pairs only
        float *m;          // [LANES], what is subtracted from the scores: L, or their maximum; +∞ in inactive lanes
        float *inverse_l;  // [LANES], 1 / Σ exp(scores − m), which is 1 for m = L
        float *delta;      // [LANES], δ

        template <class Source>
        Buffers(const heedful_problem &p, Source &source) {
            const int64_t row = padded(p.D), v_row = padded(p.Dv);
            Q_lanes = (T *)source.take(operands<T>(p.D) * LANES);
            Q_rows = (T *)source.take(LANES / PACK * row);
            dO_lanes = (T *)source.take(operands<T>(p.Dv) * LANES);
            dO_rows = (T *)source.take(LANES / PACK * v_row);
            dQ = source.take(row * LANES);
            S = source.take(BLOCK * LANES), dP = source.take(BLOCK * LANES), bias = source.take(BLOCK * LANES);
            K = (T *)source.take(BLOCK * operand_row<T>(p.D)), V = (T *)source.take(BLOCK * operand_row<T>(p.Dv));
            P = (T *)source.take(BLOCK * LANES / PACK), dS = (T *)source.take(BLOCK * LANES / PACK);
            dS_keys = PAIRS ? (T *)source.take(BLOCK / PACK * LANES) : dS;
            K_keys = PAIRS ? (T *)source.take(BLOCK / PACK * row) : nullptr;
            m = source.take(LANES), inverse_l = source.take(LANES), delta = source.take(LANES);
        }
    };

    const heedful_gradient &g;
    const heedful_problem &p;
    const QueryRows<LANES> rows;
    const KeyVisibility<LANES> visibility;
    const Dropout<LANES> dropout;
    const KeyValueGradients sums;
    const float survivors;               // the factor of weights that dropout keeps
    const int64_t D, Dv, D_row, Dv_row;  // head sizes, and those of rows in scratch
    const Buffers buf;
    bool active[LANES];  // whether the lane has a query that sees any key
    bool L_suffices;     // whether P = exp(S − L) is exact enough in every lane

    BackwardTile(const heedful_gradient &gradient, int64_t b, int64_t kv_head, int64_t first,
                 const KeyValueGradients &key_value_gradients, Scratch scratch)
        : g(gradient), p(g.forward), rows(p, b, kv_head, first), visibility(p, rows), dropout(p, rows),
          sums(key_value_gradients), survivors(survivor_scale(p)), D(p.D), Dv(p.Dv), D_row(padded(D)),
          Dv_row(padded(Dv)), buf(p, scratch) {}

    void run() {
        load_rows();
        if (!L_suffices) normalize_again();
        for_each_block([this](const KeyBlock<LANES> &block) {
            const int64_t k = block.first;
            const bool only_block = k == visibility.next(0) && visibility.next(k + BLOCK) >= p.Tk;
            differentiate_block(block, only_block);
        });
        write_dQ();
    }

    // Call work(block) for each block of keys that any lane sees.
    template <class Work>
    void for_each_block(Work work) {
        for (int64_t k = visibility.next(0); k < p.Tk; k = visibility.next(k + BLOCK))
            work(visibility.block(k, k + BLOCK < p.Tk ? k + BLOCK : p.Tk));
    }

    const N *row_of(const heedful_tensor &tensor, int lane) const {
        return (const N *)tensor.data + rows.offset_in(tensor, lane);
    }

    // float32 rounds a larger L so that the weights are off by more than 4e-6, or 2e-4 before they are rounded to bf16.
    static constexpr float LARGEST_FINE_L = PAIRS ? 4096.0f : 64.0f;

    // Load Q, dO and L, and compute δ. An inactive lane gets zeros and a log-sum-exp of +∞, which makes its weights 0.
    void load_rows() {
        L_suffices = p.Tq * (p.Hq / p.Hkv) > FEW;
        for (int lane = 0; lane < LANES; lane++) {
            active[lane] = lane < rows.count && p.lse[rows.index(p, lane)] != -INFINITY;
            buf.m[lane] = active[lane] ? p.lse[rows.index(p, lane)] : INFINITY;
            buf.inverse_l[lane] = 1;
            buf.delta[lane] = 0;
            if (!active[lane]) continue;
            L_suffices &= fabsf(buf.m[lane]) <= LARGEST_FINE_L;
            buf.delta[lane] = dot(row_of(g.grad_output, lane), row_of(p.output, lane)) - dL(lane);
        }
        load_lanes_and_rows(p.query, D, D_row, buf.Q_lanes, buf.Q_rows);
        load_lanes_and_rows(g.grad_output, Dv, Dv_row, buf.dO_lanes, buf.dO_rows);
        memset(buf.dQ, 0, sizeof(float) * LANES * D_row);
    }

    float dL(int lane) const { return g.grad_lse ? g.grad_lse[rows.index(p, lane)] : 0.0f; }

    float dot(const N *one, const N *other) const {
        F sum{};
        for (int64_t d = 0; d < Dv; d += W) sum += lane_vector(one, d, Dv) * lane_vector(other, d, Dv);
        return sum_of(sum);
    }

    // The tile's rows of a tensor as operands, once across the lanes and once as rows of length `row`.
    void load_lanes_and_rows(const heedful_tensor &tensor, int64_t size, int64_t row, T *to_lanes, T *to_rows) const {
        const auto row_at = [&](int lane) { return active[lane] ? row_of(tensor, lane) : nullptr; };
        load_lanes<N, PAIRS, LANES>(row_at, rows.count, size, false, to_lanes);
        if constexpr (PAIRS)
            for (int lane = 0; lane < LANES; lane += 2)
                pair_rows(row_at(lane), row_at(lane + 1), size, to_rows + lane / 2 * row);
        else
            for (int lane = 0; lane < LANES; lane++) copy_row(row_at(lane), size, to_rows + lane * row);
    }

    // Add what a block of keys gives to all gradients.
    void differentiate_block(const KeyBlock<LANES> &block, bool only_block) {
        bool seen[BLOCK];
        const KeyRows<N> keys = load_keys(block, seen);
        const OperandRows<PAIRS> K = compute_S(block, keys);
        const OperandRows<PAIRS> V(rows_of(p.value, block, Dv, keys.seen), buf.V);
        product_with_keys(block, V, buf.dO_lanes, operands<T>(Dv), buf.dP);
        if (only_block) recompute_sums(block);
        compute_P_and_dS(block);
        if (g.grad_bias.data) accumulate_bias_gradient(block.first, block.count);
        accumulate_dQ(block, keys, K);
        product_over_lanes(block, Dv, buf.P, buf.dO_rows, Dv_row, sums.dV + block.first * Dv_row);
        product_over_lanes(block, D, buf.dS, buf.Q_rows, D_row, sums.dK + block.first * D_row);
    }

    KeyRows<N> rows_of(const heedful_tensor &tensor, const KeyBlock<LANES> &block, int64_t size, const bool *seen) const {
        const N *head = (const N *)tensor.data + rows.b * tensor.batch + rows.kv_head * tensor.head;
        return {head + block.first * tensor.token, tensor.token, block.count, size, seen};
    }

    // The block's keys, of which a partly visible block has only those that any lane sees. Also loads the bias.
    KeyRows<N> load_keys(const KeyBlock<LANES> &block, bool seen[BLOCK]) {
        if (p.mask.data || p.bias.data) load_bias(block.first, block.count);
        return rows_of(p.key, block, D, block.partial ? find_seen_keys(block, seen) : nullptr);
    }

    // Sᵀ = K Qᵀ
    OperandRows<PAIRS> compute_S(const KeyBlock<LANES> &block, const KeyRows<N> &keys) {
        const OperandRows<PAIRS> K(keys, buf.K);
        product_with_keys(block, K, buf.Q_lanes, operands<T>(D), buf.S);
        return K;
    }

    // Compute m and l from all recomputed scores, as the forward pass does.
    __attribute__((noinline)) void normalize_again() {
        alignas(64) float l[LANES];
        for (int lane = 0; lane < LANES; lane++)
            if (active[lane]) begin_softmax(p.sinks ? p.sinks[rows.head(lane)] : -INFINITY, buf.m[lane], l[lane]);
        for_each_block([&](const KeyBlock<LANES> &block) {
            bool seen[BLOCK];
            compute_S(block, load_keys(block, seen));
            for (int lane = 0; lane < LANES; lane += W) add_to_sums(block, lane, l);
        });
        for (int lane = 0; lane < LANES; lane++)
            if (active[lane] && l[lane] > 0) buf.inverse_l[lane] = 1 / l[lane];
    }

    // Add a block's scores to m and l of W lanes.
    void add_to_sums(const KeyBlock<LANES> &block, int lane, float l[LANES]) {
        const Span span = block.span(lane);
        const F old = load(buf.m + lane);
        F raised = old, capped;
        for (int64_t r = span.first; r < span.last; r++) {
            const F score = score_of(block, r, lane, capped);
            store(buf.dP + r * LANES + lane, score);
            raised = maximum_of(raised, score);
        }
        F sum = load(l + lane) * exp2<5>((old - raised) * LOG2_E);
        for (int64_t r = span.first; r < span.last; r++)
            sum = sum + exp2<5>((load(buf.dP + r * LANES + lane) - raised) * LOG2_E);
        for (int i = lane; i < lane + W; i++)
            if (active[i]) buf.m[i] = raised[i - lane], l[i] = sum[i - lane];
    }

    // dQᵀ += Kᵀ dSᵀ. Floats have been copied already, if they must be.
    void accumulate_dQ(const KeyBlock<LANES> &block, const KeyRows<N> &keys, const OperandRows<PAIRS> &K) {
        if constexpr (PAIRS)
            product_over_keys(block, D, OperandColumns<PAIRS>(keys, buf.K_keys), buf.dS_keys, buf.dQ);
        else
            product_over_keys(block, D, OperandColumns<PAIRS>(K), buf.dS_keys, buf.dQ);
    }

    // Load the bias, with −∞ where the mask hides the key.
    void load_bias(int64_t k, int64_t count) {
        const auto row_of = [&](int lane) {
            return active[lane] ? (const float *)p.bias.data + rows.offset_in(p.bias, lane) + k * p.bias.key : nullptr;
        };
        if (p.bias.data && p.bias.key == 1)
            load_lanes<float, false, LANES>(row_of, rows.count, count, false, buf.bias);
        else if (!p.bias.data)
            memset(buf.bias, 0, sizeof(float) * count * LANES);
        for (int lane = 0; lane < LANES; lane++) {
            if (active[lane] && p.bias.data && p.bias.key != 1)
                for (int64_t r = 0; r < count; r++) buf.bias[r * LANES + lane] = row_of(lane)[r * p.bias.key];
            if (!active[lane] || p.mask.data) hide_keys(lane, k, count);
        }
    }

    // Put −∞ in the place of the bias where the mask hides the key from a lane, and everywhere in an inactive lane.
    void hide_keys(int lane, int64_t k, int64_t count) {
        const uint8_t *mask =
            active[lane] ? (const uint8_t *)p.mask.data + rows.offset_in(p.mask, lane) + k * p.mask.key : nullptr;
        for (int64_t r = 0; r < count; r++)
            if (!mask || !mask[r * p.mask.key]) buf.bias[r * LANES + lane] = -INFINITY;
    }

    // Find the keys of the block that any lane sees, nullptr if all are seen.
    const bool *find_seen_keys(const KeyBlock<LANES> &block, bool seen[BLOCK]) const {
        bool all = true;
        for (int64_t r = 0; r < block.count; r++) {
            I lanes{};
            for (int lane = 0; lane < LANES; lane += W) {
                const I sees = visibility.sees(block.first + r, lane);
                lanes |= p.mask.data ? sees & (load(buf.bias + r * LANES + lane) != -INFINITY) : sees;
            }
            all &= seen[r] = any(lanes);
        }
        return all ? nullptr : seen;
    }

    // Recompute the sum of the weights, and correct δ by the mean of dP − δ, in a tile whose lanes see this block only.
    // They depend neither on the rounded L nor on the rounded output then. Such tiles are the first queries of a causal
    // head, whose gradients are the largest.
    __attribute__((noinline)) void recompute_sums(const KeyBlock<LANES> &block) {
        for (int lane = 0; lane < LANES; lane += W) {
            F sum{}, total{}, probability, weight, dS;
            for (int64_t r = block.span(lane).first; r < block.span(lane).last; r++) {
                compute_vector<false>(block, r, lane, probability, weight, dS);
                sum = sum + dS, total = total + probability;
            }
            for (int i = lane; i < lane + W; i++) {
                if (!active[i]) continue;
                const float sink = p.sinks ? expf(p.sinks[rows.head(i)] - buf.m[i]) * buf.inverse_l[i] : 0.0f;
                const float all = total[i - lane] + sink;
                if (!(all > 0)) continue;
                buf.delta[i] += (sum[i - lane] - sink * buf.delta[i]) / all - dL(i);  // the sink's dP is 0
                buf.inverse_l[i] /= all;
            }
        }
    }

    // From Sᵀ and dPᵀ, compute the weights as they multiplied the values, and dSᵀ without the scale. Both are 0 outside
    // the lanes' spans.
    void compute_P_and_dS(const KeyBlock<LANES> &block) {
        const int64_t count = whole_operands<T>({0, block.count}).last;
        for (int64_t r = 0; r < count; r += 2)
            for (int lane = 0; lane < LANES; lane += W) {
                F probability, weight[2], dS[2];
                for (int i = 0; i < 2; i++) {
                    weight[i] = dS[i] = F{};
                    if (block.span(lane).contains(r + i))
                        compute_vector<true>(block, r + i, lane, probability, weight[i], dS[i]);
                    else if (g.grad_bias.data && r + i < block.count)
                        store(buf.dP + (r + i) * LANES + lane, F{});
                }
                store_operands(r, lane, count, weight, dS);
            }
    }

    // The weights, before dropout and as they multiplied the values, and dS of one key and W lanes. dS is that of finished
    // scores, or if it is FINAL, that of dot products, and it is then added to the gradient of the bias.
    template <bool FINAL>
    __attribute__((always_inline)) void compute_vector(const KeyBlock<LANES> &block, int64_t r, int lane,
                                                       F &probability, F &weight, F &dS) const {
        F capped;
        const F score = score_of(block, r, lane, capped);
        // A weight is at most 1, even if rounding errors say otherwise.
        probability = exp2<DEGREE<N>>(minimum_of(F{}, (score - load(buf.m + lane)) * LOG2_E)) * load(buf.inverse_l + lane);
        weight = probability, dS = load(buf.dP + r * LANES + lane);
        if (p.dropout_p > 0) {
            const I keeps = dropout.keeps(block.first + r, lane);
            weight = keeps ? weight * survivors : F{};
            dS = keeps ? dS * survivors : F{};
        }
        dS = probability * (dS - load(buf.delta + lane));
        if (block.partial || biased()) dS = score == -INFINITY ? F{} : dS;
        if constexpr (!FINAL) return;
        if (g.grad_bias.data) store(buf.dP + r * LANES + lane, dS);  // for accumulate_bias_gradient()
        if (p.softcap) dS = dS * (1.0f - capped * capped);
    }

    bool biased() const { return p.mask.data || p.bias.data; }

    // The finished scores of one key and W lanes, −∞ where it is hidden; and, with a soft-cap, its tanh.
    __attribute__((always_inline)) F score_of(const KeyBlock<LANES> &block, int64_t r, int lane, F &capped) const {
        const float cap = p.softcap, inner_scale = cap ? p.scale / cap : p.scale;
        capped = load(buf.S + r * LANES + lane) * inner_scale;
        if (cap) capped = tanh(capped);
        F score = rounded(cap ? capped * cap : capped);
        if (biased()) score = score + load(buf.bias + r * LANES + lane);
        if (block.partial) score = visibility.sees(block.first + r, lane) ? score : splat(-INFINITY);
        return score;
    }

    // Store the weights and dS of the keys r and r + 1 as operands of the products.
    __attribute__((always_inline)) void store_operands(int64_t r, int lane, int64_t count, const F weight[2],
                                                       const F dS[2]) {
        if constexpr (PAIRS) store_pairs(buf.dS_keys + r / 2 * LANES + lane, dS[0], dS[1]);
        for (int i = 0; i < 2 && r + i < count; i++) {
            store_row(buf.P + ((r + i) * LANES + lane) / PACK, weight[i]);
            store_row(buf.dS + ((r + i) * LANES + lane) / PACK, dS[i]);
        }
    }

    // Add the gradients of finished scores, which took the place of dP, to the gradient of the bias.
    void accumulate_bias_gradient(int64_t k, int64_t count) const {
        for (int lane = 0; lane < rows.count; lane += W)
            for (int64_t r = 0; r < count; r += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = r + i < count ? load(buf.dP + (r + i) * LANES + lane) : F{};
                transpose(v);
                for (int i = 0; i < W && lane + i < rows.count; i++)
                    add_to_bias_gradient(lane + i, k + r, count - r < W ? count - r : W, v[i]);
            }
    }

    void add_to_bias_gradient(int lane, int64_t key, int64_t count, F gradients) const {
        float *to = (float *)g.grad_bias.data + rows.offset_in(g.grad_bias, lane) + key * g.grad_bias.key;
        if (count == W && g.grad_bias.key == 1)
            store(to, load(to) + gradients);
        else
            for (int i = 0; i < count; i++) to[i * g.grad_bias.key] += gradients[i];
    }

    void write_dQ() {
        for (int lane = 0; lane < rows.count; lane += W)
            for (int64_t d = 0; d < D; d += W) {
                F v[W];
                for (int i = 0; i < W; i++) v[i] = load(buf.dQ + (d + i) * LANES + lane);
                transpose(v);
                for (int i = 0; i < W && lane + i < rows.count; i++) {
                    alignas(64) float part[W];
                    store(part, v[i]);
                    narrow_row(part, D - d < W ? D - d : W, p.scale, (N *)row_of(g.grad_query, lane + i) + d);
                }
            }
    }
};

}  // namespace heedful::HEEDFUL_ISA
