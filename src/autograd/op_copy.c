/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_copy.c
 * A slice of a dim, and tensors one after another along it: each is the other's gradient.
 *
 * The dim is whole on every axis; Shards of others stay and Partial passes through in both
 * directions. Attention takes its kv heads by the same copies.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    X = 0
};

/* ---- copies ---- */

/* The range of whole that part stands for: from its first entry copied to the last. */
typedef struct copy_range {
    tsrk_copy_blocks args; /* without addresses and strides */
    size_t skip, span;     /* bytes of whole: before, and in all */
    int64_t whole_stride, part_stride;
} copy_range;

static copy_range range_of(const tsr_dtensor *whole, int dim, int64_t begin,
                           const tsr_dtensor *part)
{
    const int64_t entry =
        tsri_local_span(whole, dim + 1, whole->layout.ndim) * (int64_t)tsr_dtype_size(whole->dtype);
    copy_range range = {.skip = (size_t)(begin * entry),
                        .whole_stride = whole->local_shape[dim] * entry,
                        .part_stride = part->local_shape[dim] * entry};

    range.args = (tsrk_copy_blocks){.outer = tsri_local_span(whole, 0, dim),
                                    .mid = 1,
                                    .inner_bytes = (size_t)range.part_stride};
    range.span = (size_t)((range.args.outer - 1) * range.whole_stride + range.part_stride);
    return range;
}

tsr_status tsri_op_copy_out(const tsri_op_call *call, const tsr_dtensor *whole, int dim,
                            int64_t begin, tsr_dtensor *part)
{
    tsri_call launch = tsri_op_call_begin(call);
    copy_range range = range_of(whole, dim, begin, part);

    if (part->local_count == 0) {
        return TSR_OK;
    }
    range.args.src = tsri_arg_in(&launch, tsri_dtensor_buffer(whole),
                                 tsri_dtensor_buffer_offset(whole) + range.skip, range.span);
    range.args.dst = tsri_out(&launch, part);
    range.args.src_outer_stride = range.whole_stride;
    range.args.dst_outer_stride = range.part_stride;
    TSR_TRY(TSRI_LAUNCH(&launch, COPY_BLOCKS, &range.args));
    return TSR_OK;
}

tsr_status tsri_op_copy_into(const tsri_op_call *call, tsr_dtensor *whole, int dim, int64_t begin,
                             const tsr_dtensor *part)
{
    tsri_call launch = tsri_op_call_begin(call);
    copy_range range = range_of(whole, dim, begin, part);

    if (part->local_count == 0) {
        return TSR_OK;
    }
    range.args.src = tsri_in(&launch, part);
    range.args.dst = tsri_arg_inout(&launch, tsri_dtensor_buffer(whole),
                                    tsri_dtensor_buffer_offset(whole) + range.skip, range.span);
    range.args.src_outer_stride = range.part_stride;
    range.args.dst_outer_stride = range.whole_stride;
    TSR_TRY(TSRI_LAUNCH(&launch, COPY_BLOCKS, &range.args));
    return TSR_OK;
}

tsr_status tsri_op_zero(const tsri_op_call *call, tsr_dtensor *tensor)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_zero args = {.out = tsri_out(&launch, tensor), .bytes = tsri_dtensor_bytes(tensor)};

    TSR_TRY(TSRI_LAUNCH(&launch, ZERO, &args));
    return TSR_OK;
}

/* ---- rules ---- */

typedef struct copy_attr {
    int dim;
    int64_t begin, count; /* of a slice */
} copy_attr;

static copy_attr attr_of_copy(const tsri_op_call *call)
{
    copy_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr;
}

/* din[i] in the shape of in[i], lying as dout does: linear, so Partial may have come. */
static tsr_status acquire_grad(tsri_op_call *call, int i)
{
    tsr_layout layout = call->in_layout[i];

    memcpy(layout.place, call->dout->layout.place, sizeof(layout.place));
    memcpy(layout.order, call->dout->layout.order, sizeof(layout.order));
    TSR_TRY(tsri_op_acquire(call, &layout, call->in_dtype[i], TSRI_MEM_ACTIVATION, &call->din[i]));
    return TSR_OK;
}

static void make_dim_whole(tsr_layout *layout, int dim)
{
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        if (tsri_is_shard(layout, axis, dim)) {
            layout->place[axis] = tsri_replicate();
        }
    }
}

/* ---- slice ---- */

static tsr_status slice_rule(tsri_op_call *call)
{
    tsr_layout *x = &call->want[X];
    const copy_attr attr = attr_of_copy(call);
    char where[TSRI_WHERE_BYTES];
    char text[TSRI_WHERE_BYTES];

    if (attr.dim < 0 || attr.dim >= x->ndim || attr.begin < 0 || attr.count < 1 ||
        attr.count > x->shape[attr.dim] - attr.begin) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: %lld entries from %lld on of dim %d of x %s",
                         tsri_op_where(call, where, sizeof(where)), (long long)attr.count,
                         (long long)attr.begin, attr.dim,
                         tsri_format_shape(x->shape, x->ndim, text, sizeof(text)));
    }
    make_dim_whole(x, attr.dim);
    call->out_layout = *x;
    call->out_layout.shape[attr.dim] = attr.count;
    return TSR_OK;
}

static tsr_status slice_forward(tsri_op_call *call)
{
    const copy_attr attr = attr_of_copy(call);

    TSR_TRY(tsri_op_copy_out(call, call->in[X], attr.dim, attr.begin, call->out));
    return TSR_OK;
}

