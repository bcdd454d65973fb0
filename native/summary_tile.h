// The statistics of the weights of one tile of queries, which are all of one head. The scores are those of the forward
// pass, Sᵀ = K Qᵀ, computed twice if the normalizers are not known: first for m and l, then for the weights
//
//   P = 2^x,  x = log2(e) (S − m) − log2(l)
//
// of each block of keys, which are reduced to sums at once: down the lanes for the queries, across them for the keys.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "forward_tile.h"
#include "heedful.h"
#include "key_visibility.h"
#include "number.h"
#include "online_softmax.h"
#include "region_ranges.h"
#include "scratch.h"
#include "top_keys.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// One query head of a summary: its problem, which has no other head, and where its results are.
struct SummaryHead {
    const heedful_summary &s;
    const int64_t index;        // of the head among the B · Hq heads
    const heedful_problem p;

    SummaryHead(const heedful_summary &summary, int64_t index_)
        : s(summary), index(index_), p(problem_of(summary.attention, index_ / summary.attention.Hq,
                                                  index_ % summary.attention.Hq)) {}

    // Return the problem of one batch entry's head. Its values have one number, so that the forward pass's buffers are
    // small.
    static heedful_problem problem_of(const heedful_problem &all, int64_t b, int64_t h) {
        heedful_problem p = all;
        p.B = p.Hq = p.Hkv = p.Dv = 1;
        const int64_t kv_head = h / (all.Hq / all.Hkv), bytes = all.dtype == HEEDFUL_F32 ? 4 : 2;
        p.query.data = (char *)all.query.data + bytes * (b * all.query.batch + h * all.query.head);
        p.key.data = (char *)all.key.data + bytes * (b * all.key.batch + kv_head * all.key.head);
        if (p.mask.data) p.mask.data = (uint8_t *)all.mask.data + b * all.mask.batch + h * all.mask.head;
        if (p.bias.data) p.bias.data = (float *)all.bias.data + b * all.bias.batch + h * all.bias.head;
        if (p.sinks) p.sinks += h;
        if (p.key_ranges) p.range_start += b * all.range_batch, p.range_stop += b * all.range_batch;
        p.dropout_p = 0;
        return p;
    }

    int64_t batch_entry() const { return index / s.attention.Hq; }
    // The index of a query in the tensors (B, Hq, Tq), and of a cell in the maps (B, Hq, rows, columns).
    int64_t query(int64_t q) const { return index * p.Tq + q; }
    int64_t cell(int64_t row, int64_t column) const {
        const int64_t rows = (s.query_offset + p.Tq + s.cell_queries - 1) / s.cell_queries;
        const int64_t columns = (s.key_offset + p.Tk + s.cell_keys - 1) / s.cell_keys;
        return (index * rows + row) * columns + column;
    }
};

template <class N, bool PAIRS, int LANES>
struct SummaryTile {
    using Scores = ForwardTile<N, PAIRS, LANES>;

    // Sums over the keys, [LANES] each, unless it says otherwise.
    struct Buffers {
        float *log2_l;     // log2 Σ exp(scores − m)
        float *mass;       // Σ P
        float *surprise;   // Σ P x
        float *highest;    // the largest x
        float *distance;   // Σ P |query's place − key|
        int32_t *place;    // the query's place among the keys
        float *x;          // [BLOCK][LANES], for the top keys only
        float *cell_sum, *cell_maximum;  // Σ P and the largest P, over the keys of the current column of cells

        template <class Source>
        explicit Buffers(Source &source) {
            log2_l = source.take(LANES), mass = source.take(LANES), surprise = source.take(LANES);
            highest = source.take(LANES), distance = source.take(LANES), place = (int32_t *)source.take(LANES);
            x = source.take(BLOCK * LANES);
            cell_sum = source.take(LANES), cell_maximum = source.take(LANES);
        }
    };

    const SummaryHead &head;
    const heedful_summary &s;
    const heedful_problem &p;
    Scores scores;
    const Buffers buf;
    RegionRanges<LANES> regions;
    TopKeys<LANES> top;
    float *const received;     // (Tk,), Σ P over the queries of the tiles before, and of this one; nullptr: not computed
    const int64_t count;       // of queries; the other lanes are idle
    const bool for_each_query; // whether any of mass, entropy, largest and distance is computed
    int64_t column = -1;       // the current column of cells

    static int64_t scratch_floats_of(const SummaryHead &head) {
        ScratchMeter meter;
        typename Scores::Buffers(head.p, meter);
        Buffers own(meter);
        RegionRanges<LANES> regions(head.s, meter);
        TopKeys<LANES> top(head.s.top_k, meter);
        return meter.floats;
    }

