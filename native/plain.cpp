// The plain kernels: attention as a textbook writes it, on float32 tensors with sums in double. The tests compare the
// other kernels with them. The forward pass takes four passes over a query's keys; the backward pass undoes them in
// reverse.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "export.h"
#include "heedful.h"
#include "validation.h"

namespace heedful::plain {

// One query of one head.
struct Row {
    int64_t b, h, kv_head, q;
};

static float *row_of(const heedful_tensor &x, int64_t b, int64_t h, int64_t t) {
    return (float *)x.data + b * x.batch + h * x.head + t * x.token;
}

template <class Number>
static Number *entry_of(const heedful_plane &x, const Row &row, int64_t k) {
    return (Number *)x.data + row.b * x.batch + row.h * x.head + row.q * x.query + k * x.key;
}

static double dot(const float *x, const float *y, int64_t size) {
    double sum = 0;
    for (int64_t d = 0; d < size; d++) sum += (double)x[d] * y[d];
    return sum;
}

static void add(double *sum, double factor, const float *x, int64_t size) {
    for (int64_t d = 0; d < size; d++) sum[d] += factor * x[d];
}

static void store(const double *sum, int64_t size, float *to) {
    for (int64_t d = 0; d < size; d++) to[d] = (float)sum[d];
}

static bool sees(const heedful_problem &p, const Row &row, int64_t k) {
    if (p.mask.data && !*entry_of<const uint8_t>(p.mask, row, k)) return false;
    if (!p.key_ranges) return true;
    const int64_t first = row.b * p.range_batch + row.q * p.key_ranges;
    for (int64_t range = first; range < first + p.key_ranges; range++)
        if (p.range_start[range] <= k && k < p.range_stop[range]) return true;
    return false;
}

static uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * 0x7FEB352Du;
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    return word ^ (word >> 16);
}

// The factor of dropout on a weight: 0 or 1 / (1 − p), drawn from (seed, batch entry, head, query, key).
static double dropout_factor(const heedful_problem &p, const Row &row, int64_t k) {
    if (p.dropout_p == 0) return 1;
    constexpr uint32_t GOLDEN = 0x9E3779B9u;
    uint32_t words[2] = {(uint32_t)p.seed, (uint32_t)(p.seed >> 32)};
    for (uint32_t &word : words)
        for (int64_t index : {row.b, row.h, row.q}) word = mix((uint32_t)index + word + GOLDEN);
    uint32_t draw = (uint32_t)k * GOLDEN + words[0];
    draw = (draw ^ (draw >> 16)) * 0x7FEB352Du;
    draw ^= words[1];
    draw = (draw ^ (draw >> 15)) * 0x846CA68Bu;
    draw ^= draw >> 16;
    return draw >= std::nearbyint(p.dropout_p * 0x1p32) ? 1 / std::fmax(1 - (double)p.dropout_p, 0x1p-32) : 0;
}

// Passes 1 to 3: compute the weights (Tk,) of a query's keys, before dropout. Returns the log-sum-exp.
static double compute_weights(const heedful_problem &p, const Row &row, double *weights) {
    const float *query = row_of(p.query, row.b, row.h, row.q);

    // 1. The scores and their maximum. Keys that the query does not see are not read.
    double maximum = p.sinks ? p.sinks[row.h] : -INFINITY;
    for (int64_t k = 0; k < p.Tk; k++) {
        weights[k] = -INFINITY;
        if (!sees(p, row, k)) continue;
        double score = p.scale * dot(query, row_of(p.key, row.b, row.kv_head, k), p.D);
        if (p.softcap != 0) score = p.softcap * std::tanh(score / p.softcap);
        if (p.bias.data) score += *entry_of<const float>(p.bias, row, k);
        weights[k] = score;
        maximum = std::fmax(maximum, score);
    }
    if (maximum == -INFINITY) maximum = 0;  // no key is visible: every exponential is 0

    // 2. The exponentials and their sum.
    double sum = p.sinks ? std::exp(p.sinks[row.h] - maximum) : 0;
    for (int64_t k = 0; k < p.Tk; k++) {
        weights[k] = std::exp(weights[k] - maximum);
        sum += weights[k];
    }

    // 3. The weights, which sum to 1 together with the sink's share.
    for (int64_t k = 0; k < p.Tk; k++) weights[k] = sum == 0 ? 0 : weights[k] / sum;
    return maximum + std::log(sum);
}

