// The checks of a problem's arguments. The kernels trust what passes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "heedful.h"

namespace heedful {

constexpr int64_t MAX_NUMBERS = int64_t{1} << 48;  // that a tensor spans: more than memory holds

// Whether a product of sizes, none of which is negative, is at most MAX_NUMBERS.
inline bool fits(std::initializer_list<int64_t> sizes) {
    int64_t product = 1;
    for (int64_t size : sizes)
        if (__builtin_mul_overflow(product, size, &product) || product > MAX_NUMBERS) return false;
    return true;
}

inline int32_t check_dtype(const heedful_problem &p) {
    return p.dtype < HEEDFUL_F32 || p.dtype > HEEDFUL_F16 ? HEEDFUL_UNKNOWN_DTYPE : HEEDFUL_OK;
}

inline int32_t check_sizes(const heedful_problem &p) {
    for (int64_t size : {p.B, p.Hq, p.Hkv, p.Tq, p.Tk, p.D, p.Dv})
        if (size < 0 || size > INT32_MAX) return HEEDFUL_BAD_SIZE;
    if (!p.D || !p.Dv) return HEEDFUL_BAD_SIZE;
    // Scratch rows are padded. An empty axis does not make room for others, because scratch does not have them all.
    const int64_t row = p.D + p.Dv + 64;
    const auto at_least_1 = [](int64_t size) { return std::max(size, int64_t{1}); };
    if (!fits({at_least_1(p.B), at_least_1(p.Hq), at_least_1(p.Tq), row})) return HEEDFUL_BAD_SIZE;
    if (!fits({at_least_1(p.B), at_least_1(p.Hkv), at_least_1(p.Tk), row})) return HEEDFUL_BAD_SIZE;
    if (p.Hkv ? p.Hq % p.Hkv != 0 : p.Hq != 0) return HEEDFUL_BAD_HEADS;
    return HEEDFUL_OK;
}

struct Axis {
    int64_t size, stride;
};

// Check the strides of a tensor that is not empty: none is negative, and it spans at most MAX_NUMBERS.
inline int32_t check_strides(std::initializer_list<Axis> axes) {
    int64_t span = 0;
    for (const Axis &axis : axes) {
        int64_t length;
        if (axis.stride < 0 || __builtin_mul_overflow(axis.size - 1, axis.stride, &length)) return HEEDFUL_BAD_STRIDE;
        if (length > MAX_NUMBERS || (span += length) > MAX_NUMBERS) return HEEDFUL_BAD_STRIDE;
    }
    return HEEDFUL_OK;
}

// Check an input (B, H, T, size).
inline int32_t check_tensor(const heedful_tensor &x, int64_t B, int64_t H, int64_t T, int64_t size) {
    if (!B || !H || !T) return HEEDFUL_OK;
    if (!x.data) return HEEDFUL_MISSING_TENSOR;
    return check_strides({{B, x.batch}, {H, x.head}, {T, x.token}, {size, 1}});
}

// Check a result (B, H, T, size), whose rows must not overlap either.
inline int32_t check_result(const heedful_tensor &x, int64_t B, int64_t H, int64_t T, int64_t size) {
    if (const int32_t status = check_tensor(x, B, H, T, size)) return status;
    Axis axes[] = {{B, x.batch}, {H, x.head}, {T, x.token}};
    std::sort(axes, axes + 3, [](const Axis &a, const Axis &b) { return a.stride < b.stride; });
    int64_t span = size;
    for (const Axis &axis : axes) {
        if (B * H * T == 0 || axis.size == 1) continue;
        if (axis.stride < span) return HEEDFUL_BAD_STRIDE;
        span += (axis.size - 1) * axis.stride;
    }
    return HEEDFUL_OK;
}

// Check a plane (B, Hq, Tq, Tk), which may be missing.
inline int32_t check_plane(const heedful_plane &x, const heedful_problem &p) {
    if (!x.data || !p.B || !p.Hq || !p.Tq || !p.Tk) return HEEDFUL_OK;
    return check_strides({{p.B, x.batch}, {p.Hq, x.head}, {p.Tq, x.query}, {p.Tk, x.key}});
}

inline int32_t check_key_ranges(const heedful_problem &p) {
    if (p.key_ranges < 0 || p.key_ranges > HEEDFUL_MAX_KEY_RANGES) return HEEDFUL_TOO_MANY_KEY_RANGES;
    if (!p.key_ranges || !p.B || !p.Tq) return HEEDFUL_OK;
    if (!p.range_start || !p.range_stop) return HEEDFUL_MISSING_TENSOR;
    return check_strides({{p.B, p.range_batch}, {p.Tq, p.key_ranges}});
}

// Return the heedful_status of a problem as the forward pass takes it.
inline int32_t check(const heedful_problem *problem) {
    if (!problem) return HEEDFUL_MISSING_TENSOR;
    const heedful_problem &p = *problem;
    if (const int32_t status = check_dtype(p)) return status;
    if (const int32_t status = check_sizes(p)) return status;
    if (const int32_t status = check_key_ranges(p)) return status;
    if (!(p.dropout_p >= 0 && p.dropout_p <= 1)) return HEEDFUL_BAD_DROPOUT;
    for (int32_t status : {check_tensor(p.query, p.B, p.Hq, p.Tq, p.D), check_tensor(p.key, p.B, p.Hkv, p.Tk, p.D),
                           check_tensor(p.value, p.B, p.Hkv, p.Tk, p.Dv),
                           check_result(p.output, p.B, p.Hq, p.Tq, p.Dv), check_plane(p.mask, p),
                           check_plane(p.bias, p)})
        if (status) return status;
    return HEEDFUL_OK;
}

// Return the heedful_status of a backward pass's arguments.
inline int32_t check(const heedful_gradient *gradient) {
    if (!gradient) return HEEDFUL_MISSING_TENSOR;
    const heedful_gradient &g = *gradient;
    const heedful_problem &p = g.forward;
    if (const int32_t status = check(&p)) return status;
    if (!p.lse && p.B && p.Hq && p.Tq) return HEEDFUL_MISSING_TENSOR;
    if ((g.grad_bias.data && !p.bias.data) || (g.grad_sinks && !p.sinks)) return HEEDFUL_MISSING_TENSOR;
    for (int32_t status :
         {check_tensor(g.grad_output, p.B, p.Hq, p.Tq, p.Dv), check_result(g.grad_query, p.B, p.Hq, p.Tq, p.D),
          check_result(g.grad_key, p.B, p.Hkv, p.Tk, p.D), check_result(g.grad_value, p.B, p.Hkv, p.Tk, p.Dv),
          check_plane(g.grad_bias, p)})
        if (status) return status;
    return HEEDFUL_OK;
}

// Check the counts and places of a summary: none is negative, and its results span at most MAX_NUMBERS.
inline int32_t check_counts(const heedful_summary &s) {
    const heedful_problem &p = s.attention;
    for (int64_t count : {s.top_k, s.regions})
        if (count < 0 || count > INT32_MAX || !fits({p.B, p.Hq, p.Tq, count})) return HEEDFUL_BAD_SUMMARY;
    if (s.shift < -INT32_MAX || s.shift > INT32_MAX || s.shift + p.Tq > INT32_MAX || s.shift - p.Tk < -INT32_MAX)
        return HEEDFUL_BAD_SUMMARY;
    if (!s.cell_sums && !s.cell_maxima) return HEEDFUL_OK;
    const auto is_cell = [](int64_t size, int64_t offset) {
        return 1 <= size && size <= INT32_MAX && 0 <= offset && offset < size;
    };
    if (!is_cell(s.cell_queries, s.query_offset) || !is_cell(s.cell_keys, s.key_offset)) return HEEDFUL_BAD_SUMMARY;
    const int64_t rows = s.query_offset + p.Tq, columns = s.key_offset + p.Tk;
    return fits({p.B, p.Hq, rows / s.cell_queries + 1, columns / s.cell_keys + 1}) ? HEEDFUL_OK : HEEDFUL_BAD_SUMMARY;
}

// Return the heedful_status of a summary's arguments.
inline int32_t check(const heedful_summary *summary) {
    if (!summary) return HEEDFUL_MISSING_TENSOR;
    const heedful_summary &s = *summary;
    const heedful_problem &p = s.attention;
    if (const int32_t status = check_dtype(p)) return status;
    if (const int32_t status = check_sizes(p)) return status;
    if (const int32_t status = check_key_ranges(p)) return status;
    if (const int32_t status = check_counts(s)) return status;
    for (int32_t status : {check_tensor(p.query, p.B, p.Hq, p.Tq, p.D), check_tensor(p.key, p.B, p.Hkv, p.Tk, p.D),
                           check_plane(p.mask, p), check_plane(p.bias, p)})
        if (status) return status;
    if (!p.B || !p.Hq || !p.Tq) return HEEDFUL_OK;
    if (s.top_k && (!s.top_weights || !s.top_keys)) return HEEDFUL_MISSING_TENSOR;
    if (!s.regions) return HEEDFUL_OK;
    if (!s.region_start || !s.region_stop || !s.region_mass) return HEEDFUL_MISSING_TENSOR;
    return check_strides({{p.B, s.region_batch}, {p.Tq, s.regions}, {s.regions, 1}});
}

}  // namespace heedful
