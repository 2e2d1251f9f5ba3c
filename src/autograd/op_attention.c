/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_attention.c
 * Attention with grouped queries: q [batch, seq, heads, d], k and v [batch, kv_seq, kv_heads, d].
 *
 * Per axis: Shard of batch stays; Shard of heads stays on q, and k and v are sharded alike or
 * whole. Where they are whole, this rank's query heads need a block of kv heads that is copied out,
 * and the gradients of k and v are zero but for that block: Partial. That block is whole kv heads
 * when the ranks divide kv_heads, and one kv head when kv_heads divides the ranks. Saved:
 * log-sum-exp per query row, and the copied blocks.
 */
#include "autograd_priv.h"

#include <math.h>
#include <string.h>

enum {
    Q = 0,
    K = 1,
    V = 2,
    BATCH = 0,
    SEQ = 1,
    HEADS = 2,
    DIM = 3,
    LSE = 0, /* saved */
    K_BLOCK = 1,
    V_BLOCK = 2
};

typedef struct attention_attr {
    float scale;
    bool full;
} attention_attr;

static attention_attr attr_of(const tsri_op_call *call)
{
    attention_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr;
}

/* ---- rule ---- */

static tsr_status check_shapes(const tsri_op_call *call)
{
    const tsr_layout *q = &call->want[Q];
    const tsr_layout *k = &call->want[K];
    const tsr_layout *v = &call->want[V];
    const bool full = attr_of(call).full;
    bool fit = q->ndim == 4 && k->ndim == 4 && v->ndim == 4;
    char where[TSRI_WHERE_BYTES];

    for (int d = 0; fit && d < 4; d++) {
        fit = k->shape[d] == v->shape[d] && (d == HEADS || d == SEQ || q->shape[d] == k->shape[d]);
    }
    fit = fit && k->shape[HEADS] >= 1 && q->shape[HEADS] % k->shape[HEADS] == 0;
    if (!fit || k->shape[SEQ] < (full ? 1 : q->shape[SEQ])) {
        char a[TSRI_WHERE_BYTES];
        char b[TSRI_WHERE_BYTES];
        char c[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: q %s, k %s, v %s; want kv heads that divide heads%s",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(q->shape, q->ndim, a, sizeof(a)),
                         tsri_format_shape(k->shape, k->ndim, b, sizeof(b)),
                         tsri_format_shape(v->shape, v->ndim, c, sizeof(c)),
                         full ? ", and a key" : ", and no fewer keys than causal queries");
    }
    return TSR_OK;
}

static bool ways_fit(int64_t ways, int64_t heads, int64_t kv_heads)
{
    return heads % ways == 0 && (kv_heads % ways == 0 || ways % kv_heads == 0);
}

static tsr_status check_ways(const tsri_op_call *call)
{
    const int64_t heads = call->want[Q].shape[HEADS];
    const int64_t kv_heads = call->want[K].shape[HEADS];
    const int64_t ways = tsri_rule_ways(&call->want[Q], HEADS);
    const int64_t kv_ways = tsri_rule_ways(&call->want[K], HEADS);
    char where[TSRI_WHERE_BYTES];
    char legal[TSRI_WHERE_BYTES] = "";
    size_t used = 0;

    if (ways_fit(ways, heads, kv_heads) && kv_heads % kv_ways == 0) {
        return TSR_OK;
    }
    for (int64_t n = 1; n <= heads && used < sizeof(legal) - 1; n++) {
        if (ways_fit(n, heads, kv_heads)) {
            (void)snprintf(legal + used, sizeof(legal) - used, "%s%lld", used == 0 ? "" : ", ",
                           (long long)n);
            used = strlen(legal);
        }
    }
    return TSR_RAISE(TSR_ERR_PLACEMENT,
                     "%s: %lld heads over %lld ranks, %lld kv heads over %lld; legal are %s",
                     tsri_op_where(call, where, sizeof(where)), (long long)heads, (long long)ways,
                     (long long)kv_heads, (long long)kv_ways, legal);
}

