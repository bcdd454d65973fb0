// The backward pass: its division into heads and parts of heads. Sizes alone decide on it, never the number of threads,
// so that results are the same bits on any number of threads.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backward_tile.h"
#include "forward_pass.h"
#include "heedful.h"
#include "matrix_tiles.h"
#include "parallel.h"
#include "scratch.h"

namespace heedful::HEEDFUL_ISA {

// Heads run in parallel, each through its tiles in order. If there are few heads, the tiles of each are split into
// parts, whose sums of dK and dV are added up in order afterwards.
template <class N, bool PAIRS>
struct BackwardPass {
    using Tile = BackwardTile<N, PAIRS, WIDE>;
    static constexpr int64_t FEW_HEADS = 8, MAX_FLOATS = 1 << 23;  // of all parts' sums: 32 MiB

    const heedful_gradient &g;
    const heedful_problem &p;
    const int64_t rows, tiles, heads;        // rows and tiles of one head
    const int64_t tile_floats, sums_floats;  // of a tile's scratch memory, and of a head's sums of dK and dV
    const int64_t parts;                     // of each head
    float *all_sums = nullptr;               // [heads][parts][sums_floats]; unused if parts is 1
    std::atomic<int32_t> status{HEEDFUL_OK};

    explicit BackwardPass(const heedful_gradient &gradient)
        : g(gradient), p(g.forward), rows(p.Tq * (p.Hq / p.Hkv)), tiles((rows + WIDE - 1) / WIDE), heads(p.B * p.Hkv),
          tile_floats(scratch_floats<typename Tile::Buffers>(p)), sums_floats(scratch_floats<KeyValueGradients>(p)),
          parts(parts_of_a_head()) {}

    int64_t parts_of_a_head() const {
        int64_t count = heads < FEW_HEADS ? FEW_HEADS / heads : 1;
        while (count > 1 && (count > tiles || count * heads * sums_floats > MAX_FLOATS)) count--;
        return count;
    }

    int32_t run() {
        if (parts > 1 && !(all_sums = allocate(heads * parts * sums_floats))) return HEEDFUL_NO_MEMORY;
        for_each_item(p.parallel_for, groups(), [this](auto next) { this->differentiate(next); });
        if (parts > 1)
            for_each_item(p.parallel_for, heads, [this](auto next) {
                for (int64_t head = next(); head >= 0; head = next()) add_up_parts(head);
            });
        release(all_sums);
        if (g.grad_sinks && status == HEEDFUL_OK) differentiate_sinks();
        return status;
    }

    // One thread runs the items of a group in order: those that add to the same numbers of the bias gradient. Items are
    // parts of heads of batch entries. Without a bias gradient, each is a group of its own.
    bool shared_by(int64_t stride, int64_t count) const { return g.grad_bias.data && !stride && count > 1; }
    int64_t batch_groups() const { return shared_by(g.grad_bias.batch, p.B) ? 1 : p.B; }
    int64_t head_groups() const { return shared_by(g.grad_bias.head, p.Hq) ? 1 : p.Hkv; }
    int64_t part_groups() const {  // a part may end between the heads of one query
        return shared_by(g.grad_bias.query, p.Tq) || shared_by(g.grad_bias.head, p.Hq / p.Hkv) ? 1 : parts;
    }
    int64_t groups() const { return batch_groups() * head_groups() * part_groups(); }

    // Run one thread's groups.
    template <class Next>
    void differentiate(Next next) {
        const int64_t floats = tile_floats + (parts > 1 ? 0 : sums_floats);
        float *memory = allocate(floats);
        if (!memory) {
            status = HEEDFUL_NO_MEMORY;
            return;
        }
        [[maybe_unused]] const TileRegisters<PAIRS> registers;
        for (int64_t group = next(); group >= 0; group = next()) {
            const int64_t rest = group / part_groups();
            for (int64_t b = rest / head_groups(); b < p.B; b += batch_groups())
                for (int64_t h = rest % head_groups(); h < p.Hkv; h += head_groups())
                    for (int64_t part = group % part_groups(); part < parts; part += part_groups())
                        differentiate_part(b, h, part, memory);
        }
        release(memory);
    }

    void differentiate_part(int64_t b, int64_t h, int64_t part, float *memory) {
        const int64_t head = b * p.Hkv + h;
        float *sums_memory = parts > 1 ? all_sums + (head * parts + part) * sums_floats : memory + tile_floats;
        memset(sums_memory, 0, sizeof(float) * sums_floats);
        Scratch sums_scratch{sums_memory, sums_memory + sums_floats};
        const KeyValueGradients sums(p, sums_scratch);
        for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; tile++)
            Tile(g, b, h, tile * WIDE, sums, Scratch{memory, memory + tile_floats}).run();
        if (parts == 1) write_sums(head, sums);
    }

    void add_up_parts(int64_t head) {
        float *first = all_sums + head * parts * sums_floats;
        for (int64_t part = 1; part < parts; part++)
            for (int64_t i = 0; i < sums_floats; i++) first[i] += first[part * sums_floats + i];
        Scratch scratch{first, first + sums_floats};
        write_sums(head, KeyValueGradients(p, scratch));
    }

    void write_sums(int64_t head, const KeyValueGradients &sums) const {
        const int64_t b = head / p.Hkv, h = head % p.Hkv;
        for (int64_t k = 0; k < p.Tk; k++) {
            N *key = (N *)g.grad_key.data + b * g.grad_key.batch + h * g.grad_key.head + k * g.grad_key.token;
            N *value = (N *)g.grad_value.data + b * g.grad_value.batch + h * g.grad_value.head + k * g.grad_value.token;
            narrow_row(sums.dK + k * sums.D_row, p.D, p.scale, key);
            narrow_row(sums.dV + k * sums.Dv_row, p.Dv, 1.0f, value);
        }
    }

    // d sink = −Σ exp(sink − L) δ: the sink is a key whose value is 0.
    void differentiate_sinks() const {
        for (int64_t h = 0; h < p.Hq; h++) {
            double sum = 0;
            for (int64_t b = 0; b < p.B; b++)
                for (int64_t q = 0; q < p.Tq; q++) {
                    const heedful_tensor &dO = g.grad_output, &O = p.output;
                    const N *grad = (const N *)dO.data + b * dO.batch + h * dO.head + q * dO.token;
                    const N *output = (const N *)O.data + b * O.batch + h * O.head + q * O.token;
                    const int64_t index = (b * p.Hq + h) * p.Tq + q;
                    if (p.lse[index] == -INFINITY) continue;
                    float delta = g.grad_lse ? -g.grad_lse[index] : 0.0f;
                    for (int64_t d = 0; d < p.Dv; d++) delta += widen(grad[d]) * widen(output[d]);
                    sum -= (double)expf(p.sinks[h] - p.lse[index]) * delta;
                }
            g.grad_sinks[h] = (float)sum;
        }
    }
};

static int32_t backward(const heedful_gradient *g) {
    const heedful_problem &p = g->forward;
    if (!p.B || !p.Hq || !p.Hkv) return HEEDFUL_OK;
    return with_pass<BackwardPass>(*g, p.dtype, [](auto &pass) { return pass.run(); });
}

}  // namespace heedful::HEEDFUL_ISA
