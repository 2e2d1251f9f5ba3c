/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file kernels.h
 * The kernel families: one argument struct per kernel, one table per implementation.
 *
 * ref is the definition: plain loops accumulating in double, never optimised. cpu is OpenMP and
 * SIMD. A table starts as a copy of ref and is overwritten by what exists; backends alone call.
 *
 * Conventions. Arrays are row-major and contiguous unless a stride is given. Activations are f32,
 * bf16 or f16 (field type); statistics, parameters' gradients in reduce dtype and optimizer state
 * are f32 unless said otherwise; accumulation is f32 or wider (ref: double). Any count may be 0;
 * such a call writes only what its definition still defines (a sum over nothing is 0). "accumulate"
 * means out += result, else out = result. Pointers do not overlap unless said otherwise.
 * Kernels never allocate: scratch is a workspace; tsrk_workspace() gives its size by the sizes.
 */
#pragma once

#include "tessera/dtype.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** c [m, n] (+)= op(a) [m, k] * op(b) [k, n] + bias [n], batch times (0: once), the next one's
 *  operands stride_a, stride_b, stride_c elements further on.
 *  a is [m, k] with row stride lda, or [k, m] if trans_a; b is [k, n], or [n, k] if trans_b.
 *  bias may be NULL; it is added once (never scaled). k == 0 gives 0 (+ bias). f32, bf16 or f16
 * each. */
typedef struct tsrk_matmul {
    const void *a;
    const void *b;
    const void *bias;
    void *c;
    void *workspace;
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* elements */
    int64_t batch, stride_a, stride_b, stride_c;
    tsr_dtype a_type, b_type, c_type, bias_type;
    bool trans_a, trans_b, accumulate;
} tsrk_matmul;

/** out [outer, inner] (+)= factor * sum over mid of x [outer, mid, inner] * w [outer, mid, inner].
 * w may be NULL: 1. Sums over a dim or over rows (bias gradients). f32, bf16 or f16 each. */
typedef struct tsrk_sum {
    const void *x, *w;
    void *out;
    int64_t outer, mid, inner;
    float factor;
    tsr_dtype x_type, w_type, out_type;
    bool accumulate;
} tsrk_sum;

/** y [outer, mid, inner] (+)= factor * a [outer, mid, inner] * b [outer, inner]: b is repeated
 * along mid. a may be NULL: 1. y may be a, of one type and not accumulated. f32, bf16 or f16 each.
 */
typedef struct tsrk_multiply {
    const void *a, *b;
    void *y;
    int64_t outer, mid, inner;
    float factor;
    tsr_dtype a_type, b_type, y_type;
    bool accumulate;
} tsrk_multiply;

/** y [rows, cols]: y[r] = table[id - begin] if begin <= id < begin + table_rows, else 0. */
typedef struct tsrk_embedding {
    const int32_t *ids; /* [rows] global ids */
    const void *table;  /* [table_rows, cols], this rank's rows */
    void *y;
    int64_t rows, cols, begin, table_rows;
    tsr_dtype type;
} tsrk_embedding;

/** dtable [table_rows, cols] (+)= scatter-add of dy [rows, cols], in row order (deterministic). */
typedef struct tsrk_embedding_bwd {
    const int32_t *ids;
    const void *dy;
    void *dtable;
    int64_t rows, cols, begin, table_rows;
    tsr_dtype type, grad_type; /* of dy; of dtable */
    bool accumulate;
} tsrk_embedding_bwd;

/** y [batch, seq, cols] = x + table[position] with position = first + t. Learned positions. */
typedef struct tsrk_add_position {
    const void *x;
    const void *table; /* [>= first + seq, cols] */
    void *y;
    int64_t batch, seq, cols, first;
    tsr_dtype type;
} tsrk_add_position;

/** dtable [table_rows, cols] (+)= sum over batch of dy at rows first .. first + seq; other rows
 *  are 0 (or unchanged with accumulate). */
typedef struct tsrk_add_position_bwd {
    const void *dy;
    void *dtable;
    int64_t batch, seq, cols, first, table_rows;
    tsr_dtype type, grad_type;
    bool accumulate;
} tsrk_add_position_bwd;