static void forward_row(const heedful_problem &p, const Row &row) {
    std::vector<double> weights(p.Tk), output(p.Dv);
    const double lse = compute_weights(p, row, weights.data());
    if (p.lse) p.lse[(row.b * p.Hq + row.h) * p.Tq + row.q] = (float)lse;

    // 4. The sum of the values, weighted.
    for (int64_t k = 0; k < p.Tk; k++)
        if (weights[k] != 0)
            add(output.data(), weights[k] * dropout_factor(p, row, k), row_of(p.value, row.b, row.kv_head, k), p.Dv);
    store(output.data(), p.Dv, row_of(p.output, row.b, row.h, row.q));
}

// The gradients that all queries of one key/value head add to.
struct HeadGradients {
    std::vector<double> key, value;  // (Tk, D), (Tk, Dv)
};

static void backward_row(const heedful_gradient &g, const Row &row, HeadGradients &sums) {
    const heedful_problem &p = g.forward;
    std::vector<double> weights(p.Tk), dP(p.Tk), grad_query(p.D);
    const double lse = compute_weights(p, row, weights.data());
    const float *query = row_of(p.query, row.b, row.h, row.q);
    const float *grad_output = row_of(g.grad_output, row.b, row.h, row.q);

    // 4. Gradients of the values and of the weights P. The mean of the latter, weighted by P, less the gradient of the
    // log-sum-exp is δ. The share of the weights that no key has is the sink's.
    double delta = g.grad_lse ? -g.grad_lse[(row.b * p.Hq + row.h) * p.Tq + row.q] : 0;
    double sink_weight = lse != -INFINITY;
    for (int64_t k = 0; k < p.Tk; k++) {
        if (weights[k] == 0) continue;
        const double factor = dropout_factor(p, row, k);
        add(&sums.value[k * p.Dv], factor * weights[k], grad_output, p.Dv);
        dP[k] = factor * dot(grad_output, row_of(p.value, row.b, row.kv_head, k), p.Dv);
        delta += weights[k] * dP[k];
        sink_weight -= weights[k];
    }

    // 3 and 2. Gradients of the scores, dS = P (dP − δ), and of the sink logit, whose value is 0.
    std::vector<double> dS(p.Tk);
    for (int64_t k = 0; k < p.Tk; k++) dS[k] = weights[k] * (dP[k] - delta);
    if (g.grad_sinks) g.grad_sinks[row.h] -= (float)(sink_weight * delta);

    // 1. Gradients of the bias, and of the two factors of each dot product.
    for (int64_t k = 0; k < p.Tk; k++) {
        if (weights[k] == 0) continue;
        if (g.grad_bias.data) *entry_of<float>(g.grad_bias, row, k) += (float)dS[k];
        const float *key = row_of(p.key, row.b, row.kv_head, k);
        const double capped = p.softcap != 0 ? std::tanh(p.scale * dot(query, key, p.D) / p.softcap) : 0;
        const double grad = dS[k] * (1 - capped * capped) * p.scale;
        add(grad_query.data(), grad, key, p.D);
        add(&sums.key[k * p.D], grad, query, p.D);
    }
    store(grad_query.data(), p.D, row_of(g.grad_query, row.b, row.h, row.q));
}

static void backward_head(const heedful_gradient &g, int64_t b, int64_t kv_head) {
    const heedful_problem &p = g.forward;
    const int64_t group = p.Hq / p.Hkv;
    HeadGradients sums{std::vector<double>(p.Tk * p.D), std::vector<double>(p.Tk * p.Dv)};
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int64_t q = 0; q < p.Tq; q++) backward_row(g, {b, h, kv_head, q}, sums);
    for (int64_t k = 0; k < p.Tk; k++) {
        store(&sums.key[k * p.D], p.D, row_of(g.grad_key, b, kv_head, k));
        store(&sums.value[k * p.Dv], p.Dv, row_of(g.grad_value, b, kv_head, k));
    }
}

static int64_t cell_index(const heedful_summary &s, const Row &row, int64_t k) {
    const heedful_problem &p = s.attention;
    const int64_t rows = (s.query_offset + p.Tq + s.cell_queries - 1) / s.cell_queries;
    const int64_t columns = (s.key_offset + p.Tk + s.cell_keys - 1) / s.cell_keys;
    const int64_t i = (s.query_offset + row.q) / s.cell_queries, j = (s.key_offset + k) / s.cell_keys;
    return ((row.b * p.Hq + row.h) * rows + i) * columns + j;
}

