/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom_ops.c
 * Operations of the public interface alone. All f32.
 */
#include "custom_ops.h"

#include <math.h>
#include <string.h>

static int runs;

int custom_ops_runs(void)
{
    return runs;
}

/* ---- softcap ---- */

static float cap_of(const tsr_op_work *work)
{
    float cap = 0.0F;

    memcpy(&cap, work->attr, sizeof(cap));
    return cap;
}

static tsr_status softcap_place(tsr_op_axis *axis)
{
    tsr_op_place_pointwise(axis);
    return TSR_OK;
}

static void softcap_forward(const tsr_op_work *work)
{
    const float *x = work->in[0].data;
    const float cap = cap_of(work);
    float *y = work->out.data;

    runs++;
    for (int64_t i = 0; i < work->out.count; i++) {
        y[i] = cap * tanhf(x[i] / cap);
    }
}

static void softcap_backward(const tsr_op_work *work)
{
    const float *y = work->out.data;
    const float *dy = work->dout.data;
    const float cap = cap_of(work);
    float *dx = work->din[0].data;

    runs++;
    for (int64_t i = 0; i < work->dout.count; i++) {
        const float slope = 1.0F - (y[i] / cap) * (y[i] / cap);

        dx[i] = (work->accumulate[0] ? dx[i] : 0.0F) + dy[i] * slope;
    }
}

tsr_status softcap(tsr_tape *tape, tsr_dtensor *x, float cap, tsr_dtensor **out)
{
    static const tsr_custom_op op = {.name = "softcap",
                                     .place = softcap_place,
                                     .forward = softcap_forward,
                                     .backward = softcap_backward,
                                     .keep_out = true,
                                     .adds_grad = 1};

    return tsr_op_custom(tape, &op, &x, 1, &cap, sizeof(cap), out);
}

/* ---- unit_rows ---- */

static tsr_status unit_rows_shape(tsr_op_shapes *shapes)
{
    const tsr_op_tensor *x = &shapes->in[0];
    const tsr_op_tensor *gain = &shapes->in[1];

    if (x->ndim < 1 || gain->ndim != 1 || gain->shape[0] != x->shape[x->ndim - 1]) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: gain does not fit", shapes->where);
    }
    shapes->saved_count = 1;
    shapes->saved[0] = *x;
    shapes->saved[0].ndim--;
    return TSR_OK;
}

static tsr_status unit_rows_place(tsr_op_axis *axis)
{
    tsr_op_place_rows(axis, axis->shapes->in[0].ndim - 1);
    return TSR_OK;
}

static void unit_rows_forward(const tsr_op_work *work)
{
    const int64_t cols = work->in[1].count;
    const float *gain = work->in[1].data;
    float *scale = work->saved[0].data;

    runs++;
    for (int64_t r = 0; r < work->saved[0].count; r++) {
        const float *x = (const float *)work->in[0].data + r * cols;
        float *y = (float *)work->out.data + r * cols;
        double sum = 1.0;

        for (int64_t c = 0; c < cols; c++) {
            sum += (double)x[c] * (double)x[c];
        }
        scale[r] = (float)(1.0 / sum);
        for (int64_t c = 0; c < cols; c++) {
            y[c] = x[c] * gain[c] * scale[r];
        }
    }
}

static void unit_rows_grad_x(const tsr_op_work *work, int64_t r)
{
    const int64_t cols = work->in[1].count;
    const float *gain = work->in[1].data;
    const float *x = (const float *)work->in[0].data + r * cols;
    const float *dy = (const float *)work->dout.data + r * cols;
    const float scale = ((const float *)work->saved[0].data)[r];
    float *dx = (float *)work->din[0].data + r * cols;
    double along = 0.0;

    for (int64_t c = 0; c < cols; c++) {
        along += (double)dy[c] * (double)gain[c] * (double)x[c];
    }
    for (int64_t c = 0; c < cols; c++) {
        dx[c] = scale * (gain[c] * dy[c] - 2.0F * x[c] * scale * (float)along);
    }
}

/* Written, never added: the gradient of a rank without rows is 0. */
static void unit_rows_backward(const tsr_op_work *work)
{
    const int64_t cols = work->in[1].count;
    const int64_t rows = work->saved[0].count;
    const float *x = work->in[0].data;
    const float *dy = work->dout.data;
    const float *scale = work->saved[0].data;
    float *dgain = work->din[1].data;

    runs++;
    for (int64_t r = 0; work->din[0].data != NULL && r < rows; r++) {
        unit_rows_grad_x(work, r);
    }
    for (int64_t c = 0; dgain != NULL && c < cols; c++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++) {
            sum += (double)dy[r * cols + c] * (double)x[r * cols + c] * (double)scale[r];
        }
        dgain[c] = (float)sum;
    }
}

tsr_status unit_rows(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain, tsr_dtensor **out)
{
    static const tsr_custom_op op = {.name = "unit_rows",
                                     .shape = unit_rows_shape,
                                     .place = unit_rows_place,
                                     .forward = unit_rows_forward,
                                     .backward = unit_rows_backward,
                                     .keep_in = 3};
    tsr_dtensor *in[] = {x, gain};

    return tsr_op_custom(tape, &op, in, 2, NULL, 0, out);
}