/* One axis: q leads, k and v follow. */
static void want_on_axis(tsri_op_call *call, int axis)
{
    tsr_placement *q = &call->want[Q].place[axis];
    const tsr_placement k = call->want[K].place[axis];

    if (q->kind == TSR_REPLICATE && k.kind == TSR_SHARD) {
        *q = k;
    }
    for (int i = K; i <= V; i++) {
        tsr_placement *kv = &call->want[i].place[axis];

        if (q->kind == TSR_SHARD && q->dim == BATCH) {
            *kv = tsri_shard(BATCH);
        } else if (q->kind != TSR_SHARD || kv->kind != TSR_SHARD || kv->dim != HEADS) {
            *kv = tsri_replicate();
        }
    }
    /* v follows k, so that one block serves both. */
    call->want[V].place[axis] = call->want[K].place[axis];
}

/* Where k and v are whole on one axis of q's heads, they must be on those that split within it, for
 * the kv heads that a rank needs to be among those it has. */
static void nest_kv(tsri_op_call *call)
{
    const tsr_layout *q = &call->want[Q];
    bool whole = false;

    for (int i = 0; i < tsri_rule_axes(call); i++) {
        const int axis = (unsigned char)q->order[i];

        if (!tsri_is_shard(q, axis, HEADS) || tsr_mesh_axis_size(q->mesh, axis) == 1) {
            continue;
        }
        whole = whole || call->want[K].place[axis].kind == TSR_REPLICATE;
        if (whole) {
            call->want[K].place[axis] = tsri_replicate();
            call->want[V].place[axis] = tsri_replicate();
        }
    }
}

static tsr_status attention_rule(tsri_op_call *call)
{
    TSR_TRY(check_shapes(call));
    for (int i = Q; i <= V; i++) {
        tsri_rule_local_dims(call, i, DIM);
        for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
            if (tsri_is_shard(&call->want[i], axis, SEQ)) {
                call->want[i].place[axis] = tsri_replicate();
            }
        }
    }
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        want_on_axis(call, axis);
    }
    nest_kv(call);
    TSR_TRY(check_ways(call));
    for (int i = K; i <= V; i++) {
        tsri_rule_order(&call->want[i], &call->want[Q], &call->want[i]);
        call->grad_layout[i] = call->want[i];
        for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
            if (tsri_is_shard(&call->want[Q], axis, HEADS) &&
                call->want[i].place[axis].kind == TSR_REPLICATE) {
                call->grad_layout[i].place[axis] = tsri_partial();
            }
        }
    }
    call->out_layout = call->want[Q];
    return TSR_OK;
}

/* ---- kv heads of this rank ---- */

/* The kv heads [first, first + count) of a local piece of have that the local query heads use. */
typedef struct kv_block {
    int64_t first, count, have;
} kv_block;

static tsr_status find_block(const tsri_op_call *call, kv_block *out)
{
    const tsr_layout *q = &call->in_layout[Q];
    const tsr_layout *k = &call->in_layout[K];
    const int64_t per_kv = q->shape[HEADS] / k->shape[HEADS];
    int64_t shape[TSR_MAX_DIMS];
    int64_t offset[TSR_MAX_DIMS];
    int64_t kv_shape[TSR_MAX_DIMS];
    int64_t kv_offset[TSR_MAX_DIMS];
    kv_block block;

    TSR_TRY(tsr_layout_local(q, tsr_comm_rank(call->comm), shape, offset));
    TSR_TRY(tsr_layout_local(k, tsr_comm_rank(call->comm), kv_shape, kv_offset));
    block.have = kv_shape[HEADS];
    block.count = tsri_max64(shape[HEADS] / per_kv, 1);
    block.first = offset[HEADS] / per_kv - kv_offset[HEADS];
    if (block.first < 0 || block.first + block.count > block.have) {
        char where[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_PLACEMENT, "%s: kv heads %lld to %lld are not on this rank",
                         tsri_op_where(call, where, sizeof(where)),
                         (long long)(block.first + kv_offset[HEADS]),
                         (long long)(block.first + kv_offset[HEADS] + block.count));
    }
    *out = block;
    return TSR_OK;
}