/** layernorm: y = (x - mean) * rstd * gain + bias over the last dim; rstd = 1/sqrt(var + eps),
 *  var biased. x, y [rows, cols]; mean, rstd [rows] f32 are saved for backward. */
typedef struct tsrk_layernorm {
    const void *x, *gain, *bias;
    void *y;
    float *mean, *rstd;
    int64_t rows, cols;
    float eps;
    tsr_dtype type;
} tsrk_layernorm;

/** dx [rows, cols] (+)= ..., dgain, dbias [cols] (+)= ...; accumulate flags are separate. dgain,
 *  dbias may be NULL. workspace: per-thread partial sums. */
typedef struct tsrk_layernorm_bwd {
    const void *dy, *x, *gain;
    const float *mean, *rstd;
    void *dx, *dgain, *dbias, *workspace;
    int64_t rows, cols;
    tsr_dtype type, grad_type;
    bool accumulate_dx, accumulate_dgain, accumulate_dbias;
} tsrk_layernorm_bwd;

/** rmsnorm: y = x / sqrt(mean(x^2) + eps) * gain. rstd [rows] f32 saved. */
typedef struct tsrk_rmsnorm {
    const void *x, *gain;
    void *y;
    float *rstd;
    int64_t rows, cols;
    float eps;
    tsr_dtype type;
} tsrk_rmsnorm;

typedef struct tsrk_rmsnorm_bwd {
    const void *dy, *x, *gain;
    const float *rstd;
    void *dx, *dgain, *workspace;
    int64_t rows, cols;
    tsr_dtype type, grad_type;
    bool accumulate_dx, accumulate_dgain;
} tsrk_rmsnorm_bwd;

/** Functions of one number. */
typedef enum tsrk_function {
    TSRK_GELU = 0, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    TSRK_RELU,     /* x, where that is above 0, else 0 */
    TSRK_TANH,
    TSRK_SIGMOID, /* 1 / (1 + exp(-x)) */
    TSRK_FUNCTION_COUNT
} tsrk_function;

/** y = function(x). */
typedef struct tsrk_pointwise {
    const void *x;
    void *y;
    int64_t n;
    tsrk_function function;
    tsr_dtype type;
} tsrk_pointwise;

/** dx (+)= dy * the function's slope, got from x for gelu and from y for the others. dx may be dy
 *  (then not accumulate). */
typedef struct tsrk_pointwise_bwd {
    const void *dy, *from;
    void *dx;
    int64_t n;
    tsrk_function function;
    tsr_dtype type;
    bool accumulate;
} tsrk_pointwise_bwd;

/** y = silu(gate) * up, silu(z) = z / (1 + exp(-z)). */
typedef struct tsrk_silu_mul {
    const void *gate, *up;
    void *y;
    int64_t n;
    tsr_dtype type;
} tsrk_silu_mul;

typedef struct tsrk_silu_mul_bwd {
    const void *dy, *gate, *up;
    void *dgate, *dup;
    int64_t n;
    tsr_dtype type;
    bool accumulate_dgate, accumulate_dup;
} tsrk_silu_mul_bwd;

/** Rotary embedding, half-split: for i < dim/2, with angle = position * theta^(-2i/dim),
 *  y[i] = x[i] cos - x[i+dim/2] sin, y[i+dim/2] = x[i+dim/2] cos + x[i] sin.
 *  x, y [batch, seq, heads, dim]; position = first + t. inverse turns by -angle (the gradient).
 *  table, when not NULL, is [seq, dim/2] pairs (cos, sin) as f32 written by tsrk_rope_table.
 *  accumulate adds to y. In place (x == y) is allowed without accumulate. */
typedef struct tsrk_rope {
    const void *x;
    const float *table;
    void *y;
    int64_t batch, seq, heads, dim, first;
    double theta;
    tsr_dtype type;
    bool inverse, accumulate;
} tsrk_rope;

/** table [seq, dim/2, 2] = (cos, sin) of (first + t) * theta^(-2i/dim), computed in double. */
typedef struct tsrk_rope_table {
    float *table;
    int64_t seq, dim, first;
    double theta;
} tsrk_rope_table;

