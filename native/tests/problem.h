// Attention problems drawn at random, with all options of heedful_problem in every combination.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>

#include "array.h"
#include "workers.h"

enum KeyRanges { NO_RANGES, CAUSAL, WINDOW_AND_SINKS, HOLES, NO_KEYS };

// A source of random choices.
struct Draw {
    std::mt19937_64 source;
    explicit Draw(uint64_t seed) : source(seed) {}

    int64_t below(int64_t end) { return (int64_t)(source() % (uint64_t)end); }
    bool chance(double p) { return (double)(source() >> 11) * 0x1p-53 < p; }
    float number() { return ((float)(source() >> 40) * 0x1p-24f - 0.5f) * 3.4641016f; }  // mean 0, variance 1
    template <class T>
    T of(std::initializer_list<T> choices) {
        return choices.begin()[below((int64_t)choices.size())];
    }
};

// The parameters of a problem; its numbers follow from the seed.
struct Case {
    uint64_t seed;
    int64_t B = 1, Hq = 1, Hkv = 1, Tq = 1, Tk = 1, D = 8, Dv = 8;
    int dtype = HEEDFUL_F32;
    Layout layout = PACKED;
    float scale = 0.5f, softcap = 0;
    KeyRanges ranges = NO_RANGES;
    bool ranges_per_batch = false, sinks = false, lse = true;
    unsigned mask_axes = 0, bias_axes = 0;  // one bit per axis that is not broadcast; 16: there is one
    bool keys_apart = false;                // mask and bias with a stride between keys
    float dropout_p = 0;
    int workers = 0;

    std::string describe() const {
        char text[400];
        snprintf(text, sizeof text,
                 "seed %llu: B %d Hq %d Hkv %d Tq %d Tk %d D %d Dv %d, dtype %d, layout %d, scale %g, softcap %g, "
                 "key ranges %d%s, mask %u, bias %u%s, sinks %d, dropout %g, workers %d, isa %s",
                 (unsigned long long)seed, (int)B, (int)Hq, (int)Hkv, (int)Tq, (int)Tk, (int)D, (int)Dv, dtype, layout,
                 scale, softcap, ranges, ranges_per_batch ? " per batch entry" : "", mask_axes, bias_axes,
                 keys_apart ? " with keys apart" : "", sinks, dropout_p, workers, heedful_isa());
        return text;
    }
};

// Draw everything but the lengths and head sizes from the seed.
inline Case draw_case(uint64_t seed, int64_t Tq, int64_t Tk, int64_t D, int64_t Dv) {
    Draw draw(seed);
    Case c{.seed = seed, .Tq = Tq, .Tk = Tk, .D = D, .Dv = Dv};
    c.B = 1 + draw.below(2), c.Hkv = 1 + draw.below(2), c.Hq = c.Hkv * draw.of({1, 1, 2, 3});
    c.dtype = (int)draw.below(3);
    c.layout = draw.of({PACKED, GAPS, TOKENS_FIRST});
    c.scale = draw.of({1.0f, 1.0f, 1.0f, -1.0f, 4.0f}) / std::sqrt((float)D);
    c.softcap = draw.of({0.0f, 0.0f, 1.5f, 30.0f});
    c.ranges = draw.of({NO_RANGES, CAUSAL, WINDOW_AND_SINKS, HOLES});
    c.ranges_per_batch = draw.chance(0.5);
    c.sinks = draw.chance(0.3), c.lse = draw.chance(0.8);
    c.mask_axes = draw.chance(0.4) ? 16 + (unsigned)draw.below(16) : 0;
    c.bias_axes = draw.chance(0.4) ? 16 + (unsigned)draw.below(16) : 0;
    c.keys_apart = draw.chance(0.3);
    c.dropout_p = draw.of({0.0f, 0.0f, 0.3f, 0.3f, 1.0f});
    c.workers = (int)draw.below(5);
    return c;
}

// The tensors that attention reads and writes, or their gradients. Unused ones are empty.
struct Tensors {
    Array query, key, value, bias, sinks, output, lse;
};

class Problem {
  public:
    const Case c;
    Draw draw;

    explicit Problem(const Case &parameters) : c(parameters), draw(c.seed + 1) {
        draw_ranges();
        if (c.mask_axes) draw_mask();
        if (c.bias_axes) draw_bias();
        if (c.sinks) draw_sinks();
        inputs.query = numbers({c.B, c.Hq, c.Tq, c.D}), inputs.key = numbers({c.B, c.Hkv, c.Tk, c.D});
        inputs.value = numbers({c.B, c.Hkv, c.Tk, c.Dv});
        spoil_unseen_keys();
    }

    // Copy the inputs in a type and layout, and allocate the results.
    Tensors tensors(int dtype, Layout layout) const {
        Tensors x = inputs;
        for (auto input : {&Tensors::query, &Tensors::key, &Tensors::value})
            x.*input = (inputs.*input).copy(dtype, layout);
        x.output = Array(dtype, {c.B, c.Hq, c.Tq, c.Dv}, layout);
        if (c.lse) x.lse = Array(HEEDFUL_F32, {1, c.B, c.Hq, c.Tq}, PACKED);
        return x;
    }

