// The forward pass: its division into tiles and chunks of keys. Sizes alone decide on it, never the number of threads,
// so that results are the same bits on any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include "decode_tile.h"
#include "forward_tile.h"
#include "heedful.h"
#include "matrix_tiles.h"
#include "parallel.h"
#include "scratch.h"

namespace heedful::HEEDFUL_ISA {

// Query rows of a tile. A head's last rows take the narrowest tile that holds them. Heads of few rows take the other
// kernel, DecodeTile; last rows do not, so that the backward pass finds the same scores that the log-sum-exp was made
// of.
constexpr int WIDE = 64, MIDDLE = 32, NARROW = 16;
// If there are few tiles, as in decoding, the keys are split into chunks too.
constexpr int64_t FEW_TILES = 64, CHUNK = 1024;

template <class N, bool PAIRS>
struct ForwardPass {
    using WideTile = ForwardTile<N, PAIRS, WIDE>;
    using MiddleTile = ForwardTile<N, PAIRS, MIDDLE>;
    using NarrowTile = ForwardTile<N, PAIRS, NARROW>;
    using FewTile = DecodeTile<N, PAIRS, FEW>;

    // With tile registers, several tiles of a head go through its keys together, so that each value is transposed once.
    // Not fewer groups than these are made, so that all threads have work.
    static constexpr int64_t MAX_GROUP = BY_TILES<Operand<PAIRS>> ? 4 : 1, FEW_GROUPS = 32;
    static_assert(2 * FEW_GROUPS >= FEW_TILES, "the keys of groups are not split into chunks");

    const heedful_problem &p;
    const int64_t rows, tiles, heads, chunks;  // rows and tiles of one head; chunks of keys of one tile
    const int64_t group, groups;                // tiles that go together; such groups of one head
    const int64_t item_floats, partial_floats;  // of the scratch memory of an item, and of a tile's partial sums
    float *partials = nullptr;                  // [heads * tiles][chunks][partial_floats]; unused if chunks is 1
    std::atomic<int32_t> status{HEEDFUL_OK};

    explicit ForwardPass(const heedful_problem &problem)
        : p(problem), rows(p.Tq * (p.Hq / p.Hkv)), tiles((rows + WIDE - 1) / WIDE), heads(p.B * p.Hkv),
          chunks(heads * tiles < FEW_TILES && p.Tk >= 2 * CHUNK ? (p.Tk + CHUNK - 1) / CHUNK : 1),
          group(std::clamp(std::min(tiles, heads * tiles / FEW_GROUPS), int64_t{1}, MAX_GROUP)),
          groups((tiles + group - 1) / group),
          item_floats(floats_of_an_item()),
          partial_floats(scratch_floats<typename WideTile::PartialSums, typename MiddleTile::PartialSums,
                                        typename NarrowTile::PartialSums, typename FewTile::PartialSums>(p)) {}

    // What the tiles of a group share.
    struct GroupBuffers {
        typename WideTile::BlockBuffers block;
        ValueCache<N> values;

        template <class Source>
        GroupBuffers(const heedful_problem &p, Source &source) : block(p, source), values(p, source) {}
    };

    int64_t floats_of_an_item() const {
        if (group > 1) return list_floats<GroupBuffers>(p) + group * list_floats<typename WideTile::QueryBuffers>(p);
        return scratch_floats<typename WideTile::Buffers, typename MiddleTile::Buffers, typename NarrowTile::Buffers,
                              typename FewTile::Buffers>(p);
    }

    int64_t all_partial_floats() const { return chunks > 1 ? heads * tiles * chunks * partial_floats : 0; }

    // The memory that run() allocates, in bytes: the partial sums, and the scratch of each thread that gets an item.
    int64_t scratch_bytes(int64_t threads) const {
        const int64_t items = heads * groups * chunks;
        return sizeof(float) * (all_partial_floats() + (threads < items ? threads : items) * item_floats);
    }