/** Attention with grouped queries. q, out [batch, seq, heads, dim]; k, v [batch, kv_seq, kv_heads,
 *  dim]; query head h uses kv head h / (heads / kv_heads). Causal: query t sees the keys up to
 *  t + kv_seq - seq, the queries being the last of the positions, so kv_seq >= seq; full: every
 * query sees every key, of which there is one at least. lse [batch, heads, seq] f32: natural log of
 * the sum of exp of the scaled scores that a query sees; saved for backward. */
typedef struct tsrk_attention {
    const void *q, *k, *v;
    void *out, *workspace;
    float *lse;
    int64_t batch, seq, kv_seq, heads, kv_heads, dim;
    float scale;
    tsr_dtype type;
    bool full;
} tsrk_attention;

/** Gradients of attention. dq, dk, dv have the shapes of q, k, v and are written (not added). */
typedef struct tsrk_attention_bwd {
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    void *dq, *dk, *dv, *workspace;
    int64_t batch, seq, kv_seq, heads, kv_heads, dim;
    float scale;
    tsr_dtype type;
    bool full;
} tsrk_attention_bwd;

/** Keys that query t sees. */
static inline int64_t tsrk_visible_keys(int64_t seq, int64_t kv_seq, bool full, int64_t t)
{
    return full ? kv_seq : kv_seq - seq + t + 1;
}

/** y [n] = a + b. y may be a or b. */
typedef struct tsrk_add {
    const void *a, *b;
    void *y;
    int64_t n;
    tsr_dtype a_type, b_type, y_type;
} tsrk_add;

/** y [n] (+)= x * factor * (*device_factor if not NULL), with a cast between types. Copies, casts,
 *  scales and accumulations are all this. y may be x when the types are equal. */
typedef struct tsrk_scale {
    const void *x;
    const float *device_factor;
    void *y;
    int64_t n;
    float factor;
    tsr_dtype x_type, y_type;
    bool accumulate;
} tsrk_scale;

/** out [bytes] = 0. */
typedef struct tsrk_zero {
    void *out;
    size_t bytes;
} tsrk_zero;

/** dst[o, m, 0..inner) = src[o, m, 0..inner): blocks of inner bytes with byte strides. */
typedef struct tsrk_copy_blocks {
    const void *src;
    void *dst;
    int64_t outer, mid;
    size_t inner_bytes;
    int64_t src_outer_stride, src_mid_stride, dst_outer_stride, dst_mid_stride; /* bytes */
} tsrk_copy_blocks;

/** Dropout: y = keep ? x / (1 - p) : 0. x, y [batch, seq, cols], a piece of a global
 *  [*, global_seq, global_cols] that starts at (first_row, first_pos, first_col). An element is
 *  kept if tsri_rng_word(key, ((row * global_seq) + pos) * global_cols + col) >= p * 2^32
 *  (rounded to the nearest integer). Backward is the same call on dy. With step (a device scalar)
 * the key of this step's mask is tsri_rng_key(key, *step, site, call), else key itself. */
typedef struct tsrk_dropout {
    const void *x;
    void *y;
    int64_t batch, seq, cols;
    int64_t first_row, first_pos, first_col, global_seq, global_cols;
    const int64_t *step;
    uint64_t key, site, call;
    float p;
    tsr_dtype type;
    bool accumulate;
} tsrk_dropout;

/** Whether a label counts: not ignore_index and, where limit is not 0, within [0, limit). */
static inline bool tsrk_label_counts(int32_t label, int32_t ignore_index, int64_t limit)
{
    return label != ignore_index && (limit == 0 || (label >= 0 && label < limit));
}

/** If *found is 0 and one of ids [n] is outside [0, limit) and not ignore_index: *found = 1, and
 *  where = {its place in ids, the id, limit, call} of the first. ids: labels or token ids. */
typedef struct tsrk_check_ids {
    const int32_t *ids;
    double *found;  /* a double, so that ranks can take the maximum */
    int64_t *where; /* [4] */
    int64_t n, limit;
    int64_t call; /* the caller's number for this */
    int32_t ignore_index;
    bool ignores; /* ignore_index has a meaning */
} tsrk_check_ids;

