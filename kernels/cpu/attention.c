/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file attention.c
 * Attention with grouped queries.
 *
 * The formulas are in kernels/ref/attention.c. Forward, for a block of QUERIES rows of one head:
 * S = scale Q K^T over the keys that its last row sees, a masked softmax of its rows, out = P V;
 * saves lse. Backward computes P anew from lse: dV += P^T dO, dP = dO V^T, dS = P (dP - D) scale,
 * dQ = dS K, dK += dS^T Q. 4 and 10 flops per visible (query, key) pair and element of dim, nearly
 * all in products; f32 throughout, bf16 and f16 heads are converted in the thread's workspace.
 *
 * A thread takes whole heads (forward) or a kv head with all its query heads (backward), so no sum
 * crosses threads and every order is fixed. Keys and values are packed once for a head (panels.c).
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>

/* Rows of a block: more waste above the diagonal in dK and dV, fewer pack more often. */
#define QUERIES 64
/* Queries and keys below which one thread does all (10 us). */
#define TEAM_PAIRS 4096

/* One head of a tensor [batch, seq, heads, dim], as rows of f32. */
typedef struct head {
    float *row;
    int64_t stride;
} head;

typedef struct const_head {
    const float *row;
    int64_t stride;
} const_head;

static int64_t round_up(int64_t count)
{
    return (count + 15) / 16 * 16;
}

/* Row stride of a block of scores: an odd number of vectors, since powers of two share cache sets.
 */
static int64_t score_stride(int64_t kv_seq)
{
    int64_t stride = round_up(kv_seq);
    return stride % 32 == 0 ? stride + 16 : stride;
}

static int64_t head_offset(int64_t b, int64_t h, int64_t seq, int64_t heads, int64_t dim)
{
    return ((b * seq * heads) + h) * dim;
}

/* Head at element offset of x: in place when f32, else converted to buffer [seq, dim]. */
static const_head read_head(const void *x, tsr_dtype type, int64_t offset, int64_t seq,
                            int64_t stride, int64_t dim, float *buffer)
{
    if (!tsrk_cpu_is_half(type)) {
        return (const_head){(const float *)x + offset, stride};
    }
    for (int64_t t = 0; t < seq; t++) {
        tsrk_cpu_load(buffer + (t * dim), x, type, offset + (t * stride), dim);
    }
    return (const_head){buffer, dim};
}

/* Where to build head at element offset of x: in place when f32, else in buffer. */
static head build_head(void *x, tsr_dtype type, int64_t offset, int64_t stride, int64_t dim,
                       float *buffer)
{
    if (!tsrk_cpu_is_half(type)) {
        return (head){(float *)x + offset, stride};
    }
    return (head){buffer, dim};
}

/* Move rows of a head that was built in a buffer to x at element offset. */
static void write_rows(void *x, tsr_dtype type, int64_t offset, int64_t rows, int64_t stride,
                       int64_t dim, head from)
{
    for (int64_t t = 0; tsrk_cpu_is_half(type) && t < rows; t++) {
        tsrk_cpu_store(x, type, offset + (t * stride), from.row + (t * from.stride), dim);
    }
}

/* Fill a row of scores with -inf from visible up to a whole vector, so that row functions run
 * without a tail and exp gives 0 there; returns the padded length. */
static int64_t hide_tail(float *scores, int64_t visible)
{
    int64_t padded = round_up(visible);
    for (int64_t j = visible; j < padded; j++) {
        scores[j] = -INFINITY;
    }
    return padded;
}

/* c [m, n], and k, which is summed over. */
typedef struct extent {
    int64_t m, n, k;
} extent;

/* Which extent grows from row to row under a causal mask: of scores n, of sums over keys k. */
typedef enum growth {
    NONE = 0,
    N_GROWS,
    K_GROWS
} growth;