    int32_t run() {
        if (chunks > 1 && !(partials = allocate(all_partial_floats()))) return HEEDFUL_NO_MEMORY;
        for_each_item(p.parallel_for, heads * groups * chunks, [this](auto next) {
            with_scratch(next, [this](int64_t item, Scratch scratch) {
                group > 1 ? attend_together(item, scratch) : attend(item, scratch);
            });
        });
        if (chunks > 1)
            for_each_item(p.parallel_for, heads * tiles, [this](auto next) {
                with_scratch(next, [this](int64_t item, Scratch scratch) { merge(item, scratch); });
            });
        release(partials);
        return status;
    }

    // Call work(item, scratch) for the items of one thread.
    template <class Next, class Work>
    void with_scratch(Next next, Work work) {
        float *memory = allocate(item_floats);
        if (!memory) {
            status = HEEDFUL_NO_MEMORY;
            return;
        }
        [[maybe_unused]] const TileRegisters<PAIRS> registers;
        for (int64_t item = next(); item >= 0; item = next()) work(item, Scratch{memory, memory + item_floats});
        release(memory);
    }

    Scratch partial(int64_t item) const {
        return {partials + item * partial_floats, partials + (item + 1) * partial_floats};
    }

    // Call work(tile) with a tile of the width that its rows need. The last queries come first: causal masks give them
    // the most keys.
    template <class Work>
    void with_tile(int64_t item, Scratch scratch, Work work) {
        const int64_t first = (tiles - 1 - item % tiles) * WIDE, head = item / tiles;
        const int64_t b = head / p.Hkv, kv_head = head % p.Hkv, count = rows - first;
        if (count > MIDDLE) {
            WideTile tile(p, b, kv_head, first, scratch);
            work(tile);
        } else if (count > NARROW) {
            MiddleTile tile(p, b, kv_head, first, scratch);
            work(tile);
        } else if (rows > FEW) {
            NarrowTile tile(p, b, kv_head, first, scratch);
            work(tile);
        } else {
            FewTile tile(p, b, kv_head, first, scratch);
            work(tile);
        }
    }

    void attend(int64_t item, Scratch scratch) {
        const int64_t chunk = item % chunks;
        with_tile(item / chunks, scratch, [&](auto &tile) {
            tile.begin(chunk == 0);
            if (chunks == 1) {
                tile.attend(0, p.Tk);
                tile.write_output();
            } else {
                tile.attend(chunk * CHUNK, chunk * CHUNK + CHUNK < p.Tk ? chunk * CHUNK + CHUNK : p.Tk);
                tile.save(partial(item));
            }
        });
    }

    // Run a group of tiles, which go through the keys stretch by stretch.
    void attend_together(int64_t item, Scratch scratch) {
        const int64_t first = (groups - 1 - item % groups) * group, head = item / groups;
        GroupBuffers shared(p, scratch);
        std::optional<WideTile> members[MAX_GROUP];
        for (int64_t i = 0; i < group && first + i < tiles; i++) {
            const typename WideTile::Buffers buffers({p, scratch}, shared.block);
            members[i].emplace(p, head / p.Hkv, head % p.Hkv, (first + i) * WIDE, buffers, &shared.values);
            members[i]->begin(true);
        }
        for (int64_t k = 0; k < p.Tk; k += shared.values.KEYS) {
            shared.values.begin();
            for (auto &tile : members)
                if (tile) tile->attend(k, std::min(k + shared.values.KEYS, p.Tk));
        }
        for (auto &tile : members)
            if (tile) tile->write_output();
    }

    // Add up a tile's chunks in their order.
    void merge(int64_t item, Scratch scratch) {
        with_tile(item, scratch, [&](auto &tile) {
            tile.begin(false);
            for (int64_t chunk = 0; chunk < chunks; chunk++) tile.merge(partial(item * chunks + chunk));
            tile.write_output();
        });
    }
};

static int32_t forward(const heedful_problem *p) {
    if (!p->B || !p->Hq || !p->Tq) return HEEDFUL_OK;
    return with_pass<ForwardPass>(*p, p->dtype, [](auto &pass) { return pass.run(); });
}

static int64_t forward_scratch(const heedful_problem *p, int64_t threads) {
    if (!p->B || !p->Hq || !p->Tq) return 0;
    return with_pass<ForwardPass>(*p, p->dtype, [=](auto &pass) { return pass.scratch_bytes(threads); });
}

}  // namespace heedful::HEEDFUL_ISA