/** out [1] f64 = number of labels [n] that count. */
typedef struct tsrk_count_labels {
    const int32_t *labels;
    double *out;
    int64_t n;
    int64_t limit; /* see tsrk_label_counts */
    int32_t ignore_index;
    bool accumulate;
} tsrk_count_labels;

/* Vocabulary-parallel cross entropy. logits [rows, cols] are columns begin .. begin + cols of the
 * vocabulary. Between the calls the caller all-reduces row_max (max), then row_sum and row_target
 * (sum) over the ranks that split the vocabulary. */

/** row_max [rows] f32 = max over cols (-inf when cols == 0). */
typedef struct tsrk_xent_max {
    const void *logits;
    float *row_max;
    int64_t rows, cols;
    tsr_dtype type;
} tsrk_xent_max;

/** row_sum [rows] = sum of exp(logit - row_max); row_target [rows] = logit[label] - row_max if the
 *  label lies in this piece, else 0. */
typedef struct tsrk_xent_sum {
    const void *logits;
    const int32_t *labels;
    const float *row_max;
    float *row_sum, *row_target;
    int64_t rows, cols, begin;
    tsr_dtype type;
} tsrk_xent_sum;

/** loss [1] f32 = (sum over rows whose label counts of log(row_sum) - row_target) / count;
 *  0 when count is 0. lse [rows] = row_max + log(row_sum). Sums in double. */
typedef struct tsrk_xent_loss {
    const int32_t *labels;
    const float *row_max, *row_sum, *row_target;
    const double *count; /* device scalar: tokens of the whole step */
    float *loss, *lse;
    int64_t rows;
    int64_t limit;
    int32_t ignore_index;
} tsrk_xent_loss;

/** dlogits = (exp(logit - lse) - [col == label]) * dloss / count; 0 in ignored rows and when count
 *  is 0. dlogits may be logits when the types are equal. */
typedef struct tsrk_xent_bwd {
    const void *logits;
    const int32_t *labels;
    const float *lse, *dloss;
    const double *count;
    void *dlogits;
    int64_t rows, cols, begin;
    int64_t limit;
    int32_t ignore_index;
    tsr_dtype type;
} tsrk_xent_bwd;

/** y [rows, cols] = exp(x - the row's maximum), divided by the row's sum of them. */
typedef struct tsrk_softmax {
    const void *x;
    void *y;
    int64_t rows, cols;
    tsr_dtype type;
} tsrk_softmax;

/** dx (+)= y * (dy - the row's sum of dy * y). dx may be dy (then not accumulate). */
typedef struct tsrk_softmax_bwd {
    const void *dy, *y;
    void *dx;
    int64_t rows, cols;
    tsr_dtype type;
    bool accumulate;
} tsrk_softmax_bwd;

/** Which norm a sum is for. */
typedef enum tsrk_norm {
    TSRK_NORM_2 = 0, /* sum of squares */
    TSRK_NORM_1,     /* sum of absolute values */
    TSRK_NORM_MAX /* greatest absolute value; NaN counts as infinity, so that a maximum of several
                     keeps it */
} tsrk_norm;

/** out [1] f64 (+)= sum of x[i]^2 in double, or what norm says ((+)= is then the greater of the
 *  two for TSRK_NORM_MAX). x f32. */
typedef struct tsrk_sum_squares {
    const float *x;
    double *out;
    int64_t n;
    bool accumulate;
    tsrk_norm norm;
} tsrk_sum_squares;

/** From total [1] f64 (sum of squares of gradients that are loss_scale [1] f32 times too large;
 *  NULL: 1): norm [1] f64 = sqrt(total) / loss_scale (total / loss_scale unless TSRK_NORM_2); scale
 *  [1] f32 = (max_norm > 0 ? min(1, max_norm / (norm + 1e-6)) : 1) / loss_scale; a norm that is not
 *  finite gives scale 0 and skip [1] = 1, else skip = 0. count [1] f64 (NULL allowed): count 0
 *  gives skip = 1 too. skipped [1] (NULL allowed) += skip. again: the step's gradients were clipped
 *  before: the lesser scale and the greater skip count, and skipped counts the step once. */
