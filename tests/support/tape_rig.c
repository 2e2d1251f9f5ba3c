/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tape_rig.c
 * The rig of the tape's tests.
 */
#include "tape_rig.h"

#include "autograd/autograd_priv.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "autograd/autograd.h"
#include "support/tsr_test.h"

/* ---- life ---- */

static tsr_status open_all(rig *r, const char *backend, const tsr_mesh_axis *axes, int axis_count,
                           int sim_rank)
{
    static const int32_t labels[] = {1, 0, 2, 1, TSR_IGNORE_INDEX, 0};
    static const int64_t shape[] = {2, 3};
    tsr_world_options options = {.backend = backend, .sim_rank = sim_rank, .sim_size = 1};
    const tsr_comm_options comm_options = {.record = true, .race_check = true};
    tsr_layout layout;
    int cells = 1;

    for (int i = 0; i < axis_count; i++) {
        cells *= axes[i].size;
    }
    options.sim_size = cells;
    TSR_TRY(tsr_world_open(NULL, NULL, &options, &r->world));
    TSR_TRY(tsr_mesh_create(cells, axes, axis_count, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, &comm_options, &r->comm));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    tsri_tape_set_seed(r->tape, 7);
    TSR_TRY(tsr_layout_init(r->mesh, shape, 2, &layout));
    TSR_TRY(rig_ints(r, &layout, labels, &r->labels));
    return TSR_OK;
}

tsr_status rig_open(rig *out, const char *backend, const tsr_mesh_axis *axes, int axis_count,
                    int sim_rank)
{
    *out = (rig){.leaf_count = 0};
    {
        const tsr_status status = open_all(out, backend, axes, axis_count, sim_rank);

        if (status != TSR_OK) {
            rig_close(out);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
    }
    return TSR_OK;
}

void rig_clear(rig *r)
{
    for (int i = 0; i < r->leaf_count; i++) {
        rig_leaf *leaf = r->leaves[i];

        for (int g = 0; g < leaf->grad_count; g++) {
            tsr_dtensor_release(&leaf->grad[g]);
        }
        if (leaf->param.value != NULL) {
            leaf->param.value->param = NULL;
        }
        tsr_dtensor_release(&leaf->param.value);
        tsri_free(&leaf->param.name);
        tsri_free(&leaf);
    }
    r->leaf_count = 0;
}

void rig_close(rig *r)
{
    rig_clear(r);
    tsr_dtensor_release(&r->labels);
    tsr_tape_destroy(&r->tape);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

/* ---- layouts and values ---- */

tsr_status rig_layout(const rig *r, const int64_t *shape, int ndim, const char *const *words,
                      tsr_layout *out)
{
    TSR_TRY(tsr_layout_init(r->mesh, shape, ndim, out));
    for (int axis = 0; axis < tsr_mesh_axis_count(r->mesh); axis++) {
        const char *word = words[axis];

        if (word[0] == 'P') {
            out->place[axis].kind = TSR_PARTIAL;
        } else if (word[0] == 'S') {
            out->place[axis] = (tsr_placement){.kind = TSR_SHARD, .dim = word[1] - '0'};
        }
    }
    return TSR_OK;
}

/* This rank's share of a Partial value: the shares of an axis add up to 1. */
static float share(const tsr_dtensor *tensor)
{
    float part = 1.0F;

    for (int axis = 0; axis < tsr_mesh_axis_count(tensor->layout.mesh); axis++) {
        const int size = tsr_mesh_axis_size(tensor->layout.mesh, axis);

        if (tensor->layout.place[axis].kind == TSR_PARTIAL && size > 1) {
            part *=
                tsr_comm_coord(tensor->comm, axis) == 0 ? 1.0F - 0.25F * (float)(size - 1) : 0.25F;
        }
    }
    return part;
}

/* Index in the global tensor of local element i. */
static int64_t global_index(const tsr_dtensor *tensor, int64_t i)
{
    int64_t index = 0;
    int64_t stride = 1;

    for (int d = tensor->layout.ndim - 1; d >= 0; d--) {
        index += (tensor->local_offset[d] + i % tensor->local_shape[d]) * stride;
        i /= tensor->local_shape[d];
        stride *= tensor->layout.shape[d];
    }
    return index;
}

tsr_status rig_write(tsr_dtensor *tensor, const float *global)
{
    float *piece = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)tensor->local_count + 1, sizeof(*piece), &piece));
    for (int64_t i = 0; i < tensor->local_count; i++) {
        piece[i] = global[global_index(tensor, i)] * share(tensor);
    }
    TSR_TRY_GOTO(status, tsr_dtensor_write(tensor, piece), free_piece);