    heedful_problem with(Tensors &x, int dtype, int worker_count) {
        heedful_problem p{};
        p.B = c.B, p.Hq = c.Hq, p.Hkv = c.Hkv, p.Tq = c.Tq, p.Tk = c.Tk, p.D = c.D, p.Dv = c.Dv;
        p.dtype = dtype, p.scale = c.scale, p.softcap = c.softcap;
        p.query = x.query.tensor(), p.key = x.key.tensor(), p.value = x.value.tensor(), p.output = x.output.tensor();
        p.lse = (float *)x.lse.data();
        p.range_start = start.data(), p.range_stop = stop.data(), p.key_ranges = key_ranges;
        p.range_batch = c.ranges_per_batch ? c.Tq * key_ranges : 0;
        p.mask = mask.plane(), p.bias = x.bias.plane();
        p.sinks = (const float *)x.sinks.data();
        p.dropout_p = c.dropout_p, p.seed = c.seed * 0x9E3779B97F4A7C15u;
        p.parallel_for = workers(worker_count);
        return p;
    }

    // Draw numbers that the problem's type represents exactly, as packed floats.
    Array numbers(Sizes sizes) {
        Array x(c.dtype, sizes, PACKED);
        x.for_each([&](int64_t b, int64_t h, int64_t t, int64_t i) { x.set(b, h, t, i, draw.number()); });
        return x.copy(HEEDFUL_F32, PACKED);
    }

  private:
    int32_t key_ranges = 0;
    std::vector<int32_t> start, stop;
    Array mask;
    Tensors inputs;  // packed floats

    void draw_ranges() {
        if (c.ranges == NO_RANGES) return;
        key_ranges = c.ranges == WINDOW_AND_SINKS || c.ranges == HOLES ? 2 : 1;
        for (int64_t b = 0; b < (c.ranges_per_batch ? c.B : 1); b++)
            for (int64_t q = 0; q < c.Tq; q++) draw_ranges_of(q);
    }

    void add_range(int64_t from, int64_t to) {
        start.push_back((int32_t)std::clamp(from, int64_t{0}, c.Tk));
        stop.push_back((int32_t)std::clamp(to, int64_t{0}, c.Tk));
    }

    void draw_ranges_of(int64_t q) {
        const int64_t last = q + c.Tk - c.Tq, size = 1 + c.Tk / 3;
        if (c.ranges == CAUSAL) add_range(0, last + 1);
        if (c.ranges == NO_KEYS) add_range(q, q);
        if (c.ranges == WINDOW_AND_SINKS) {
            const int64_t sinks = std::clamp(last + 1, int64_t{0}, int64_t{4});
            add_range(0, sinks), add_range(std::max(sinks, last + 1 - size), last + 1);
        }
        if (c.ranges == HOLES) {  // anywhere; some are empty, and some rows have none
            int64_t at[4] = {};
            if (!draw.chance(0.2))
                for (int64_t &place : at) place = draw.below(c.Tk + 1);
            std::sort(at, at + 4);
            add_range(at[0], at[1]), add_range(at[2], at[3]);
        }
    }

    Array plane(int dtype, unsigned axes) const {
        const int64_t whole[4] = {c.B, c.Hq, c.Tq, c.Tk};
        Sizes sizes(4, 1);
        for (int axis = 0; axis < 4; axis++)
            if (axes >> axis & 1) sizes[axis] = whole[axis];
        return Array(dtype, sizes, c.keys_apart ? ROWS_LAST : PACKED).broadcast();
    }

    void draw_mask() {
        const double density = draw.of({0.05, 0.5, 0.95});
        mask = plane(Array::BYTE, c.mask_axes);
        mask.for_each([&](int64_t b, int64_t h, int64_t q, int64_t k) {
            if (k == 0) hidden_row = draw.chance(0.1);
            mask.set(b, h, q, k, !hidden_row && draw.chance(density) ? draw.of({1.0f, 1.0f, 255.0f}) : 0.0f);
        });
    }
    bool hidden_row = false;

    void draw_bias() {
        inputs.bias = plane(HEEDFUL_F32, c.bias_axes);
        inputs.bias.for_each([&](int64_t b, int64_t h, int64_t q, int64_t k) {
            inputs.bias.set(b, h, q, k, draw.chance(0.05) ? -INFINITY : draw.number());
        });
    }

    void draw_sinks() {
        inputs.sinks = numbers({1, 1, 1, c.Hq});
        for (int64_t h = 0; h < c.Hq; h++)
            if (draw.chance(0.2)) inputs.sinks.set(0, 0, 0, h, -INFINITY);
    }

    bool sees(int64_t b, int64_t h, int64_t q, int64_t k) const {
        const auto own = [&](int axis, int64_t index) { return c.mask_axes >> axis & 1 ? index : 0; };  // 0: broadcast
        if (c.mask_axes && mask.at(own(0, b), own(1, h), own(2, q), own(3, k)) == 0) return false;
        const int64_t first = ((c.ranges_per_batch ? b * c.Tq : 0) + q) * key_ranges;
        for (int64_t range = first; range < first + key_ranges; range++)
            if (start[range] <= k && k < stop[range]) return true;
        return key_ranges == 0;
    }

    // Put NaN in keys and values that no query of the batch entry sees.
    void spoil_unseen_keys() {
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t k = 0; k < c.Tk; k++) {
                bool seen = false;
                for (int64_t h = 0; h < c.Hq && !seen; h++)
                    for (int64_t q = 0; q < c.Tq && !seen; q++) seen = sees(b, h, q, k);
                for (int64_t h = 0; h < c.Hkv && !seen; h++) {
                    for (int64_t d = 0; d < c.D; d++) inputs.key.set(b, h, k, d, NAN);
                    for (int64_t d = 0; d < c.Dv; d++) inputs.value.set(b, h, k, d, NAN);
                }
            }
    }
};