/* c = a [m, k] * b [k, n], or of it what queries see. */
static void multiply(head c, const_head a, tsrk_cpu_panels b, extent e, growth grows,
                     float *scratch)
{
    tsrk_cpu_panels_times(&(tsrk_cpu_times){.a = a.row,
                                            .b = b,
                                            .c = c.row,
                                            .scratch = scratch,
                                            .m = e.m,
                                            .n = e.n,
                                            .k = e.k,
                                            .lda = a.stride,
                                            .ldc = c.stride,
                                            .n_grows = grows == N_GROWS,
                                            .k_grows = grows == K_GROWS});
}

/* c += a [k, m]^T * b [k, n], where b is packed into buffer. */
static void add_columns(head c, const_head a, const_head b, extent e, float *buffer, float *scratch)
{
    tsrk_cpu_panels_times(
        &(tsrk_cpu_times){.a = a.row,
                          .b = tsrk_cpu_panels_pack(buffer, b.row, b.stride, false, e.k, e.n),
                          .c = c.row,
                          .scratch = scratch,
                          .m = e.m,
                          .n = e.n,
                          .k = e.k,
                          .lda = a.stride,
                          .ldc = c.stride,
                          .trans_a = true,
                          .add = true});
}

static void scale_row(float *x, int64_t n, float factor)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

/* h [seq, dim]^T * factor, packed. */
static tsrk_cpu_panels pack_turned(float *out, const_head h, int64_t seq, int64_t dim, float factor)
{
    tsrk_cpu_panels packed = tsrk_cpu_panels_pack(out, h.row, h.stride, true, dim, seq);
    if (factor != 1.0F) {
        scale_row(out, tsrk_cpu_panels_floats(dim, seq), factor);
    }
    return packed;
}

/* Floats of a thread: scratch of products, and packed operands: count of [dim, seq], and [seq,
 * dim]. */
static int64_t packed_floats(int64_t seq, int64_t dim, int turned)
{
    return tsrk_cpu_panels_scratch() + (turned * tsrk_cpu_panels_floats(dim, seq)) +
           tsrk_cpu_panels_floats(seq, dim);
}

static const_head rows_from(const_head h, int64_t row)
{
    return (const_head){h.row + (row * h.stride), h.stride};
}

/* ---- forward ---- */

static float max_of(const float *x, int64_t n)
{
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* x = exp(x - shift); returns the sum. */
static float exp_in_place(float *x, int64_t n, float shift)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        x[i] = tsrk_cpu_exp(x[i] - shift);
        sum += x[i];
    }
    return sum;
}

/* Scores [width], of which visible count, to unnormalised probabilities; returns their sum and
 * *max_out. */
static double softmax_row(float *scores, int64_t visible, int64_t width, float *max_out)
{
    double sum = 0.0;
    int64_t padded = hide_tail(scores, visible);
    float max = max_of(scores, padded);
    for (int64_t j = 0; j < padded; j += TSRK_CPU_CHUNK) {
        int64_t n = padded - j < TSRK_CPU_CHUNK ? padded - j : TSRK_CPU_CHUNK;
        sum += (double)exp_in_place(scores + j, n, max);
    }
    if (width > padded) {
        memset(scores + padded, 0, (size_t)(width - padded) * sizeof *scores);
    }
    *max_out = max;
    return sum;
}

/* Floats of workspace that a thread needs. */
static int64_t forward_floats(const tsrk_attention *args)
{
    int64_t queries = round_up(args->seq * args->dim);
    int64_t keys = round_up(args->kv_seq * args->dim);
    int64_t floats =
        (QUERIES * score_stride(args->kv_seq)) + packed_floats(args->kv_seq, args->dim, 1);
    return floats + (tsrk_cpu_is_half(args->type)
                         ? queries + (2 * keys) + round_up(QUERIES * args->dim)
                         : 0);
}

size_t tsrk_cpu_ws_attention(const tsrk_attention *args, int threads)
{
    return (size_t)threads * (size_t)forward_floats(args) * sizeof(float);
}

/* What the query heads of one kv head are multiplied by, and where it is formed. */
typedef struct forward {
    const tsrk_attention *args;
    tsrk_cpu_panels keys, values;  /* packed; the first turned and scaled */
    float *scores, *scratch, *out; /* out: a block of rows that is converted */
    int64_t ld;                    /* row stride of scores */
} forward;