free_piece:
    tsri_free(&piece);
    return status;
}

tsr_status rig_floats(rig *r, const tsr_layout *layout, const float *global, tsr_dtensor **out)
{
    TSR_TRY(tsr_dtensor_create(r->comm, layout, TSR_F32, "constant", out));
    TSR_TRY(rig_write(*out, global));
    return TSR_OK;
}

tsr_status rig_ints(rig *r, const tsr_layout *layout, const int32_t *global, tsr_dtensor **out)
{
    int32_t *piece = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_dtensor_create(r->comm, layout, TSR_I32, "ids", out));
    TSR_TRY(tsri_alloc((size_t)(*out)->local_count + 1, sizeof(*piece), &piece));
    for (int64_t i = 0; i < (*out)->local_count; i++) {
        piece[i] = global[global_index(*out, i)];
    }
    TSR_TRY_GOTO(status, tsr_dtensor_write(*out, piece), free_piece);
free_piece:
    tsri_free(&piece);
    return status;
}

tsr_status rig_read(tsr_dtensor *tensor, double *global)
{
    tsr_layout whole;
    tsr_dtensor *all = NULL;
    float *host = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(
        tsr_layout_init(tensor->layout.mesh, tensor->layout.shape, tensor->layout.ndim, &whole));
    TSR_TRY(tsr_dtensor_redistribute(tensor, &whole, &all));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)all->local_count + 1, sizeof(*host), &host),
                 release_all);
    TSR_TRY_GOTO(status, tsr_dtensor_read(all, host), free_host);
    for (int64_t i = 0; i < all->local_count; i++) {
        global[i] = (double)host[i];
    }
free_host:
    tsri_free(&host);
release_all:
    tsr_dtensor_release(&all);
    return status;
}

/* ---- leaves ---- */

static tsr_status destination(void *context, tsr_param *param, const tsr_layout *grad_layout,
                              tsr_dtensor **dest_out, bool *accumulate_out)
{
    rig_leaf *leaf = context;

    leaf->contributions++;
    *dest_out = NULL;
    *accumulate_out = false;
    if (leaf->refuse) {
        return TSR_OK;
    }
    for (int g = 0; g < leaf->grad_count; g++) {
        if (tsr_layout_equal(&leaf->grad[g]->layout, grad_layout)) {
            *dest_out = leaf->grad[g];
            *accumulate_out = true;
            return TSR_OK;
        }
    }
    if (leaf->grad_count == RIG_MAX_GRADS) {
        return TSR_RAISE(TSR_ERR_STATE, "gradient of %s arrives in too many layouts", param->name);
    }
    TSR_TRY(tsr_dtensor_create(param->value->comm, grad_layout, TSR_F32, param->name,
                               &leaf->grad[leaf->grad_count]));
    *dest_out = leaf->grad[leaf->grad_count++];
    return TSR_OK;
}

static const tsri_grad_sink sink = {.destination = destination};

tsr_status rig_leaf_add(rig *r, const char *name, const tsr_layout *layout, const float *global,
                        rig_leaf **out)
{
    rig_leaf *leaf = NULL;

    if (r->leaf_count == RIG_MAX_LEAVES) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "more than %d leaves", RIG_MAX_LEAVES);
    }
    TSR_TRY(tsri_alloc(1, sizeof(*leaf), &leaf));
    leaf->param.owners = 1;
    leaf->param.sink = &sink;
    leaf->param.sink_context = leaf;
    r->leaves[r->leaf_count++] = leaf;
    TSR_TRY(tsri_strdup(name, &leaf->param.name));
    TSR_TRY(tsr_dtensor_create(r->comm, layout, TSR_F32, name, &leaf->param.value));
    leaf->param.value->param = &leaf->param;
    leaf->param.value->needs_grad = true;
    TSR_TRY(rig_write(leaf->param.value, global));
    *out = leaf;
    return TSR_OK;
}