/* ---- dot_rows ---- */

static tsr_status dot_rows_shape(tsr_op_shapes *shapes)
{
    shapes->out.ndim--;
    return TSR_OK;
}

/* The sum over an axis that splits the last dim is Partial; x may be Partial, for it is linear. */
static tsr_status dot_rows_place(tsr_op_axis *axis)
{
    const int last = axis->shapes->in[0].ndim - 1;

    if (axis->in[1].kind == TSR_SHARD ||
        (axis->in[0].kind == TSR_SHARD && axis->in[0].dim == last)) {
        axis->in[0] = tsr_shard(last);
        axis->in[1] = tsr_shard(0);
        axis->out = tsr_partial();
    } else {
        axis->in[1] = tsr_replicate();
        axis->out = axis->in[0];
    }
    return TSR_OK;
}

static void dot_rows_forward(const tsr_op_work *work)
{
    const int64_t cols = work->in[1].count;
    const float *x = work->in[0].data;
    const float *w = work->in[1].data;
    float *y = work->out.data;

    runs++;
    for (int64_t r = 0; r < work->out.count; r++) {
        double sum = 0.0;

        for (int64_t c = 0; c < cols; c++) {
            sum += (double)x[r * cols + c] * (double)w[c];
        }
        y[r] = (float)sum;
    }
}

static void dot_rows_backward(const tsr_op_work *work)
{
    const int64_t cols = work->in[1].count;
    const float *x = work->in[0].data;
    const float *w = work->in[1].data;
    const float *dy = work->dout.data;
    float *dx = work->din[0].data;
    float *dw = work->din[1].data;

    runs++;
    for (int64_t i = 0; dx != NULL && i < work->dout.count * cols; i++) {
        dx[i] = (work->accumulate[0] ? dx[i] : 0.0F) + dy[i / cols] * w[i % cols];
    }
    for (int64_t c = 0; dw != NULL && c < cols; c++) {
        double sum = 0.0;

        for (int64_t r = 0; r < work->dout.count; r++) {
            sum += (double)dy[r] * (double)x[r * cols + c];
        }
        dw[c] = (work->accumulate[1] ? dw[c] : 0.0F) + (float)sum;
    }
}

tsr_status dot_rows(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight, tsr_dtensor **out)
{
    static const tsr_custom_op op = {.name = "dot_rows",
                                     .shape = dot_rows_shape,
                                     .place = dot_rows_place,
                                     .forward = dot_rows_forward,
                                     .backward = dot_rows_backward,
                                     .keep_in = 3,
                                     .adds_grad = 3};
    tsr_dtensor *in[] = {x, weight};

    return tsr_op_custom(tape, &op, in, 2, NULL, 0, out);
}

/* ---- own_linear ---- */

static tsr_status own_linear_shape(tsr_op_shapes *shapes)
{
    shapes->out.shape[shapes->out.ndim - 1] = shapes->in[1].shape[0];
    return TSR_OK;
}

/* Which calls of a product failed; none may. */
static void multiply(tsr_product product)
{
    if (tsr_product_compute(&product) != TSR_OK) {
        tsr_error_print(stderr);
        memset(product.c, 0xff, (size_t)(product.m * product.n) * sizeof(float)); /* NaN */
    }
}

static void own_linear_forward(const tsr_op_work *work)
{
    const int64_t n = work->in[1].shape[0];
    const int64_t k = work->in[1].shape[1];

    runs++;
    multiply((tsr_product){.a = work->in[0].data,
                           .b = work->in[1].data,
                           .c = work->out.data,
                           .m = work->in[0].count / k,
                           .n = n,
                           .k = k,
                           .trans_b = true});
}

static void own_linear_backward(const tsr_op_work *work)
{
    const int64_t n = work->in[1].shape[0];
    const int64_t k = work->in[1].shape[1];
    const int64_t rows = work->dout.count / n;

    runs++;
    if (work->din[0].data != NULL) {
        multiply((tsr_product){.a = work->dout.data,
                               .b = work->in[1].data,
                               .c = work->din[0].data,
                               .m = rows,
                               .n = k,
                               .k = n,
                               .accumulate = work->accumulate[0]});
    }
    if (work->din[1].data != NULL) {
        multiply((tsr_product){.a = work->dout.data,
                               .b = work->in[0].data,
                               .c = work->din[1].data,
                               .m = n,
                               .n = k,
                               .k = rows,
                               .trans_a = true,
                               .accumulate = work->accumulate[1]});
    }
}

tsr_status own_linear(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight, tsr_dtensor **out)
{
    static const tsr_custom_op op = {.name = "own_linear",
                                     .shape = own_linear_shape,
                                     .place = unit_rows_place,
                                     .forward = own_linear_forward,
                                     .backward = own_linear_backward,
                                     .keep_in = 3,
                                     .adds_grad = 3};
    tsr_dtensor *in[] = {x, weight};

    return tsr_op_custom(tape, &op, in, 2, NULL, 0, out);
}
