/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file param.c
 * Parameters: a name, a shape, and a compute value without memory until somebody gives it some.
 */
#include "autograd/param.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tsr_status check_spec(const char *name, const tsr_param_spec *spec)
{
    if (spec->ndim < 1 || spec->ndim > TSR_PARAM_MAX_DIMS) {
        return TSR_RAISE(TSR_ERR_INVALID, "parameter %s has %d dims, wants 1 to 4", name,
                         spec->ndim);
    }
    for (int d = 0; d < spec->ndim; d++) {
        if (spec->shape[d] < 1) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "parameter %s: dim %d has extent %lld, wants 1 or more", name, d,
                             (long long)spec->shape[d]);
        }
    }
    if (!isfinite(spec->init_mean) || !(spec->init_std >= 0.0) || !isfinite(spec->init_std) ||
        spec->group_rows < 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "parameter %s: init_mean %g, init_std %g, group_rows %lld; wants finite "
                         "numbers, the last two 0 or more",
                         name, spec->init_mean, spec->init_std, (long long)spec->group_rows);
    }
    return TSR_OK;
}

/* A write to the value, the tp-local block in host, reaches what this rank owns. */
static tsr_status write_rest(tsr_dtensor *value, const void *host)
{
    tsr_param *param = value->param;
    const tsri_piece *piece = param != NULL ? &param->master.piece : NULL;
    const size_t size = tsr_dtype_size(value->dtype);
    tsri_block block;
    float *own = NULL;
    tsr_status status = TSR_OK;

    if (param == NULL || param->master.buffer == NULL) {
        return TSR_RAISE(
            TSR_ERR_STATE,
            "write of parameter %s, which has no memory: call tsr_module_materialize first",
            value->label);
    }
    TSR_TRY(tsri_rest_outer(&value->layout, tsr_comm_rank(value->comm), &block));
    TSR_TRY(tsri_alloc((size_t)tsri_param_own_count(param), sizeof(float), &own));
    for (int64_t i = piece->begin, n = 0; i < piece->end; i += n) {
        const int64_t col = i % piece->block.cols;
        const int64_t row = piece->block.first_row + i / piece->block.cols - block.first_row;
        const int64_t at = row * block.cols + piece->block.first_col - block.first_col + col;

        n = tsri_min64(piece->end - i, piece->block.cols - col);
        tsri_widen((const unsigned char *)host + (size_t)at * size, value->dtype, n,
                   own + (i - piece->begin));
    }
    TSR_TRY_GOTO(status, tsri_param_put(param, piece->begin, piece->end, own), free_own);
free_own:
    tsri_free(&own);
    return status;
}

tsr_status tsri_param_create(tsr_comm *comm, const char *name, const tsr_param_spec *spec,
                             tsr_param **out)
{
    tsr_param *param = NULL;
    tsr_layout layout;
    tsr_status status = TSR_OK;

    TSR_TRY(check_spec(name, spec));
    TSR_TRY(tsr_layout_init(tsr_comm_mesh(comm), spec->shape, spec->ndim, &layout));
    TSR_TRY(tsri_alloc(1, sizeof(*param), &param));
    param->owners = 1;
    param->spec = *spec;
    TSR_TRY_GOTO(status, tsri_strdup(name, &param->name), free_param);
    TSR_TRY_GOTO(status, tsri_dtensor_bare(comm, &layout, TSR_F32, name, &param->value), free_name);
    param->value->param = param;
    param->value->needs_grad = !spec->frozen;
    param->value->write = write_rest;
    *out = param;
    return TSR_OK;
free_name:
    tsri_free(&param->name);
free_param:
    tsri_free(&param);
    return status;
}

tsr_param *tsri_param_retain(tsr_param *param)
{
    param->owners++;
    return param;
}

void tsri_param_release(tsr_param **param)
{
    tsr_param *old = *param;

    *param = NULL;
    if (old == NULL || --old->owners > 0) {
        return;
    }
    old->value->param = NULL;
    tsr_dtensor_release(&old->value);
    tsri_free(&old->name);
    tsri_free(&old);
}