/* Rows i .. i + rows of a head at element offset iq. */
static void forward_rows(const forward *w, const_head q, int64_t iq, float *lse, int64_t i,
                         int64_t rows)
{
    const tsrk_attention *args = w->args;
    int64_t stride = args->heads * args->dim;
    int64_t first = tsrk_visible_keys(args->seq, args->kv_seq, args->full, i);
    int64_t width = tsrk_visible_keys(args->seq, args->kv_seq, args->full, i + rows - 1);
    float inverse[QUERIES];
    head out = build_head(args->out, args->type, iq + (i * stride), stride, args->dim, w->out);
    multiply((head){w->scores, w->ld}, rows_from(q, i), w->keys, (extent){rows, first, args->dim},
             args->full ? NONE : N_GROWS, w->scratch);
    for (int64_t r = 0; r < rows; r++) {
        int64_t visible = tsrk_visible_keys(args->seq, args->kv_seq, args->full, i + r);
        float max;
        double sum = softmax_row(w->scores + (r * w->ld), visible, width, &max);
        lse[i + r] = (float)((double)max + log(sum));
        inverse[r] = (float)(1.0 / sum);
    }
    multiply(out, (const_head){w->scores, w->ld}, w->values, (extent){rows, args->dim, first},
             args->full ? NONE : K_GROWS, w->scratch);
    for (int64_t r = 0; r < rows; r++) {
        scale_row(out.row + (r * out.stride), args->dim, inverse[r]);
    }
    write_rows(args->out, args->type, iq + (i * stride), rows, stride, args->dim, out);
}

static void forward_head(const tsrk_attention *args, int64_t b, int64_t h, float *workspace)
{
    int64_t seq = args->seq;
    int64_t kv_seq = args->kv_seq;
    int64_t dim = args->dim;
    int64_t kv_stride = args->kv_heads * dim;
    int64_t iq = head_offset(b, h, seq, args->heads, dim);
    int64_t ik = head_offset(b, h / (args->heads / args->kv_heads), kv_seq, args->kv_heads, dim);
    forward w = {.args = args, .ld = score_stride(kv_seq)};
    w.scores = workspace;
    w.scratch = w.scores + (QUERIES * w.ld);
    float *turned = w.scratch + tsrk_cpu_panels_scratch();
    float *straight = turned + tsrk_cpu_panels_floats(dim, kv_seq);
    float *qs = straight + tsrk_cpu_panels_floats(kv_seq, dim);
    float *ks = qs + round_up(seq * dim);
    float *vs = ks + round_up(kv_seq * dim);
    w.out = vs + round_up(kv_seq * dim);
    const_head q = read_head(args->q, args->type, iq, seq, args->heads * dim, dim, qs);
    const_head k = read_head(args->k, args->type, ik, kv_seq, kv_stride, dim, ks);
    const_head v = read_head(args->v, args->type, ik, kv_seq, kv_stride, dim, vs);
    w.keys = pack_turned(turned, k, kv_seq, dim, args->scale);
    w.values = tsrk_cpu_panels_pack(straight, v.row, v.stride, false, kv_seq, dim);
    float *lse = args->lse + (((b * args->heads) + h) * seq);
    for (int64_t i = 0; i < seq; i += QUERIES) {
        forward_rows(&w, q, iq, lse, i, seq - i < QUERIES ? seq - i : QUERIES);
    }
}

/* Threads for tasks heads, each of so many queries and keys. */
static int team_of(const tsrk_context *context, int64_t tasks, int64_t pairs)
{
    int team = tasks * pairs < TEAM_PAIRS ? 1 : context->threads;
    return tasks < team ? (int)tasks : team;
}

tsr_status tsrk_cpu_attention(const tsrk_attention *args, const tsrk_context *context)
{
    int64_t tasks = args->seq > 0 ? args->batch * args->heads : 0;
    int team = team_of(context, tasks, args->seq * args->kv_seq);
    if (team < 1) {
        return TSR_OK;
    }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; i++) {
        int64_t slot = omp_get_thread_num() * forward_floats(args);
        forward_head(args, i / args->heads, i % args->heads, (float *)args->workspace + slot);
    }
    return TSR_OK;
}

