// The products of a block of keys with the lanes of a tile, and the block's keys and values as operands of them:
//
//   product_with_keys   C[key][lane] = Σ_d A[key, d] · B[d][lane]       OperandRows
//   product_over_keys   C[d][lane] += Σ_key A[d, key] · B[key][lane]    OperandColumns
//   product_over_lanes  C[key][d] += Σ_lane A[key, lane] · B[lane][d]
//
// Nothing is computed where no lane sees a key. B holds neighbouring operands along the sum.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "heedful.h"
#include "key_visibility.h"
#include "number.h"
#include "online_softmax.h"
#include "operands.h"
#include "product.h"
#include "scratch.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// The keys or values of a block. Some may be missing.
template <class N>
struct KeyRows {
    const N *from;  // row 0 in the tensor
    int64_t token, count, size;
    const bool *seen;  // whether each row may be read; nullptr: all may

    const N *at(int64_t r) const { return r < count && (!seen || seen[r]) ? from + r * token : nullptr; }
};

// Rows as operands along the head size: as they lie if their type allows it and all may be read, else in a copy, with zeros
// for missing rows.
template <bool PAIRS>
struct OperandRows {
    using T = Operand<PAIRS>;
    const T *first;
    int64_t row;  // operands from one row to the next

    // The copy has room for BLOCK rows.
    template <class N>
    OperandRows(const KeyRows<N> &rows, T *copy)
        : first((const T *)rows.from), row(rows.token / NUMBERS_IN<T>) {
        if (lie_as_operands(rows)) return;
        first = copy, row = operand_row<T>(rows.size);
        const int64_t all = operands<T>(rows.size);
        for (int64_t r = 0; r < whole_steps<T>(rows.count); r++) {
            if (all * NUMBERS_IN<T> > rows.size || !rows.at(r)) memset(copy + r * row, 0, sizeof(T) * all);
            if (rows.at(r)) copy_row(rows.at(r), rows.size, copy + r * row);
        }
    }

    template <class N>
    static bool lie_as_operands(const KeyRows<N> &rows) {
        if (rows.seen) return false;
        if constexpr (!PAIRS) return std::is_same_v<N, T>;
        const bool whole = rows.count % STEP<T> == 0 && rows.size % (2 * STEP<T>) == 0;
        return whole && rows.token % 2 == 0 && (uintptr_t)rows.from % 4 == 0;
    }
};

// Rows as operands along the keys: those of d begin at first + d * row, and follow each other in steps of `key`.
template <bool PAIRS>
struct OperandColumns {
    using T = Operand<PAIRS>;
    const T *first;
    int64_t row, key;

    // Floats are the same operands in both directions.
    explicit OperandColumns(const OperandRows<PAIRS> &rows) : first(rows.first), row(1), key(rows.row) {
        static_assert(!PAIRS);
    }

    // Columns that transpose_pairs has made.
    explicit OperandColumns(const T *transposed) : first(transposed), row(BLOCK / 2), key(1) { static_assert(PAIRS); }

    // The copy has room for BLOCK / 2 rows of padded(size) pairs.
    template <class N>
    OperandColumns(const KeyRows<N> &rows, T *copy) : first(copy), row(1), key(padded(rows.size)) {
        if constexpr (!PAIRS) {
            *this = OperandColumns(OperandRows<PAIRS>(rows, copy));
        } else if constexpr (BY_TILES<T>) {
            transpose_pairs(rows, copy);
            *this = OperandColumns((const T *)copy);
        } else {
            for (int64_t r = 0; r < rows.count; r += 2)
                pair_rows(rows.at(r), rows.at(r + 1), rows.size, copy + r / 2 * key);
        }
    }

    // Pair the rows, and put the pairs into to[d][pair], with zeros up to whole tiles.
    template <class N>
    static void transpose_pairs(const KeyRows<N> &rows, T *to) {
        static_assert(!BY_TILES<T> || W == TILE);
        for (int64_t r = 0; r < rows.count; r += 2 * W)
            for (int64_t d = 0; d < rows.size; d += W) {
                F v[W];
                for (int64_t i = 0; i < W; i++)
                    v[i] = pair_words(rows.at(r + 2 * i), rows.at(r + 2 * i + 1), d, rows.size);
                transpose(v);
                for (int64_t i = 0; i < W; i++) store((float *)(to + (d + i) * (BLOCK / 2) + r / 2), v[i]);
            }
    }
};

