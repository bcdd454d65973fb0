/* heedful.h: attention on CPUs. Pointers, strides and sizes in, numbers out; it knows neither Torch nor Python.
 *
 * Sizes as everywhere in heedful: B batch entries, Hq query heads on Hkv key/value heads (Hkv divides Hq), Tq
 * queries, Tk keys, head sizes D and Dv. Strides count elements; the last dimension is contiguous.
 */
#ifndef HEEDFUL_H
#define HEEDFUL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEEDFUL_ABI 1

enum heedful_dtype { HEEDFUL_F32 = 0, HEEDFUL_BF16 = 1, HEEDFUL_F16 = 2 };

/* Runs work(begin, end, context) over parts of begin…end-1, in any order, on any number of threads. */
typedef void (*heedful_work)(int64_t begin, int64_t end, void *context);
typedef int32_t (*heedful_parallel_for)(int64_t begin, int64_t end, int64_t grain, heedful_work work, void *context);

/* A (B, H, T, size) tensor: the last dimension is contiguous, the others have strides. */
typedef struct {
    void *data;
    int64_t batch, head, token;
} heedful_tensor;

/* A (B, Hq, Tq, Tk) tensor that may be broadcast: stride 0 along what all share. data NULL: there is none. */
typedef struct {
    void *data;
    int64_t batch, head, query, key;
} heedful_plane;

typedef struct {
    int64_t B, Hq, Hkv, Tq, Tk, D, Dv;
    int32_t dtype;              /* of query, key, value, output and their gradients */
    float scale;
    float softcap;              /* 0: none */
    heedful_tensor query, key, value, output;
    float *lse;                 /* (B, Hq, Tq) contiguous, natural logarithm; may be NULL in the forward pass */

    /* Which keys a query sees: `runs` runs start…stop-1 per (batch entry, query); runs 0: all keys. */
    const int32_t *start, *stop; /* (B or 1, Tq, runs) contiguous */
    int64_t runs_batch;          /* stride from one batch entry to the next; 0 where all share */
    int32_t runs;

    heedful_plane mask;         /* bytes, not 0 = attend */
    heedful_plane bias;         /* float */
    const float *sinks;         /* (Hq,) or NULL */

    double dropout_p;
    uint64_t seed;

    heedful_parallel_for parallel_for; /* NULL: on the calling thread */
} heedful_problem;

/* output and lse from query, key, value. Returns 0, or 1 where memory ran out. */
int32_t heedful_forward(const heedful_problem *problem);

/* The same in four plain passes, float32 inputs only: what the tests hold the others to. */
int32_t heedful_forward_plain(const heedful_problem *problem);

typedef struct {
    heedful_problem forward;     /* output and lse as the forward pass gave them */
    const float *grad_lse;       /* (B, Hq, Tq) contiguous; NULL: the lse was not used */
    heedful_tensor grad_output, grad_query, grad_key, grad_value;
    heedful_plane grad_bias;     /* float, zeroed by the caller, shape and strides of the bias; NULL: not wanted */
    float *grad_sinks;           /* (Hq,) or NULL */
} heedful_gradient;

/* Gradients of query, key and value (and bias and sinks) from that of the output. */
int32_t heedful_backward(const heedful_gradient *gradient);

/* The same in plain passes, float32 inputs only. */
int32_t heedful_backward_plain(const heedful_gradient *gradient);

/* The instruction set in use: "generic", "avx2", "avx512" or "avx512bf16"; and choosing it by name (0: done). */
const char *heedful_isa(void);
int32_t heedful_use_isa(const char *name);
int32_t heedful_abi(void);

#ifdef __cplusplus
}
#endif
#endif