typedef struct tsrk_clip {
    const double *total, *count;
    const float *loss_scale;
    double *norm;
    float *scale;
    int32_t *skip;
    int64_t *skipped;
    double max_norm;
    tsrk_norm kind;
    bool again;
} tsrk_clip;

/** A loss scale, and good steps in a row that it has had. */
typedef struct tsrk_scale_state {
    float scale;
    int32_t good;
} tsrk_scale_state;

/** Dynamic loss scaling, after each clip of a step: from now [1], the step's, to next [1], the next
 *  step's. overflow [1] (again: or as it is) = the norm is not finite. If so: next = (max(min,
 *  scale * backoff), 0). Else next = now, and unless *skip good += 1, and when it has reached
 *  interval, scale = min(max, scale * growth) and good = 0. */
typedef struct tsrk_loss_scale {
    const double *norm;
    const int32_t *skip;
    const tsrk_scale_state *now;
    tsrk_scale_state *next;
    int32_t *overflow;
    double growth, backoff, min, max;
    int32_t interval;
    bool again;
} tsrk_loss_scale;

/** count [1] += 1, unless *skip (NULL: 0). */
typedef struct tsrk_count_update {
    int64_t *count;
    const int32_t *skip;
} tsrk_count_update;

/** AdamW (Loshchilov & Hutter 2019), t = *step, the number of this update from 1:
 *  g' = g * *scale; p *= 1 - lr*wd; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2;
 *  p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps). Nothing changes if *skip.
 *  scale, skip: device scalars, NULL allowed. lr is the field's times *rate, a device scalar (NULL:
 *  1). All f32 arrays [n]. */
typedef struct tsrk_adamw {
    float *p, *m, *v;
    const float *g, *scale;
    const int32_t *skip;
    const int64_t *step;
    const double *rate;
    int64_t n;
    double lr, beta1, beta2, eps, weight_decay;
} tsrk_adamw;

/** SGD: g' = g * *scale + wd * p; buffer = *step == 1 ? g' : momentum * buffer + g'; p -= lr *
 *  (nesterov ? g' + momentum * buffer : buffer); without buffer (NULL) p -= lr * g'. step: as
 *  AdamW's; not read without buffer. lr and rate: as AdamW's. */
typedef struct tsrk_sgd {
    float *p, *buffer;
    const float *g, *scale;
    const int32_t *skip;
    const int64_t *step;
    const double *rate;
    int64_t n;
    double lr, momentum, weight_decay;
    bool nesterov;
} tsrk_sgd;

/** Fill out [rows, cols] f32, a piece of a global [*, global_cols] that starts at (first_row,
 *  first_col), with mean + std * tsri_rng_normal(key, row * global_cols + col); std 0 fills mean.
 */
typedef struct tsrk_init_normal {
    float *out;
    int64_t rows, cols, first_row, first_col, global_cols;
    uint64_t key;
    float mean, std;
} tsrk_init_normal;

#define TSRK_CUSTOM_ARGS_BYTES 1600

/** run(args): a function of the user's own, on devices whose addresses are host addresses. args are
 *  its copy of what it was given; the ranges that it touches are declared like any kernel's. */
typedef struct tsrk_custom {
    tsr_status (*run)(const void *args);
    _Alignas(8) unsigned char args[TSRK_CUSTOM_ARGS_BYTES];
} tsrk_custom;