/* Layout of a tensor of this rank alone with the extents of its piece. */
static tsr_status local_layout(const tsri_op_call *call, int64_t batch, int64_t seq, int64_t heads,
                               int64_t dim, tsr_layout *out)
{
    const int64_t shape[] = {batch, seq, heads, dim};

    TSR_TRY(tsr_layout_init(tsr_comm_mesh(call->comm), shape, 4, out));
    return TSR_OK;
}

/* k and v as the kernel takes them: themselves, or saved blocks of them. */
static tsr_status take_blocks(tsri_op_call *call, const kv_block *block)
{
    tsr_layout layout;
    const tsr_dtensor *k = call->in[K];

    TSR_TRY(local_layout(call, k->local_shape[BATCH], k->local_shape[SEQ], block->count,
                         k->local_shape[DIM], &layout));
    for (int i = K; i <= V; i++) {
        tsr_dtensor **saved = &call->saved[i == K ? K_BLOCK : V_BLOCK];

        TSR_TRY(tsri_op_acquire(call, &layout, k->dtype, TSRI_MEM_ACTIVATION, saved));
        call->saved_count++;
        TSR_TRY(tsri_op_copy_out(call, call->in[i], HEADS, block->first, *saved));
    }
    call->keep_in = 1U << Q;
    return TSR_OK;
}

/* ---- forward and backward ---- */

static float attention_scale(const tsri_op_call *call)
{
    const float scale = attr_of(call).scale;

    return scale > 0.0F ? scale : (float)(1.0 / sqrt((double)call->in_layout[Q].shape[DIM]));
}

static tsr_status attention_forward(tsri_op_call *call)
{
    const tsr_dtensor *q = call->in[Q];
    kv_block block;
    tsr_layout rows;
    tsri_call launch = tsri_op_call_begin(call);
    tsrk_attention args = {.batch = q->local_shape[BATCH],
                           .seq = q->local_shape[SEQ],
                           .kv_seq = call->in[K]->local_shape[SEQ],
                           .heads = q->local_shape[HEADS],
                           .dim = q->local_shape[DIM],
                           .scale = attention_scale(call),
                           .type = q->dtype,
                           .full = attr_of(call).full};
    bool copied = false;

    TSR_TRY(find_block(call, &block));
    TSR_TRY(local_layout(call, args.batch, args.heads, args.seq, 1, &rows));
    TSR_TRY(tsri_op_acquire(call, &rows, TSR_F32, TSRI_MEM_ACTIVATION, &call->saved[LSE]));
    call->saved_count = 1;
    copied = block.count != block.have;
    if (copied) {
        TSR_TRY(take_blocks(call, &block));
    }
    args.kv_heads = block.count;
    args.q = tsri_in(&launch, q);
    args.k = tsri_in(&launch, copied ? call->saved[K_BLOCK] : call->in[K]);
    args.v = tsri_in(&launch, copied ? call->saved[V_BLOCK] : call->in[V]);
    args.out = tsri_out(&launch, call->out);
    args.lse = tsri_out(&launch, call->saved[LSE]);
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_ATTENTION, &args, &args.workspace));
    return TSR_OK;
}

/* Where the kernel writes the gradient of input i: din[i], or memory that is spread or dropped. */
static tsr_status grad_target(tsri_op_call *call, int i, const tsr_dtensor *like, bool copied,
                              tsr_dtensor **out)
{
    if (call->din[i] != NULL && !copied) {
        *out = tsr_dtensor_retain(call->din[i]);
        return TSR_OK;
    }
    TSR_TRY(tsri_op_acquire(call, &like->layout, like->dtype, TSRI_MEM_WORKSPACE, out));
    return TSR_OK;
}

