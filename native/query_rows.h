// The query rows of one tile, one in each lane.
#pragma once

#include <cstdint>

#include "heedful.h"
#include "vector.h"

namespace heedful::HEEDFUL_ISA {

// Rows are the queries of all heads that share one key/value head: query by query, and within a query head by head, so
// that neighbouring lanes see nearly the same keys. There are Tq · group of them.
constexpr int FEW = 8;  // heads of at most so many query rows take DecodeTile

template <int LANES>
struct QueryRows {
    int64_t b, kv_head, first;  // first: the row in lane 0
    int count;                  // at most LANES; the other lanes are idle
    int64_t group;              // query heads of one key/value head

    QueryRows(const heedful_problem &p, int64_t b_, int64_t kv_head_, int64_t first_)
        : b(b_), kv_head(kv_head_), first(first_), group(p.Hq / p.Hkv) {
        int64_t left = p.Tq * group - first;
        count = left < LANES ? (int)left : LANES;
    }
    int64_t query(int lane) const { return (first + lane) / group; }
    int64_t head(int lane) const { return kv_head * group + (first + lane) % group; }

    // Offset in elements of a lane's row in a tensor of queries or outputs, and of its key 0 in a mask or bias.
    int64_t offset_in(const heedful_tensor &tensor, int lane) const {
        return b * tensor.batch + head(lane) * tensor.head + query(lane) * tensor.token;
    }
    int64_t offset_in(const heedful_plane &plane, int lane) const {
        return b * plane.batch + head(lane) * plane.head + query(lane) * plane.query;
    }
    // Index of a lane in a contiguous tensor (B, Hq, Tq), such as the log-sum-exp.
    int64_t index(const heedful_problem &p, int lane) const { return (b * p.Hq + head(lane)) * p.Tq + query(lane); }
};

}  // namespace heedful::HEEDFUL_ISA
