/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rule.c
 * Words in which the operations' placement rules are written.
 *
 * A rule looks at one mesh axis at a time: what lies how on it, what is wanted instead, what comes
 * out. The order in which axes split a dim is carried over from the input that the dim came from.
 */
#include "autograd_priv.h"

int tsri_rule_axes(const tsri_op_call *call)
{
    return tsr_mesh_axis_count(tsr_comm_mesh(call->comm));
}

tsr_layout tsri_rule_whole(const tsr_layout *layout)
{
    tsr_layout whole = *layout;

    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        if (whole.place[axis].kind == TSR_PARTIAL) {
            whole.place[axis] = tsri_replicate();
        }
    }
    return whole;
}

void tsri_rule_local_dims(tsri_op_call *call, int i, int first_dim)
{
    tsr_layout *want = &call->want[i];

    *want = tsri_rule_whole(want);
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        if (want->place[axis].kind == TSR_SHARD && want->place[axis].dim >= first_dim) {
            want->place[axis] = tsri_replicate();
        }
    }
}

/* Append axis to order unless it is there. */
static void append_axis(tsr_layout *out, int *count, unsigned *seen, int axis)
{
    if ((*seen & (1U << axis)) == 0) {
        *seen |= 1U << axis;
        out->order[(*count)++] = (signed char)axis;
    }
}

void tsri_rule_order(tsr_layout *out, const tsr_layout *first, const tsr_layout *second)
{
    const tsr_layout a = *first;
    const tsr_layout b = *second;
    int count = 0;
    unsigned seen = 0;

    for (int i = 0; i < TSR_MESH_MAX_AXES; i++) {
        if (a.place[(int)a.order[i]].kind == TSR_SHARD) {
            append_axis(out, &count, &seen, a.order[i]);
        }
    }
    for (int i = 0; i < TSR_MESH_MAX_AXES; i++) {
        if (b.place[(int)b.order[i]].kind == TSR_SHARD) {
            append_axis(out, &count, &seen, b.order[i]);
        }
    }
    for (int i = 0; i < TSR_MESH_MAX_AXES; i++) {
        append_axis(out, &count, &seen, a.order[i]);
    }
}

void tsri_rule_pair(tsri_op_call *call, int a, int b, bool keep_partial)
{
    tsr_layout to = call->want[a];

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        const tsr_placement p = call->want[a].place[axis];
        const tsr_placement q = call->want[b].place[axis];

        if (p.kind == TSR_SHARD) {
            continue;
        }
        if (q.kind == TSR_SHARD) {
            to.place[axis] = q;
        } else if (p.kind != q.kind || !keep_partial) {
            to.place[axis] = tsri_replicate();
        }
    }
    tsri_rule_order(&to, &call->want[a], &call->want[b]);
    call->want[a] = to;
    call->want[b] = to;
}

void tsri_rule_param_grad(tsri_op_call *call, int param, const tsr_layout *x)
{
    tsr_layout *grad = &call->grad_layout[param];

    *grad = tsri_rule_whole(&call->want[param]);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (grad->place[axis].kind == TSR_REPLICATE && x->place[axis].kind == TSR_SHARD) {
            grad->place[axis] = tsri_partial();
        }
    }
}

tsr_layout tsri_rule_leading(const tsr_layout *layout, int ndim)
{
    tsr_layout leading = *layout;

    leading.ndim = ndim;
    for (int d = ndim; d < TSR_MAX_DIMS; d++) {
        leading.shape[d] = 0;
    }
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        if (leading.place[axis].kind == TSR_SHARD && leading.place[axis].dim >= ndim) {
            leading.place[axis] = tsri_replicate();
        }
    }
    return leading;
}

unsigned tsri_rule_mask(const tsr_layout *layout, int dim)
{
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if (tsri_is_shard(layout, axis, dim) && tsr_mesh_axis_size(layout->mesh, axis) > 1) {
            mask |= 1U << axis;
        }
    }
    return mask;
}

int64_t tsri_rule_ways(const tsr_layout *layout, int dim)
{
    const unsigned mask = tsri_rule_mask(layout, dim);
    int64_t ways = 1;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if ((mask & (1U << axis)) != 0) {
            ways *= tsr_mesh_axis_size(layout->mesh, axis);
        }
    }
    return ways;
}

/* ---- launches ---- */

tsri_call tsri_op_call_begin(const tsri_op_call *call)
{
    return (tsri_call){.stream = tsri_comm_stream(call->comm, TSRI_STREAM_COMPUTE),
                       .label = call->path};
}

tsr_status tsri_op_launch(const tsri_op_call *call, tsri_call *launch, tsrk_id kernel, void *args,
                          void **workspace)
{
    tsri_arena *arena = tsri_comm_arena(call->comm);
    tsri_mem mem = {.buffer = NULL};
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    if (workspace != NULL) {
        bytes = tsri_workspace_bytes(tsri_comm_device(call->comm), kernel, args);
    }
    if (bytes > 0) {
        TSR_TRY(
            tsri_arena_acquire(arena, bytes, TSRI_MEM_WORKSPACE, call->path, launch->stream, &mem));
        *workspace = tsri_arg_out(launch, mem.buffer, mem.offset, bytes);
    }
    status = tsri_launch(launch, kernel, args);
    if (bytes > 0) {
        tsri_arena_release(arena, &mem, tsri_event_record(launch->stream));
    }
    TSR_TRY(status);
    return TSR_OK;
}

void *tsri_op_grad(const tsri_op_call *call, tsri_call *launch, int i)
{
    if (call->din[i] == NULL) {
        return NULL;
    }
    return call->accumulate[i] ? tsri_inout(launch, call->din[i]) : tsri_out(launch, call->din[i]);
}

tsr_status tsri_op_acquire(const tsri_op_call *call, const tsr_layout *layout, tsr_dtype dtype,
                           tsri_mem_kind kind, tsr_dtensor **out)
{
    TSR_TRY(tsri_dtensor_acquire(call->comm, layout, dtype, kind, call->path, 0, out));
    return TSR_OK;
}

tsr_status tsri_op_scale_into(tsr_comm *comm, const char *label, const tsr_dtensor *x, float factor,
                              bool accumulate, tsr_dtensor *y)
{
    tsri_call launch = {.stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE), .label = label};
    tsrk_scale args = {.x = tsri_in(&launch, x),
                       .n = x->local_count,
                       .factor = factor,
                       .x_type = x->dtype,
                       .y_type = y->dtype,
                       .accumulate = accumulate};

    if (x->local_count != y->local_count) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: %lld elements into %lld", label,
                         (long long)x->local_count, (long long)y->local_count);
    }
    args.y = accumulate ? tsri_inout(&launch, y) : tsri_out(&launch, y);
    TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
    return TSR_OK;
}

int64_t tsri_local_span(const tsr_dtensor *tensor, int begin, int end)
{
    int64_t count = 1;

    for (int d = begin; d < end; d++) {
        count *= tensor->local_shape[d];
    }
    return count;
}