/* ---- backward ---- */

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* s = p = exp(s - lse); dp = ds = p * (dp - delta) * scale. */
static void gradient_row(float *restrict s, float *restrict dp, int64_t n, float lse, float delta,
                         float scale)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float p = tsrk_cpu_exp(s[i] - lse);
        s[i] = p;
        dp[i] = p * (dp[i] - delta) * scale;
    }
}

/* What one kv head and its query heads work on. */
typedef struct backward {
    const tsrk_attention_bwd *args;
    float *p, *ds;   /* [QUERIES, ld] */
    float *heads;    /* converted heads of queries, one after another */
    int64_t ld;      /* row stride of p and ds */
    const_head k, v; /* of the kv head */
    tsrk_cpu_panels keys_turned, values_turned, keys; /* packed; the first scaled */
    float *scratch, *packed;                          /* packed: a block of rows of a head */
    head dk, dv;
} backward;

static int64_t backward_floats(const tsrk_attention_bwd *args)
{
    int64_t queries = round_up(args->seq * args->dim);
    int64_t keys = round_up(args->kv_seq * args->dim);
    int64_t floats = ((int64_t)2 * QUERIES * score_stride(args->kv_seq)) +
                     packed_floats(args->kv_seq, args->dim, 2) +
                     tsrk_cpu_panels_floats(QUERIES, args->dim);
    return floats + (tsrk_cpu_is_half(args->type)
                         ? (4 * keys) + (3 * queries) + round_up(QUERIES * args->dim)
                         : 0);
}

size_t tsrk_cpu_ws_attention_bwd(const tsrk_attention_bwd *args, int threads)
{
    return (size_t)threads * (size_t)backward_floats(args) * sizeof(float);
}

/* Block of rows i .. i + rows: p and ds from the heads' rows and lse. */
static void backward_scores(const backward *w, const_head q, const_head out, const_head dout,
                            const float *lse, int64_t i, int64_t rows)
{
    const tsrk_attention_bwd *args = w->args;
    int64_t width = tsrk_visible_keys(args->seq, args->kv_seq, args->full, i + rows - 1);
    extent e = {rows, tsrk_visible_keys(args->seq, args->kv_seq, args->full, i), args->dim};
    growth grows = args->full ? NONE : N_GROWS;
    multiply((head){w->p, w->ld}, rows_from(q, i), w->keys_turned, e, grows, w->scratch);
    multiply((head){w->ds, w->ld}, rows_from(dout, i), w->values_turned, e, grows, w->scratch);
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = i + r;
        int64_t visible = tsrk_visible_keys(args->seq, args->kv_seq, args->full, t);
        float *p = w->p + (r * w->ld);
        float *ds = w->ds + (r * w->ld);
        float delta = dot(dout.row + (t * dout.stride), out.row + (t * out.stride), args->dim);
        gradient_row(p, ds, hide_tail(p, visible), lse[t], delta, args->scale);
        if (visible == 1) { /* one key: p is 1 and ds 0, where rounding would leave dp - delta */
            p[0] = 1.0F;
            ds[0] = 0.0F;
        }
        memset(p + visible, 0, (size_t)(width - visible) * sizeof *p);
        memset(ds + visible, 0, (size_t)(width - visible) * sizeof *ds);
    }
}