    // A tile of the queries from `first` to `end` at most.
    SummaryTile(const SummaryHead &summary_head, int64_t first, int64_t end, float *received_sums, Scratch scratch)
        : head(summary_head), s(head.s), p(head.p),
          scores(p, 0, 0, first, Scratch{take_scores(p, scratch), scratch.next}), buf(scratch), regions(s, scratch),
          top(s.top_k, scratch), received(received_sums), count(end - first < LANES ? end - first : LANES),
          for_each_query(s.mass || s.entropy || s.largest || s.distance) {}

    // Take the memory of the scores' buffers, and return where it begins.
    static float *take_scores(const heedful_problem &problem, Scratch &scratch) {
        return scratch.take(list_floats<typename Scores::Buffers>(problem));
    }

    void run() {
        begin();
        if (s.lse)
            load_normalizers();
        else
            compute_normalizers();
        for_each_block([this](const KeyBlock<LANES> &block) { measure(block); });
        if (column >= 0) write_cells();
        write_results();
    }

    void begin() {
        scores.begin(true);
        for (int lane = 0; lane < LANES; lane++) {
            buf.log2_l[lane] = buf.mass[lane] = buf.surprise[lane] = buf.distance[lane] = 0;
            buf.highest[lane] = -INFINITY;
            buf.place[lane] = (int32_t)(scores.rows.query(lane) + s.shift);
        }
        regions.load(s, head.batch_entry(), scores.rows.first, (int)count);
        top.begin();
    }

    // Call work(block) for each block of keys that any lane sees, with the finished scores in scores.buf.S: −∞ where a lane
    // does not see a key, and nothing outside the lanes' spans.
    template <class Work>
    void for_each_block(Work work) {
        for (int64_t k = scores.visibility.next(0); k < p.Tk; k = scores.visibility.next(k + BLOCK)) {
            const KeyBlock<LANES> block = scores.visibility.block(k, k + BLOCK < p.Tk ? k + BLOCK : p.Tk);
            scores.compute_scores(block);
            if (scores.finished) scores.finish_scores(block);
            if (block.partial) scores.mask_scores(block);
            for (int64_t lane = count; lane < LANES; lane++)
                for (int64_t r = 0; r < block.count; r++) scores.buf.S[r * LANES + lane] = -INFINITY;
            work(block);
        }
    }

    void load_normalizers() {
        for (int lane = 0; lane < count; lane++) {
            const float L = s.lse[head.query(scores.rows.query(lane))];
            scores.buf.m[lane] = L == -INFINITY ? INFINITY : L / scores.missing_scale;  // no key: all weights are 0
        }
    }

    void compute_normalizers() {
        for_each_block([this](const KeyBlock<LANES> &block) {
            for (int lane = 0; lane < LANES; lane += W) {
                scores.update_maximum(lane, block.span(lane));
                add_to_normalizer(lane, block.span(lane));
            }
        });
        for (int lane = 0; lane < count; lane++) {
            const float l = scores.buf.l[lane];
            buf.log2_l[lane] = l == 0 ? 0.0f : log2f(l);
        }
    }

    void add_to_normalizer(int lane, Span span) {
        const F m = load(scores.buf.m + lane);
        F sum{};
        for (int64_t r = span.first; r < span.last; r++)
            sum += exp2<5>(scores.exponents(load(scores.buf.S + r * LANES + lane) - m));
        store(scores.buf.l + lane, load(scores.buf.l + lane) + sum);
    }

    // Add a block's weights to all sums. They take the place of the scores.
    void measure(const KeyBlock<LANES> &block) {
        for (int lane = 0; lane < LANES; lane += W) {
            if (for_each_query)
                compute_weights<true>(lane, block);
            else
                compute_weights<false>(lane, block);
            if (s.top_k) offer_keys(lane, block);
        }
        if (received) add_to_received(block);
        if (s.regions) regions.add(block, scores.buf.S);
        if (s.cell_sums || s.cell_maxima) add_to_cells(block);
    }

    template <bool SUMS>
    void compute_weights(int lane, const KeyBlock<LANES> &block) {
        const Span span = block.span(lane);
        const F m = load(scores.buf.m + lane), log2_l = load(buf.log2_l + lane);
        const I place = load(buf.place + lane) - splat((int32_t)block.first);
        F mass{}, surprise{}, highest = splat(-INFINITY), distance{};
        float *S = scores.buf.S + lane;
        for (int64_t r = 0; r < span.first; r++) store(S + r * LANES, F{});
        for (int64_t r = span.last; r < block.count; r++) store(S + r * LANES, F{});
        for (int64_t r = span.first; r < span.last; r++) {
            const F x = scores.exponents(load(S + r * LANES) - m) - log2_l;
            const F weight = exp2<5>(x);
            store(S + r * LANES, weight);
            if (s.top_k) store(buf.x + r * LANES + lane, x);
            if constexpr (SUMS) {
                mass += weight;
                surprise += weight * maximum_of(splat(-200.0f), x);  // 0 · −∞ would be NaN
                highest = maximum_of(highest, x);
                distance += weight * absolute(__builtin_convertvector(place - splat((int32_t)r), F));
            }
        }
        if constexpr (SUMS) {
            store(buf.mass + lane, load(buf.mass + lane) + mass);
            store(buf.surprise + lane, load(buf.surprise + lane) + surprise);
            store(buf.highest + lane, maximum_of(load(buf.highest + lane), highest));
            store(buf.distance + lane, load(buf.distance + lane) + distance);
        }
    }

