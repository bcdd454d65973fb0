/* The C interface of heedful: attention on CPUs. It takes pointers, strides and sizes, and depends on neither Torch nor
 * Python.
 *
 * Sizes: B batch entries, Hq query heads that share Hkv key/value heads (Hkv divides Hq), Tq queries, Tk keys, and the
 * head sizes D and Dv. Strides count elements, not bytes.
 */
#ifndef HEEDFUL_H
#define HEEDFUL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It changes whenever a struct, a code or a function's meaning changes. */
#define HEEDFUL_ABI 4

/* The maximum number of key ranges of one query. The kernels' buffers have this size, and callers must not exceed it:
 * heedful_max_key_ranges() lets them compare their own limit. */
#define HEEDFUL_MAX_KEY_RANGES 2

enum heedful_dtype { HEEDFUL_F32 = 0, HEEDFUL_BF16 = 1, HEEDFUL_F16 = 2 };

/* The return codes of the passes. Results are undefined unless a pass returns HEEDFUL_OK. A pass checks all of its
 * arguments first, and writes nothing if it refuses them. It cannot see how large the buffers are. */
enum heedful_status {
    HEEDFUL_OK = 0,
    HEEDFUL_NO_MEMORY = 1,
    HEEDFUL_UNKNOWN_DTYPE = 2,       /* a dtype that the function called does not support */
    HEEDFUL_TOO_MANY_KEY_RANGES = 3, /* key_ranges is negative or exceeds HEEDFUL_MAX_KEY_RANGES */
    HEEDFUL_BAD_SIZE = 4,            /* a size is negative, a head size is 0, or a tensor has more than 2^48 numbers */
    HEEDFUL_BAD_HEADS = 5,           /* Hkv does not divide Hq */
    HEEDFUL_BAD_STRIDE = 6,          /* a stride is negative, spans more than 2^48 numbers, or lets results overlap */
    HEEDFUL_MISSING_TENSOR = 7,      /* a pointer that the pass needs is NULL */
    HEEDFUL_BAD_DROPOUT = 8,         /* dropout_p is not from 0 to 1 */
    HEEDFUL_BAD_SUMMARY = 9,         /* a count or a place of heedful_summary is out of range */
};

/* Runs work(begin, end, context) on parts of [begin, end), in any order, on any number of threads. */
typedef void (*heedful_work)(int64_t begin, int64_t end, void *context);
typedef int32_t (*heedful_parallel_for)(int64_t begin, int64_t end, int64_t grain, heedful_work work, void *context);

/* A tensor (B, H, T, size) whose last dimension is contiguous, with the strides of the others, which are not negative.
 * Inputs may overlap in memory, results may not. */
typedef struct {
    void *data;
    int64_t batch, head, token;
} heedful_tensor;

/* A tensor (B, Hq, Tq, Tk) that may be broadcast: its stride is 0 along a shared dimension. NULL data: no tensor. */
typedef struct {
    void *data;
    int64_t batch, head, query, key;
} heedful_plane;

typedef struct {
    int64_t B, Hq, Hkv, Tq, Tk, D, Dv;
    int32_t dtype;              /* of query, key, value, output and their gradients: heedful_dtype */
    float scale;                /* factor of the dot products */
    float softcap;              /* 0: none */
    heedful_tensor query, key, value, output; /* (B, Hq, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, Dv), (B, Hq, Tq, Dv) */
    float *lse;                 /* (B, Hq, Tq) contiguous, natural logarithm; the forward pass accepts NULL */

    /* The keys that a query sees: key_ranges ranges [range_start, range_stop) for each batch entry and query.
     * With key_ranges = 0 every query sees every key. */
    const int32_t *range_start, *range_stop; /* (B or 1, Tq, key_ranges) contiguous */
    int64_t range_batch;        /* stride of the batch entries; 0 if they share their ranges */
    int32_t key_ranges;         /* at most HEEDFUL_MAX_KEY_RANGES */

    heedful_plane mask;         /* bytes; nonzero = attend */
    heedful_plane bias;         /* float, added to the scores */
    const float *sinks;         /* (Hq,) sink logits, or NULL */

    double dropout_p;           /* 0: no dropout */
    uint64_t seed;

    heedful_parallel_for parallel_for; /* NULL: everything runs on the calling thread */
} heedful_problem;