tsr_status tsri_param_rename(tsr_param *param, const char *name)
{
    char *copy = NULL;
    char *label = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_strdup(name, &copy));
    TSR_TRY_GOTO(status, tsri_strdup(name, &label), free_copy);
    tsri_free(&param->name);
    tsri_free(&param->value->label);
    param->name = copy;
    param->value->label = label;
    return TSR_OK;
free_copy:
    tsri_free(&copy);
    return status;
}

tsr_status tsri_param_place(tsr_param *param, const char *axis, tsr_placement placement)
{
    tsr_dtensor *value = param->value;
    tsr_layout layout = value->layout;

    if (param->master.buffer != NULL || value->storage != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "parameter %s is placed on axis \"%s\" after it has memory",
                         param->name, axis);
    }
    TSR_TRY(tsr_layout_place(&layout, axis, placement));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(value->comm), value->local_shape,
                             value->local_offset));
    value->layout = layout;
    value->local_count = 1;
    for (int d = 0; d < layout.ndim; d++) {
        value->local_count *= value->local_shape[d];
    }
    return TSR_OK;
}

tsr_status tsri_param_put(tsr_param *param, int64_t begin, int64_t end, const float *host)
{
    const tsri_rest *master = &param->master;
    const int64_t from = tsri_max64(begin, master->piece.begin);
    const int64_t to = tsri_min64(end, master->piece.end);

    TSR_TRY(param->sink->overwrite(param->sink_context, param, TSRI_OVERWRITE_ALIKE));
    if (from < to) {
        TSR_TRY(tsri_rest_put(master, from, to, host + (from - begin),
                              tsri_comm_stream(param->value->comm, TSRI_STREAM_COMPUTE)));
    }
    return TSR_OK;
}

tsr_status tsri_params_check_same(tsr_comm *comm, const char *what, tsr_param *const *params,
                                  int count)
{
    enum {
        SHAPE_BYTES = 64
    };
    size_t room = 1;
    size_t used = 0;
    char *text = NULL;
    tsr_status status = TSR_OK;

    for (int i = 0; i < count; i++) {
        room += strlen(params[i]->name) + SHAPE_BYTES;
    }
    TSR_TRY(tsri_alloc(room, 1, &text));
    for (int i = 0; i < count; i++) {
        char shape[SHAPE_BYTES];

        used += (size_t)snprintf(
            text + used, room - used, "%s %s%s\n", params[i]->name,
            tsri_format_shape(params[i]->spec.shape, params[i]->spec.ndim, shape, sizeof(shape)),
            params[i]->spec.frozen ? " frozen" : "");
    }
    TSR_TRY_GOTO(status, tsr_world_check_same(tsr_comm_world(comm), what, text, used), free_text);
free_text:
    tsri_free(&text);
    return status;
}

const char *tsr_param_name(const tsr_param *param)
{
    TSRI_WANT_OR(param, "");
    return param->name;
}

tsr_dtensor *tsr_param_value(const tsr_param *param)
{
    TSRI_WANT_OR(param, NULL);
    return param->value;
}

int64_t tsr_param_count(const tsr_param *param)
{
    TSRI_WANT_OR(param, 0);
    int64_t count = 1;

    for (int d = 0; d < param->spec.ndim; d++) {
        count *= param->spec.shape[d];
    }
    return count;
}

const tsr_param_spec *tsr_param_get_spec(const tsr_param *param)
{
    TSRI_WANT_OR(param, NULL);
    return &param->spec;
}

tsr_status tsri_param_get_grad(const tsr_param *param, const tsri_rest **out)
{
    if (param->grad.buffer == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "parameter %s has no gradient now: %s", param->name,
                         param->spec.frozen
                             ? "it is frozen"
                             : "backward makes it and tsr_step_end gives its memory back");
    }
    *out = &param->grad;
    return TSR_OK;
}