    void offer_keys(int lane, const KeyBlock<LANES> &block) {
        const Span span = block.span(lane);
        top.offer(lane, block.first + span.first, span.count(), buf.x + span.first * LANES + lane);
    }

    // Add the sum over the lanes to each key's sum.
    void add_to_received(const KeyBlock<LANES> &block) {
        float *to = received + block.first;
        for (int64_t r = 0; r < block.count; r += W) {
            F sums[W];
            for (int i = 0; i < W; i++) {
                sums[i] = F{};
                for (int lane = 0; r + i < block.count && lane < LANES; lane += W)
                    sums[i] += load(scores.buf.S + (r + i) * LANES + lane);
            }
            const F total = sums_of(sums);
            for (int i = 0; i < W && r + i < block.count; i++) to[r + i] += total[i];
        }
    }

    void add_to_cells(const KeyBlock<LANES> &block) {
        for (int64_t r = 0; r < block.count;) {
            const int64_t place = s.key_offset + block.first + r, own = place / s.cell_keys;
            if (own != column) begin_column(own);
            const int64_t left = (own + 1) * s.cell_keys - place;
            const int64_t end = left < block.count - r ? r + left : block.count;
            for (int lane = 0; lane < LANES; lane += W) {
                F sum{}, maximum{};
                for (int64_t i = r; i < end; i++) {
                    const F weight = load(scores.buf.S + i * LANES + lane);
                    sum += weight, maximum = maximum_of(maximum, weight);
                }
                store(buf.cell_sum + lane, load(buf.cell_sum + lane) + sum);
                store(buf.cell_maximum + lane, maximum_of(load(buf.cell_maximum + lane), maximum));
            }
            r = end;
        }
    }

    void begin_column(int64_t next) {
        if (column >= 0) write_cells();
        column = next;
        for (int lane = 0; lane < LANES; lane++) buf.cell_sum[lane] = buf.cell_maximum[lane] = 0;
    }

    // Add the lanes to the cells of the current column, each of which has the sums of neighbouring lanes.
    void write_cells() {
        const int64_t first = s.query_offset + scores.rows.first;
        for (int64_t lane = 0; lane < count;) {
            const int64_t row = (first + lane) / s.cell_queries, left = (row + 1) * s.cell_queries - first;
            const int64_t end = left < count ? left : count, cell = head.cell(row, column);
            float sum = 0, maximum = 0;
            for (; lane % W == 0 && lane + W <= end; lane += W) {
                sum += sum_of(load(buf.cell_sum + lane));
                maximum = fmaxf(maximum, highest_of(load(buf.cell_maximum + lane)));
            }
            for (; lane < end && (lane % W || lane + W > end); lane++)
                sum += buf.cell_sum[lane], maximum = fmaxf(maximum, buf.cell_maximum[lane]);
            if (s.cell_sums) s.cell_sums[cell] += sum;
            if (s.cell_maxima) s.cell_maxima[cell] = fmaxf(s.cell_maxima[cell], maximum);
        }
    }

    void write_results() {
        for (int lane = 0; lane < count; lane++) {
            const int64_t to = head.query(scores.rows.query(lane));
            if (s.attention.lse) s.attention.lse[to] = log_sum_exp(lane, to);
            if (s.mass) s.mass[to] = buf.mass[lane];
            if (s.entropy) s.entropy[to] = 0.0f - LN_2 * buf.surprise[lane];
            if (s.largest) s.largest[to] = exp2f(buf.highest[lane]);
            if (s.distance) s.distance[to] = buf.distance[lane];
            for (int64_t r = 0; r < s.regions; r++) s.region_mass[to * s.regions + r] = regions.mass(r, lane);
            for (int64_t i = 0; i < s.top_k; i++) {
                s.top_weights[to * s.top_k + i] = exp2f(top.value(i, lane));
                s.top_keys[to * s.top_k + i] = top.key(i, lane);
            }
        }
    }

    float log_sum_exp(int lane, int64_t query) const {
        if (s.lse) return s.lse[query];
        const float l = scores.buf.l[lane];
        return l == 0 ? -INFINITY : scores.buf.m[lane] * scores.missing_scale + logf(l);
    }
};

}  // namespace heedful::HEEDFUL_ISA
