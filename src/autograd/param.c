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
    if (spec->ndim < 1 || spec->ndim > 2) {
        return TSR_RAISE(TSR_ERR_INVALID, "parameter %s has %d dims, wants 1 or 2", name,
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

/* A write to the value, [rows, cols] of the tp-local block, reaches this rank's piece at rest. */
static tsr_status write_rest(tsr_dtensor *value, const void *host)
{
    tsr_param *param = value->param;
    const int64_t width = value->layout.ndim == 2 ? value->local_shape[1] : 1;
    const size_t size = tsr_dtype_size(value->dtype);
    const unsigned char *at = host;
    float *piece = NULL;
    tsri_param_block block = {.cols = 0};
    tsr_status status = TSR_OK;

    if (param == NULL || param->data == NULL) {
        return TSR_RAISE(
            TSR_ERR_STATE,
            "write of parameter %s, which has no memory: call tsr_module_materialize first",
            value->label);
    }
    tsri_param_get_block(param, &block);
    TSR_TRY(tsri_alloc((size_t)(block.rows * block.cols), sizeof(float), &piece));
    at += (size_t)(param->row_begin * width + (param->by_cols ? param->col_begin : 0)) * size;
    for (int64_t row = 0; row < block.rows; row++) {
        tsri_widen(at + (size_t)(row * width) * size, value->dtype, block.cols,
                   piece + row * block.cols);
    }
    TSR_TRY_GOTO(status,
                 param->sink->load(param->sink_context, param, 0, piece, block.rows * block.cols),
                 free_piece);
free_piece:
    tsri_free(&piece);
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

    if (param->data != NULL || value->storage != NULL) {
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

void tsri_param_get_block(const tsr_param *param, tsri_param_block *out)
{
    const tsr_dtensor *value = param->value;
    const bool matrix = param->spec.ndim == 2;

    *out = (tsri_param_block){.first_row = value->local_offset[0] + param->row_begin,
                              .first_col = matrix ? value->local_offset[1] : 0,
                              .rows = param->row_count,
                              .cols = matrix ? value->local_shape[1] : 1,
                              .global_rows = param->spec.shape[0],
                              .global_cols = matrix ? param->spec.shape[1] : 1};
    if (param->by_cols) {
        out->first_col += param->col_begin;
        out->cols = param->col_count;
    }
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
    return param->spec.ndim == 2 ? param->spec.shape[0] * param->spec.shape[1]
                                 : param->spec.shape[0];
}

const tsr_param_spec *tsr_param_get_spec(const tsr_param *param)
{
    TSRI_WANT_OR(param, NULL);
    return &param->spec;
}

tsr_status tsri_param_get_grad(const tsr_param *param, tsr_buffer **buffer_out, size_t *offset_out)
{
    if (param->grad == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "parameter %s has no gradient now: %s", param->name,
                         param->spec.frozen
                             ? "it is frozen"
                             : "backward makes it and tsr_step_end gives its memory back");
    }
    *buffer_out = param->grad;
    *offset_out = param->grad_offset;
    return TSR_OK;
}