static tsr_status slice_backward(tsri_op_call *call)
{
    const copy_attr attr = attr_of_copy(call);

    TSR_TRY(acquire_grad(call, X));
    TSR_TRY(tsri_op_zero(call, call->din[X]));
    TSR_TRY(tsri_op_copy_into(call, call->din[X], attr.dim, attr.begin, call->dout));
    return TSR_OK;
}

static const tsri_op_def op_slice = {.name = "slice",
                                     .takes = {TSR_DTYPES_FLOAT},
                                     .inputs = "x",
                                     .rule = slice_rule,
                                     .forward = slice_forward,
                                     .backward = slice_backward,
                                     .linear = true,
                                     .makes_grad = 1U << X};

tsr_status tsr_op_slice(tsr_tape *tape, tsr_dtensor *x, int dim, int64_t begin, int64_t count,
                        tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    const copy_attr attr = {.dim = dim, .begin = begin, .count = count};

    TSR_TRY(tsri_op_apply(tape, &op_slice, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

/* ---- concat ---- */

static tsr_status check_parts(const tsri_op_call *call, int dim)
{
    const tsr_layout *first = &call->want[0];
    bool fit = dim >= 0 && dim < first->ndim;
    int wrong = 0;
    char where[TSRI_WHERE_BYTES];
    char one[TSRI_WHERE_BYTES];
    char two[TSRI_WHERE_BYTES];

    for (int i = 1; fit && i < call->in_count; i++) {
        fit = call->want[i].ndim == first->ndim;
        for (int d = 0; fit && d < first->ndim; d++) {
            fit = d == dim || call->want[i].shape[d] == first->shape[d];
        }
        wrong = i;
    }
    if (!fit) {
        return TSR_RAISE(
            TSR_ERR_SHAPE, "%s: along dim %d of part 0 %s, part %d %s",
            tsri_op_where(call, where, sizeof(where)), dim,
            tsri_format_shape(first->shape, first->ndim, one, sizeof(one)), wrong,
            tsri_format_shape(call->want[wrong].shape, call->want[wrong].ndim, two, sizeof(two)));
    }
    return TSR_OK;
}

/* How all parts lie: as the first that is Shard, of another dim than theirs; Partial if all are. */
static tsr_placement part_place(const tsri_op_call *call, int axis, int dim)
{
    bool partial = true;

    for (int i = 0; i < call->in_count; i++) {
        const tsr_placement place = call->want[i].place[axis];

        if (place.kind == TSR_SHARD && place.dim != dim) {
            return place;
        }
        partial = partial && place.kind == TSR_PARTIAL;
    }
    return partial ? tsri_partial() : tsri_replicate();
}

static tsr_status concat_rule(tsri_op_call *call)
{
    const int dim = attr_of_copy(call).dim;
    tsr_layout common = call->want[0];
    int64_t extent = 0;

    TSR_TRY(check_parts(call, dim));
    for (int i = 0; i < call->in_count; i++) {
        extent += call->want[i].shape[dim];
        tsri_rule_order(&common, &common, &call->want[i]);
    }
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        common.place[axis] = part_place(call, axis, dim);
    }
    for (int i = 0; i < call->in_count; i++) {
        memcpy(call->want[i].place, common.place, sizeof(common.place));
        memcpy(call->want[i].order, common.order, sizeof(common.order));
    }
    call->out_layout = common;
    call->out_layout.shape[dim] = extent;
    return TSR_OK;
}

static tsr_status concat_forward(tsri_op_call *call)
{
    const int dim = attr_of_copy(call).dim;
    int64_t begin = 0;

    for (int i = 0; i < call->in_count; i++) {
        TSR_TRY(tsri_op_copy_into(call, call->out, dim, begin, call->in[i]));
        begin += call->in_layout[i].shape[dim];
    }
    return TSR_OK;
}

static tsr_status concat_backward(tsri_op_call *call)
{
    const int dim = attr_of_copy(call).dim;
    int64_t begin = 0;

    for (int i = 0; i < call->in_count; i++) {
        if (call->needs_grad[i]) {
            TSR_TRY(acquire_grad(call, i));
            TSR_TRY(tsri_op_copy_out(call, call->dout, dim, begin, call->din[i]));
        }
        begin += call->in_layout[i].shape[dim];
    }
    return TSR_OK;
}

static const tsri_op_def op_concat = {
    .name = "concat",
    .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
    .inputs = "part 0, part 1, part 2, part 3",
    .alike = ~1U,
    .rule = concat_rule,
    .forward = concat_forward,
    .backward = concat_backward,
    .linear = true,
    .makes_grad = ~0U};

tsr_status tsr_op_concat(tsr_tape *tape, tsr_dtensor *const *parts, int part_count, int dim,
                         tsr_dtensor **out)
{
    TSRI_WANT(tape, parts, out);
    TSRI_WANT_EACH(parts, part_count);

    char where[TSRI_WHERE_BYTES];
    if (part_count < 1 || part_count > TSRI_OP_MAX_IN) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s: of %d parts, wants 1 to %d; of more: a concat "
                         "of concats",
                         tsri_where("concat", tsri_tape_path(tape), where, sizeof(where)),
                         part_count, TSRI_OP_MAX_IN);
    }

    const copy_attr attr = {.dim = dim};

    TSR_TRY(tsri_op_apply(tape, &op_concat, parts, part_count, &attr, sizeof(attr), out));
    return TSR_OK;
}
