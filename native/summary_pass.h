// The pass that summarizes weights: its division into parts of heads. Sizes alone decide on it, never the number of
// threads, so that results are the same bits on any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "forward_pass.h"
#include "heedful.h"
#include "matrix_tiles.h"
#include "parallel.h"
#include "scratch.h"
#include "summary_tile.h"

namespace heedful::HEEDFUL_ISA {

// The queries of each head are split into parts, which run in parallel, each through its tiles in order. A row of cells
// belongs to one part. Each part has its own sums of what the keys receive, which are added up in order afterwards.
template <class N, bool PAIRS>
struct SummaryPass {
    using WideTile = SummaryTile<N, PAIRS, WIDE>;
    using NarrowTile = SummaryTile<N, PAIRS, NARROW>;
    static constexpr int64_t MANY_PARTS = 64, MAX_FLOATS = 1 << 23;  // parts of all heads; their sums take 32 MiB at most

    const heedful_summary &s;
    const heedful_problem &p;
    const int64_t heads;
    const int64_t offset;           // of the first query in its row of cells
    const int64_t stripe, stripes;  // queries that belong to one part: whole rows of cells; stripes of a head
    const int64_t parts;            // of each head
    const int64_t tile_floats;      // of a tile's scratch memory
    float *all_sums = nullptr;      // [heads][parts][Tk]; unused if parts is 1
    std::atomic<int32_t> status{HEEDFUL_OK};

    explicit SummaryPass(const heedful_summary &summary)
        : s(summary), p(s.attention), heads(p.B * p.Hq), offset(has_cells() ? s.query_offset : 0),
          stripe(has_cells() ? (WIDE + s.cell_queries - 1) / s.cell_queries * s.cell_queries : WIDE),
          stripes((offset + p.Tq + stripe - 1) / stripe), parts(parts_of_a_head()), tile_floats(floats_of_a_tile()) {}

    bool has_cells() const { return s.cell_sums || s.cell_maxima; }

    int64_t parts_of_a_head() const {
        int64_t count = std::max(int64_t{1}, std::min(stripes, MANY_PARTS / heads));
        while (s.received && count > 1 && count * heads * p.Tk > MAX_FLOATS) count--;
        return count;
    }

    int64_t floats_of_a_tile() const {
        const SummaryHead head(s, 0);
        return std::max(WideTile::scratch_floats_of(head), NarrowTile::scratch_floats_of(head));
    }

    int32_t run() {
        if (s.received && parts > 1 && !(all_sums = allocate(heads * parts * p.Tk))) return HEEDFUL_NO_MEMORY;
        for_each_item(p.parallel_for, heads * parts, [this](auto next) { this->summarize(next); });
        if (all_sums && status == HEEDFUL_OK)
            for_each_item(p.parallel_for, heads, [this](auto next) {
                for (int64_t head = next(); head >= 0; head = next()) this->add_up_parts(head);
            });
        release(all_sums);
        return status;
    }

    // Run one thread's parts. The last part of a head comes first: causal masks give it the most keys.
    template <class Next>
    void summarize(Next next) {
        float *memory = allocate(tile_floats);
        if (!memory) {
            status = HEEDFUL_NO_MEMORY;
            return;
        }
        [[maybe_unused]] const TileRegisters<PAIRS> registers;
        for (int64_t item = next(); item >= 0; item = next()) {
            const int64_t part = parts - 1 - item / heads;
            summarize_part(item % heads, part, Scratch{memory, memory + tile_floats});
        }
        release(memory);
    }

    void summarize_part(int64_t index, int64_t part, Scratch scratch) {
        const SummaryHead head(s, index);
        float *received = all_sums ? all_sums + (index * parts + part) * p.Tk
                          : s.received ? s.received + index * p.Tk : nullptr;
        if (received) memset(received, 0, sizeof(float) * p.Tk);
        const int64_t end = first_query(part + 1);
        for (int64_t first = first_query(part); first < end; first += WIDE) {
            if (end - first > NARROW)
                WideTile(head, first, end, received, scratch).run();
            else
                NarrowTile(head, first, end, received, scratch).run();
        }
    }

    int64_t first_query(int64_t part) const {
        return std::clamp(stripes * part / parts * stripe - offset, int64_t{0}, p.Tq);
    }

    void add_up_parts(int64_t head) const {
        const float *sums = all_sums + head * parts * p.Tk;
        float *to = s.received + head * p.Tk;
        memcpy(to, sums, sizeof(float) * p.Tk);
        for (int64_t part = 1; part < parts; part++)
            for (int64_t k = 0; k < p.Tk; k++) to[k] += sums[part * p.Tk + k];
    }
};

static int32_t summarize(const heedful_summary *s) {
    if (!s->attention.B || !s->attention.Hq) return HEEDFUL_OK;
    return with_pass<SummaryPass>(*s, s->attention.dtype, [](auto &pass) { return pass.run(); });
}

}  // namespace heedful::HEEDFUL_ISA