// The values of a stretch of keys as operands along the keys, for several tiles that read the same ones. Each whole block is
// transposed when the first tile asks for it.
template <class N>
struct ValueCache {
    static constexpr int64_t BLOCKS = 8, KEYS = BLOCKS * BLOCK;
    Pair *columns_of_block[BLOCKS];
    bool ready[BLOCKS];

    template <class Source>
    ValueCache(const heedful_problem &p, Source &source) {
        for (Pair *&columns : columns_of_block) columns = (Pair *)source.take(BLOCK / 2 * whole_steps<Pair>(p.Dv));
    }

    // Begin another stretch of KEYS keys.
    void begin() { memset(ready, 0, sizeof ready); }

    static bool has_room_for(const KeyRows<N> &values) { return values.count == BLOCK && !values.seen; }

    OperandColumns<true> columns(const KeyRows<N> &values, int64_t first) {
        const int64_t block = first / BLOCK % BLOCKS;
        if (!ready[block]) OperandColumns<true>::transpose_pairs(values, columns_of_block[block]);
        ready[block] = true;
        return OperandColumns<true>(columns_of_block[block]);
    }
};

// The span of keys or lanes rounded outwards to whole operands of a product that sums over them.
template <class T>
INLINE Span whole_operands(Span span) {
    constexpr int64_t numbers = NUMBERS_IN<T> * STEP<T>;
    return {span.first / numbers * numbers, (span.last + numbers - 1) / numbers * numbers};
}

// B is [K][LANES] and C [BLOCK][LANES].
template <int LANES, bool PAIRS, class T>
INLINE void product_with_keys(const KeyBlock<LANES> &block, const OperandRows<PAIRS> &A, const T *B, int64_t K, float *C) {
    block.for_each_part([&](Span keys, Span lanes) {
        product<false>(keys.count(), lanes.count(), A.first + keys.first * A.row, A.row, 1, B + lanes.first, LANES, K,
                       C + keys.first * LANES + lanes.first, LANES);
    });
}

// B is [BLOCK][LANES], with zeros where `whole_operands` adds keys to a vector's span, and C [M][LANES].
template <int LANES, bool PAIRS, class T>
INLINE void product_over_keys(const KeyBlock<LANES> &block, int64_t M, const OperandColumns<PAIRS> &A, const T *B,
                              float *C) {
    const int64_t step = block.ragged ? W : LANES;
    for (int64_t lane = 0; lane < LANES; lane += step) {
        const Span keys = whole_operands<T>(block.span(lane));
        const int64_t at = keys.first / NUMBERS_IN<T>, K = keys.count() / NUMBERS_IN<T>;
        if (K) product<true>(M, step, A.first + at * A.key, A.row, A.key, B + at * LANES + lane, LANES, K, C + lane, LANES);
    }
}

// A is [BLOCK][LANES] and B [LANES][row]; C, whose rows are those of the block's keys, is [BLOCK][row]. A is 0 in the whole
// operands that a vector of lanes or a block only begins.
template <int LANES, class T>
INLINE void product_over_lanes(const KeyBlock<LANES> &block, int64_t size, const T *A, const T *B, int64_t row, float *C) {
    block.for_each_part([&](Span keys, Span seen_by) {
        const Span lanes = whole_operands<T>(seen_by);
        product<true>(keys.count(), (size + W - 1) / W * W, A + (keys.first * LANES + lanes.first) / NUMBERS_IN<T>,
                      LANES / NUMBERS_IN<T>, 1, B + lanes.first / NUMBERS_IN<T> * row, row,
                      lanes.count() / NUMBERS_IN<T>, C + keys.first * row, row);
    });
}

}  // namespace heedful::HEEDFUL_ISA