static tsr_status run_kernel(tsri_op_call *call, int64_t kv_heads, const tsr_dtensor *k,
                             const tsr_dtensor *v, tsr_dtensor *const *grad)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *q = call->in[Q];
    tsrk_attention_bwd args = {.q = tsri_in(&launch, q),
                               .k = tsri_in(&launch, k),
                               .v = tsri_in(&launch, v),
                               .out = tsri_in(&launch, call->out),
                               .dout = tsri_in(&launch, call->dout),
                               .lse = tsri_in(&launch, call->saved[LSE]),
                               .dq = tsri_out(&launch, grad[Q]),
                               .dk = tsri_out(&launch, grad[K]),
                               .dv = tsri_out(&launch, grad[V]),
                               .batch = q->local_shape[BATCH],
                               .seq = q->local_shape[SEQ],
                               .kv_seq = k->local_shape[SEQ],
                               .heads = q->local_shape[HEADS],
                               .kv_heads = kv_heads,
                               .dim = q->local_shape[DIM],
                               .scale = attention_scale(call),
                               .type = q->dtype,
                               .full = attr_of(call).full};

    TSR_TRY(tsri_op_launch(call, &launch, TSRK_ATTENTION_BWD, &args, &args.workspace));
    return TSR_OK;
}

static tsr_status attention_backward(tsri_op_call *call)
{
    const bool copied = call->saved_count > 1;
    const tsr_dtensor *k = copied ? call->saved[K_BLOCK] : call->in[K];
    const tsr_dtensor *v = copied ? call->saved[V_BLOCK] : call->in[V];
    tsr_dtensor *grad[3] = {NULL, NULL, NULL};
    kv_block block;
    tsr_status status = TSR_OK;

    TSR_TRY(find_block(call, &block));
    TSR_TRY_GOTO(status, grad_target(call, Q, call->in[Q], false, &grad[Q]), release_grads);
    TSR_TRY_GOTO(status, grad_target(call, K, k, copied, &grad[K]), release_grads);
    TSR_TRY_GOTO(status, grad_target(call, V, v, copied, &grad[V]), release_grads);
    TSR_TRY_GOTO(status, run_kernel(call, block.count, k, v, grad), release_grads);
    for (int i = K; i <= V && copied; i++) {
        if (call->din[i] != NULL) {
            TSR_TRY_GOTO(status, tsri_op_zero(call, call->din[i]), release_grads);
            TSR_TRY_GOTO(status, tsri_op_copy_into(call, call->din[i], HEADS, block.first, grad[i]),
                         release_grads);
        }
    }
release_grads:
    for (int i = Q; i <= V; i++) {
        tsr_dtensor_release(&grad[i]);
    }
    return status;
}

static const tsri_op_def op_attention = {
    .name = "attention",
    .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
    .inputs = "q, k, v",
    .alike = 1U << K | 1U << V,
    .rule = attention_rule,
    .forward = attention_forward,
    .backward = attention_backward,
    .keep_in = 1U << Q | 1U << K | 1U << V,
    .keep_out = true,
    .no_accumulate = 1U << Q | 1U << K | 1U << V};

tsr_status tsr_op_attention_with(tsr_tape *tape, tsr_dtensor *q, tsr_dtensor *k, tsr_dtensor *v,
                                 const tsr_attention_options *options, tsr_dtensor **out)
{
    TSRI_WANT(tape, q, k, v, out);

    tsr_dtensor *in[] = {q, k, v};
    const double scale = options != NULL ? options->scale : 0.0;
    const attention_attr attr = {.scale = (float)scale, .full = options != NULL && options->full};

    TSRI_WANT_NUMBER(scale);
    TSR_TRY(tsri_op_apply(tape, &op_attention, in, 3, &attr, sizeof(attr), out));
    return TSR_OK;
}

tsr_status tsr_op_attention(tsr_tape *tape, tsr_dtensor *q, tsr_dtensor *k, tsr_dtensor *v,
                            double scale, tsr_dtensor **out)
{
    const tsr_attention_options options = {.scale = scale};

    TSR_TRY(tsr_op_attention_with(tape, q, k, v, &options, out));
    return TSR_OK;
}