tsr_status rig_grad(const rig_leaf *leaf, int64_t count, double *global)
{
    double *part = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(*part), &part));
    memset(global, 0, (size_t)count * sizeof(*global));
    for (int g = 0; g < leaf->grad_count; g++) {
        TSR_TRY_GOTO(status, rig_read(leaf->grad[g], part), free_part);
        for (int64_t i = 0; i < count; i++) {
            global[i] += part[i];
        }
    }
free_part:
    tsri_free(&part);
    return status;
}

/* ---- steps ---- */

tsr_status rig_begin(rig *r, int64_t step)
{
    TSR_TRY(tsr_step_begin(r->tape, step, &r->labels, 1));
    TSR_TRY(tsr_tape_begin(r->tape, 0));
    return TSR_OK;
}

/* ---- an operation of the tests' own: loss = sum of y * weight ---- */

static tsr_status dot_rule(tsri_op_call *call)
{
    tsr_layout loss;

    TSR_TRY(tsr_layout_init(call->want[0].mesh, NULL, 0, &loss));
    for (int axis = 0; axis < tsr_mesh_axis_count(call->want[0].mesh); axis++) {
        if (call->want[0].place[axis].kind == TSR_PARTIAL) {
            call->want[0].place[axis].kind = TSR_REPLICATE;
        }
        if (call->want[0].place[axis].kind == TSR_SHARD) {
            loss.place[axis].kind = TSR_PARTIAL;
        }
    }
    call->want[1] = call->want[0];
    call->out_layout = loss;
    call->out_dtype = TSR_F32;
    call->needs_grad[1] = false;
    return TSR_OK;
}

static tsri_call begin_launch(const tsri_op_call *call)
{
    return (tsri_call){.stream = tsri_comm_stream(call->comm, TSRI_STREAM_COMPUTE),
                       .label = call->path};
}

static tsr_status dot_forward(tsri_op_call *call)
{
    tsri_call launch = begin_launch(call);
    const int64_t n = call->in[0]->local_count;
    tsrk_matmul args = {.a = tsri_in(&launch, call->in[0]),
                        .b = tsri_in(&launch, call->in[1]),
                        .c = tsri_out(&launch, call->out),
                        .m = 1,
                        .n = 1,
                        .k = n,
                        .lda = n,
                        .ldb = n,
                        .ldc = 1,
                        .a_type = TSR_F32,
                        .b_type = TSR_F32,
                        .c_type = TSR_F32,
                        .trans_b = true};

    TSR_TRY(tsri_op_launch(call, &launch, TSRK_MATMUL, &args, &args.workspace));
    return TSR_OK;
}

static tsr_status dot_backward(tsri_op_call *call)
{
    tsri_call launch = begin_launch(call);
    tsrk_scale args = {.x = tsri_in(&launch, call->in[1]),
                       .device_factor = tsri_in(&launch, call->dout),
                       .n = call->in[1]->local_count,
                       .factor = 1.0F,
                       .x_type = TSR_F32,
                       .y_type = TSR_F32,
                       .accumulate = call->accumulate[0]};

    args.y =
        call->accumulate[0] ? tsri_inout(&launch, call->din[0]) : tsri_out(&launch, call->din[0]);
    TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
    return TSR_OK;
}

static const tsri_op_def op_dot = {.name = "dot",
                                   .takes = {TSR_DTYPE_BIT(TSR_F32), TSR_DTYPE_BIT(TSR_F32)},
                                   .inputs = "y, weight",
                                   .rule = dot_rule,
                                   .forward = dot_forward,
                                   .backward = dot_backward,
                                   .keep_in = 2};

tsr_status rig_dot(tsr_tape *tape, tsr_dtensor *y, tsr_dtensor *weight, tsr_dtensor **out)
{
    tsr_dtensor *in[] = {y, weight};

    TSR_TRY(tsri_op_apply(tape, &op_dot, in, 2, NULL, 0, out));
    return TSR_OK;
}