/** One row per kernel: enum suffix, struct suffix. */
#define TSRK_MAP(X) \
    X(MATMUL, matmul) \
    X(SUM, sum) \
    X(MULTIPLY, multiply) \
    X(EMBEDDING, embedding) \
    X(EMBEDDING_BWD, embedding_bwd) \
    X(ADD_POSITION, add_position) \
    X(ADD_POSITION_BWD, add_position_bwd) \
    X(LAYERNORM, layernorm) \
    X(LAYERNORM_BWD, layernorm_bwd) \
    X(RMSNORM, rmsnorm) \
    X(RMSNORM_BWD, rmsnorm_bwd) \
    X(POINTWISE, pointwise) \
    X(POINTWISE_BWD, pointwise_bwd) \
    X(SILU_MUL, silu_mul) \
    X(SILU_MUL_BWD, silu_mul_bwd) \
    X(ROPE, rope) \
    X(ROPE_TABLE, rope_table) \
    X(ATTENTION, attention) \
    X(ATTENTION_BWD, attention_bwd) \
    X(ADD, add) \
    X(SCALE, scale) \
    X(ZERO, zero) \
    X(COPY_BLOCKS, copy_blocks) \
    X(DROPOUT, dropout) \
    X(CHECK_IDS, check_ids) \
    X(COUNT_LABELS, count_labels) \
    X(SOFTMAX, softmax) \
    X(SOFTMAX_BWD, softmax_bwd) \
    X(XENT_MAX, xent_max) \
    X(XENT_SUM, xent_sum) \
    X(XENT_LOSS, xent_loss) \
    X(XENT_BWD, xent_bwd) \
    X(SUM_SQUARES, sum_squares) \
    X(CLIP, clip) \
    X(LOSS_SCALE, loss_scale) \
    X(COUNT_UPDATE, count_update) \
    X(ADAMW, adamw) \
    X(SGD, sgd) \
    X(INIT_NORMAL, init_normal) \
    X(CUSTOM, custom)

typedef enum tsrk_id {
#define TSRK_ENUM(upper, lower) TSRK_##upper,
    TSRK_MAP(TSRK_ENUM)
#undef TSRK_ENUM
    TSRK_COUNT
} tsrk_id;

/** Bytes of the largest argument struct (checked where the tables are built). */
#define TSRK_ARGS_MAX_BYTES (8 + TSRK_CUSTOM_ARGS_BYTES)

/** Where a kernel runs: what its backend gives to every call. A kernel has no other state. */
typedef struct tsrk_context {
    int threads;     /* cpu: that it may use; its workspace is sized for as many */
    void *stream;    /* the backend's own handle (cudaStream_t); cpu: NULL */
    void *libraries; /* handles of libraries that are bound to stream; cpu: NULL */
    void *workspace; /* of the stream, for its libraries alone: what kernels of ours need is among
                        their arguments, where plans count it; cpu: NULL */
    size_t workspace_bytes;
} tsrk_context;

/** args points to the kernel's struct. A failure becomes the stream's: see tsr_backend.launch. */
typedef tsr_status (*tsrk_fn)(const void *args, const tsrk_context *context);

typedef struct tsri_kernel_table {
    const char *name;
    tsrk_fn fn[TSRK_COUNT];
    /** Workspace bytes of kernel id for these arguments; NULL: no kernel needs any. A pure function
     *  of sizes, types and threads. */
    size_t (*workspace)(tsrk_id id, const void *args, int threads);
} tsri_kernel_table;

/** The key of the mask that args draw. */
uint64_t tsrk_dropout_key(const tsrk_dropout *args);

/** "matmul", ...; "?" outside the range. */
const char *tsrk_name(tsrk_id id);

/** Multiplications and additions of kernel id, where they and not the bytes moved set its time:
 *  matrix products 2 m n k, attention its products (forward 2, backward 5 of them), of the
 *  square that a causal mask cuts half. 0 for the others. type_out: what they are computed in. */
double tsrk_flops(tsrk_id id, const void *args, tsr_dtype *type_out);

const tsri_kernel_table *tsrk_table_ref(void);
const tsri_kernel_table *tsrk_table_cpu(void);

/** The definitions: functions of their arguments alone. */
#define TSRK_DECLARE(upper, lower) tsr_status tsrk_ref_##lower(const tsrk_##lower *args);
TSRK_MAP(TSRK_DECLARE)
#undef TSRK_DECLARE

#ifndef TSRK_LEVEL
/** For tests: by the cpu's table, on as many threads as OpenMP would take. */
#    define TSRK_DECLARE(upper, lower) tsr_status tsrk_cpu_##lower(const tsrk_##lower *args);
TSRK_MAP(TSRK_DECLARE)
#    undef TSRK_DECLARE
#endif