/* Query head h: its dq, and its share of dk and dv. */
static void backward_query_head(const backward *w, int64_t b, int64_t h)
{
    const tsrk_attention_bwd *args = w->args;
    int64_t seq = args->seq;
    int64_t dim = args->dim;
    int64_t stride = args->heads * dim;
    int64_t iq = head_offset(b, h, seq, args->heads, dim);
    int64_t whole = round_up(seq * dim);
    const_head q = read_head(args->q, args->type, iq, seq, stride, dim, w->heads);
    const_head out = read_head(args->out, args->type, iq, seq, stride, dim, w->heads + whole);
    const_head dout =
        read_head(args->dout, args->type, iq, seq, stride, dim, w->heads + (2 * whole));
    const float *lse = args->lse + (((b * args->heads) + h) * seq);
    for (int64_t i = 0; i < seq; i += QUERIES) {
        int64_t rows = seq - i < QUERIES ? seq - i : QUERIES;
        int64_t first = tsrk_visible_keys(seq, args->kv_seq, args->full, i);
        int64_t width = tsrk_visible_keys(seq, args->kv_seq, args->full, i + rows - 1);
        head dq = build_head(args->dq, args->type, iq + (i * stride), stride, dim,
                             w->heads + (3 * whole));
        backward_scores(w, q, out, dout, lse, i, rows);
        const_head p = {w->p, w->ld};
        const_head ds = {w->ds, w->ld};
        extent e = {width, dim, rows};
        multiply(dq, ds, w->keys, (extent){rows, dim, first}, args->full ? NONE : K_GROWS,
                 w->scratch);
        add_columns(w->dv, p, rows_from(dout, i), e, w->packed, w->scratch);
        add_columns(w->dk, ds, rows_from(q, i), e, w->packed, w->scratch);
        write_rows(args->dq, args->type, iq + (i * stride), rows, stride, dim, dq);
    }
}

static void backward_kv_head(const tsrk_attention_bwd *args, int64_t b, int64_t g, float *workspace)
{
    int64_t seq = args->kv_seq;
    int64_t dim = args->dim;
    int64_t stride = args->kv_heads * dim;
    int64_t ik = head_offset(b, g, seq, args->kv_heads, dim);
    int64_t group = args->heads / args->kv_heads;
    backward w = {.args = args, .ld = score_stride(seq)};
    w.p = workspace;
    w.ds = w.p + (QUERIES * w.ld);
    w.scratch = w.ds + (QUERIES * w.ld);
    w.packed = w.scratch + tsrk_cpu_panels_scratch();
    float *keys_turned = w.packed + tsrk_cpu_panels_floats(QUERIES, dim);
    float *values_turned = keys_turned + tsrk_cpu_panels_floats(dim, seq);
    float *keys = values_turned + tsrk_cpu_panels_floats(dim, seq);
    float *heads = keys + tsrk_cpu_panels_floats(seq, dim);
    int64_t whole = round_up(seq * dim);
    w.heads = heads + (4 * whole);
    w.k = read_head(args->k, args->type, ik, seq, stride, dim, heads);
    w.v = read_head(args->v, args->type, ik, seq, stride, dim, heads + whole);
    w.keys_turned = pack_turned(keys_turned, w.k, seq, dim, args->scale);
    w.values_turned = pack_turned(values_turned, w.v, seq, dim, 1.0F);
    w.keys = tsrk_cpu_panels_pack(keys, w.k.row, w.k.stride, false, seq, dim);
    w.dk = build_head(args->dk, args->type, ik, stride, dim, heads + (2 * whole));
    w.dv = build_head(args->dv, args->type, ik, stride, dim, heads + (3 * whole));
    for (int64_t t = 0; t < seq; t++) {
        memset(w.dk.row + (t * w.dk.stride), 0, (size_t)dim * sizeof(float));
        memset(w.dv.row + (t * w.dv.stride), 0, (size_t)dim * sizeof(float));
    }
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        backward_query_head(&w, b, h);
    }
    write_rows(args->dk, args->type, ik, seq, stride, dim, w.dk);
    write_rows(args->dv, args->type, ik, seq, stride, dim, w.dv);
}

tsr_status tsrk_cpu_attention_bwd(const tsrk_attention_bwd *args, const tsrk_context *context)
{
    int64_t tasks = args->batch * args->kv_heads;
    int team = team_of(context, tasks, args->seq * args->kv_seq);
    if (team < 1) {
        return TSR_OK;
    }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; i++) {
        int64_t slot = omp_get_thread_num() * backward_floats(args);
        backward_kv_head(args, i / args->kv_heads, i % args->kv_heads,
                         (float *)args->workspace + slot);
    }
    return TSR_OK;
}