/* Compute output and lse from query, key and value. Returns a heedful_status. */
int32_t heedful_forward(const heedful_problem *problem);

/* Return how many bytes heedful_forward allocates on this number of threads, with the instruction set in use, or -1 if it
 * refuses the sizes or the dtype. Nothing but they is read from the problem. */
int64_t heedful_forward_scratch(const heedful_problem *problem, int64_t threads);

/* Compute the same in four plain passes, from float32 tensors only. The tests compare the other kernels with it. */
int32_t heedful_forward_plain(const heedful_problem *problem);

typedef struct {
    heedful_problem forward;     /* with the output and lse of the forward pass */
    const float *grad_lse;       /* (B, Hq, Tq) contiguous; NULL if the lse was not used */
    heedful_tensor grad_output, grad_query, grad_key, grad_value; /* shapes as of output, query, key and value */
    heedful_plane grad_bias;     /* float, zeroed by the caller, shape and strides of the bias; NULL: not computed */
    float *grad_sinks;           /* (Hq,); NULL: not computed */
} heedful_gradient;

/* Compute the gradients of query, key and value, and of bias and sinks, from the output's. Returns a heedful_status. */
int32_t heedful_backward(const heedful_gradient *gradient);

/* Compute the same in plain passes, from float32 tensors only. */
int32_t heedful_backward_plain(const heedful_gradient *gradient);

/* Statistics of the attention weights exp(score - lse), before dropout. NULL results are not computed. */
typedef struct {
    heedful_problem attention;   /* its value, output, dropout_p and seed are not used; its lse is a result, or NULL */
    const float *lse;            /* (B, Hq, Tq) contiguous, the logarithms of the normalizers; NULL: those of these keys */
    int64_t shift;               /* query i stands at key i + shift */

    /* For each query, (B, Hq, Tq) contiguous: the sum of its weights, their entropy (-sum of w ln w), the largest, and the
     * sum of w |query's place - key|. */
    float *mass, *entropy, *largest, *distance;

    float *received;             /* (B, Hq, Tk) contiguous: the sum over the queries of each key's weights */

    /* The largest weights of each query in descending order, the earlier key first of equal ones: (B, Hq, Tq, top_k)
     * contiguous. If there are fewer keys, the last weights are 0 and their keys -1. */
    int64_t top_k;
    float *top_weights;
    int64_t *top_keys;

    /* The mass of each query in regions, which are key ranges: (B or 1, Tq, regions) contiguous, like those of the problem;
     * the result is (B, Hq, Tq, regions) contiguous. */
    int64_t regions, region_batch;
    const int32_t *region_start, *region_stop;
    float *region_mass;

    /* The sums and the largest weights of cells of cell_queries x cell_keys weights, (B, Hq, rows, columns) contiguous and
     * zeroed by the caller. Query i is in row (query_offset + i) / cell_queries, and keys likewise; the offsets are less
     * than a cell. */
    int64_t cell_queries, cell_keys, query_offset, key_offset;
    float *cell_sums, *cell_maxima;
} heedful_summary;

/* Compute the statistics that are not NULL. Returns a heedful_status. */
int32_t heedful_summarize(const heedful_summary *summary);

/* Compute the same in plain passes, from float32 tensors only. */
int32_t heedful_summarize_plain(const heedful_summary *summary);

/* The values that the library was compiled with, which a caller compares with its own: the version of the interface, the
 * maximum number of key ranges, and the sizes of the structs in bytes. */
int32_t heedful_abi(void);
int32_t heedful_max_key_ranges(void);
int64_t heedful_problem_size(void);
int64_t heedful_gradient_size(void);
int64_t heedful_summary_size(void);

/* Return the instruction set in use: "generic", "avx2", "avx512", "avx512bf16", "amx", "neon" or "neon_bf16". */
const char *heedful_isa(void);

/* Use another instruction set from now on. Returns 0, or 1 if the library or the machine lacks it. */
int32_t heedful_use_isa(const char *name);

#ifdef __cplusplus
}
#endif
#endif