static void summarize_row(const heedful_summary &s, const Row &row) {
    const heedful_problem &p = s.attention;
    const int64_t at = (row.b * p.Hq + row.h) * p.Tq + row.q;
    std::vector<double> weights(p.Tk), mass_of(s.regions);
    const double own_lse = compute_weights(p, row, weights.data()), lse = s.lse ? s.lse[at] : own_lse;
    if (p.lse) p.lse[at] = (float)lse;
    for (double &weight : weights)
        if (weight != 0) weight = lse == -INFINITY ? 0 : weight * std::exp(own_lse - lse);

    double mass = 0, entropy = 0, largest = 0, distance = 0;
    for (int64_t k = 0; k < p.Tk; k++) {
        const double weight = weights[k];
        if (weight == 0) continue;
        mass += weight, entropy -= weight * std::log(weight), largest = std::fmax(largest, weight);
        distance += weight * std::fabs((double)(row.q + s.shift - k));
        if (s.received) s.received[(row.b * p.Hq + row.h) * p.Tk + k] += (float)weight;
        const int64_t cell = s.cell_sums || s.cell_maxima ? cell_index(s, row, k) : 0;
        if (s.cell_sums) s.cell_sums[cell] += (float)weight;
        if (s.cell_maxima) s.cell_maxima[cell] = std::fmax(s.cell_maxima[cell], (float)weight);
        for (int64_t r = 0; r < s.regions; r++) {
            const int64_t range = row.b * s.region_batch + row.q * s.regions + r;
            if (s.region_start[range] <= k && k < s.region_stop[range]) mass_of[r] += weight;
        }
    }
    if (s.mass) s.mass[at] = (float)mass;
    if (s.entropy) s.entropy[at] = (float)entropy;
    if (s.largest) s.largest[at] = (float)largest;
    if (s.distance) s.distance[at] = (float)distance;
    store(mass_of.data(), s.regions, s.region_mass + at * s.regions);
    for (int64_t i = 0; i < s.top_k; i++) {
        int64_t best = -1;
        for (int64_t k = 0; k < p.Tk; k++)
            if (weights[k] > 0 && (best < 0 || weights[k] > weights[best])) best = k;
        s.top_keys[at * s.top_k + i] = best;
        s.top_weights[at * s.top_k + i] = best < 0 ? 0 : (float)weights[best];
        if (best >= 0) weights[best] = 0;
    }
}

}  // namespace heedful::plain

extern "C" {
EXPORT int32_t heedful_forward_plain(const heedful_problem *problem) {
    if (problem && problem->dtype != HEEDFUL_F32) return HEEDFUL_UNKNOWN_DTYPE;
    if (const int32_t status = heedful::check(problem)) return status;
    const heedful_problem &p = *problem;
    for (int64_t b = 0; b < p.B; b++)
        for (int64_t h = 0; h < p.Hq; h++)
            for (int64_t q = 0; q < p.Tq; q++) heedful::plain::forward_row(p, {b, h, h / (p.Hq / p.Hkv), q});
    return HEEDFUL_OK;
}

EXPORT int32_t heedful_backward_plain(const heedful_gradient *gradient) {
    if (gradient && gradient->forward.dtype != HEEDFUL_F32) return HEEDFUL_UNKNOWN_DTYPE;
    if (const int32_t status = heedful::check(gradient)) return status;
    const heedful_problem &p = gradient->forward;
    for (int64_t h = 0; gradient->grad_sinks && h < p.Hq; h++) gradient->grad_sinks[h] = 0;
    for (int64_t b = 0; b < p.B; b++)
        for (int64_t kv_head = 0; kv_head < p.Hkv; kv_head++) heedful::plain::backward_head(*gradient, b, kv_head);
    return HEEDFUL_OK;
}

EXPORT int32_t heedful_summarize_plain(const heedful_summary *summary) {
    if (summary && summary->attention.dtype != HEEDFUL_F32) return HEEDFUL_UNKNOWN_DTYPE;
    if (const int32_t status = heedful::check(summary)) return status;
    const heedful_problem &p = summary->attention;
    for (int64_t i = 0; summary->received && i < p.B * p.Hq * p.Tk; i++) summary->received[i] = 0;
    for (int64_t b = 0; b < p.B; b++)
        for (int64_t h = 0; h < p.Hq; h++)
            for (int64_t q = 0; q < p.Tq; q++) heedful::plain::summarize_row(*summary, {b, h, h / (p.Hq / p.Hkv), q});
    return HEEDFUL_OK;
}
}
