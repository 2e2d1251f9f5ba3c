/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Comparing this rank's pieces with the reference.
 *
 * Of each parameter the owned elements are compared, so that every element is looked at by the rank
 * that updates it; host memory is a chunk of rows. The share of weights that are far off counts
 * each element once, like the gradient norm does. */
#include "verify_priv.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum {
    CHUNK_ELEMENTS = 1 << 16
};

const double tsri_verify_final_near = 5e-6;

const char *tsri_verify_prefix(verify_kind kind)
{
    switch (kind) {
    case VERIFY_GRAD:
        return "grad.";
    case VERIFY_ADAM_M:
        return "adam_m.";
    case VERIFY_ADAM_V:
        return "adam_v.";
    case VERIFY_FINAL:
        return "final.";
    case VERIFY_KINDS:
        break;
    }
    return "";
}

bool tsri_verify_is_undetermined(const verify_case *c, const tsr_param *param)
{
    static const char name[] = ".attn.k.bias";
    const size_t length = strlen(tsr_param_name(param));

    return !tsri_model_has(&c->spec, TSRI_SIZE_ROPE) && length >= strlen(name) &&
           strcmp(tsr_param_name(param) + length - strlen(name), name) == 0;
}

/* |a - b|, and infinity for what is no number. */
static double distance(float a, float b)
{
    const double d = fabs((double)a - (double)b);

    return isnan(d) ? HUGE_VAL : d;
}

/* ---- logits ---- */

/* One run of the vocabulary at a time: rows are contiguous in the file from vocab_begin on. */
static tsr_status compare_logit_rows(verify_compare *v, const tsr_dtensor *logits,
                                     const float *have, float *want)
{
    const verify_case *c = v->c;
    const int64_t vocab = c->logits->shape[2];
    const int64_t width = logits->local_shape[2];

    for (int64_t b = 0; b < logits->local_shape[0]; b++) {
        for (int64_t t = 0; t < logits->local_shape[1]; t++) {
            const int64_t row =
                (b + logits->local_offset[0]) * c->seq + t + logits->local_offset[1];

            TSR_TRY(tsri_safetensors_read_f32(c->expect, c->logits,
                                              row * vocab + logits->local_offset[2], width, want));
            for (int64_t i = 0; i < width; i++) {
                v->logits = tsri_max_double(v->logits, distance(*have++, want[i]));
            }
        }
    }
    return TSR_OK;
}

tsr_status tsri_verify_compare_logits(verify_compare *v, tsr_dtensor *logits)
{
    float *have = NULL;
    float *want = NULL;
    tsr_status status = TSR_OK;
    char text[160];

    for (int axis = 0; axis < tsr_mesh_axis_count(v->job->mesh); axis++) {
        if (logits->layout.place[axis].kind == TSR_PARTIAL || logits->dtype != TSR_F32) {
            return TSR_RAISE(TSR_ERR_PLACEMENT, "logits of %s lie as %s, want f32 without partial",
                             tsr_dtype_name(logits->dtype),
                             tsr_layout_format(&logits->layout, text, sizeof(text)));
        }
    }
    if (logits->local_count == 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)logits->local_count, sizeof(*have), &have));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)logits->local_shape[2], sizeof(*want), &want),
                 free_have);
    TSR_TRY_GOTO(status, tsr_dtensor_read(logits, have), free_want);
    TSR_TRY_GOTO(status, compare_logit_rows(v, logits, have, want), free_want);
free_want:
    tsri_free(&want);
free_have:
    tsri_free(&have);
    return status;
}

/* ---- parameters ---- */

typedef struct piece {
    const tsri_rest *rest;
    tsri_hf_place place;
    const tsri_safetensors_tensor *tensor;
    double worst, far; /* results */
} piece;

static tsr_status compare_chunk(verify_compare *v, piece *p, int64_t row, int64_t rows, float *have,
                                float *want)
{
    const int64_t cols = p->rest->piece.block.cols;
    const int64_t begin = tsri_max64(p->rest->piece.begin, row * cols);
    const int64_t end = tsri_min64(p->rest->piece.end, (row + rows) * cols);
    tsri_block part = p->rest->piece.block;

    part.first_row += row;
    part.rows = rows;
    TSR_TRY(tsri_hf_read_block(v->c->expect, p->tensor, &p->place, &part, want));
    TSR_TRY(tsri_rest_get(p->rest, begin, end, have,
                          tsri_comm_stream(v->job->comm, TSRI_STREAM_COMPUTE)));
    for (int64_t i = begin; i < end; i++) {
        const double d = distance(have[i - begin], want[i - row * cols]);

        p->worst = tsri_max_double(p->worst, d);
        p->far += d > tsri_verify_final_near ? 1.0 : 0.0;
    }
    return TSR_OK;
}

static tsr_status compare_piece(verify_compare *v, piece *p)
{
    const tsri_piece *own = &p->rest->piece;
    const int64_t cols = own->block.cols;
    int64_t chunk = 0;
    int64_t last = 0;
    float *have = NULL;
    float *want = NULL;
    tsr_status status = TSR_OK;

    if (own->begin == own->end) {
        return TSR_OK;
    }
    chunk = tsri_max64(1, CHUNK_ELEMENTS / cols);
    last = tsri_ceil_div(own->end, cols);
    TSR_TRY(tsri_alloc((size_t)(chunk * cols), sizeof(*have), &have));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)(chunk * cols), sizeof(*want), &want), free_have);
    for (int64_t row = own->begin / cols; row < last; row += chunk) {
        TSR_TRY_GOTO(status, compare_chunk(v, p, row, tsri_min64(chunk, last - row), have, want),
                     free_want);
    }
free_want:
    tsri_free(&want);
free_have:
    tsri_free(&have);
    return status;
}

/* Largest magnitude in this rank's share of the tensor, whatever pieces it holds. */
static tsr_status measure_tensor(const verify_compare *v, const tsri_safetensors_tensor *t,
                                 double *out)
{
    const int64_t ranks = tsr_mesh_cell_count(v->job->mesh);
    const int64_t share = tsri_ceil_div(t->count, ranks);
    const int64_t first = tsri_min64(t->count, share * tsr_comm_rank(v->job->comm));
    const int64_t end = tsri_min64(t->count, first + share);
    float *values = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(CHUNK_ELEMENTS, sizeof(*values), &values));
    for (int64_t at = first; at < end; at += CHUNK_ELEMENTS) {
        const int64_t n = tsri_min64(CHUNK_ELEMENTS, end - at);

        TSR_TRY_GOTO(status, tsri_safetensors_read_f32(v->c->expect, t, at, n, values),
                     free_values);
        for (int64_t i = 0; i < n; i++) {
            *out = tsri_max_double(*out, distance(values[i], 0.0F));
        }
    }
free_values:
    tsri_free(&values);
    return status;
}

/* Compare what kind says of parameter index. */
static tsr_status compare_param(verify_compare *v, verify_kind kind, int index)
{
    const tsr_param *param = v->job->params[index];
    const int at = (int)kind * v->param_count + index;
    const tsri_optimizer_state *state = tsri_optimizer_get_state(v->job->optimizer, index);
    piece p = {0};

    TSR_TRY(tsri_hf_locate(&v->c->spec, tsr_param_name(param), &p.place));
    TSR_TRY(tsri_hf_find(v->c->expect, tsri_verify_prefix(kind), &p.place, param, &p.tensor));
    if (kind == VERIFY_GRAD) {
        TSR_TRY(tsri_param_get_grad(param, &p.rest));
    } else if (kind == VERIFY_FINAL) {
        p.rest = &param->master;
    } else {
        p.rest = kind == VERIFY_ADAM_M ? &state->m : &state->v;
    }
    TSR_TRY(compare_piece(v, &p));
    TSR_TRY(measure_tensor(v, p.tensor, &v->scale[at]));
    v->worst[at] = p.worst;
    if (kind == VERIFY_FINAL && p.rest->speaks) {
        v->final_count += (double)tsri_rest_count(p.rest);
        v->final_far += p.far;
    }
    return TSR_OK;
}

tsr_status tsri_verify_compare_gradients(verify_compare *v)
{
    for (int i = 0; i < v->param_count; i++) {
        TSR_TRY(compare_param(v, VERIFY_GRAD, i));
    }
    return TSR_OK;
}

tsr_status tsri_verify_compare_final(verify_compare *v)
{
    for (int i = 0; i < v->param_count; i++) {
        if (tsri_verify_is_undetermined(v->c, v->job->params[i])) {
            continue;
        }
        TSR_TRY(compare_param(v, VERIFY_ADAM_M, i));
        TSR_TRY(compare_param(v, VERIFY_ADAM_V, i));
        TSR_TRY(compare_param(v, VERIFY_FINAL, i));
    }
    return TSR_OK;
}

/* ---- over ranks ---- */

static tsr_status reduce(tsr_comm *comm, double *values, int count, tsri_reduce_op op)
{
    const size_t bytes = (size_t)count * sizeof(double);
    const unsigned axes = (1u << tsr_mesh_axis_count(tsr_comm_mesh(comm))) - 1u;
    tsr_stream *stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE);
    tsr_buffer *buffer = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_comm_buffer(comm, bytes, TSRI_MEM_OTHER, "verify", &buffer));
    TSR_TRY_GOTO(status, tsri_write(buffer, 0, values, bytes, stream), release);
    TSR_TRY_GOTO(status, tsri_comm_all_reduce(comm, axes, buffer, 0, count, TSR_F64, op, "verify"),
                 release);
    TSR_TRY_GOTO(status, tsri_read(buffer, 0, values, bytes, stream), release);
release:
    tsri_buffer_release(&buffer);
    return status;
}

tsr_status tsri_verify_reduce(verify_compare *v)
{
    const int count = VERIFY_KINDS * v->param_count;
    double sums[2] = {v->final_count, v->final_far};

    TSR_TRY(reduce(v->job->comm, &v->logits, 1, TSRI_MAX));
    TSR_TRY(reduce(v->job->comm, v->worst, count, TSRI_MAX));
    TSR_TRY(reduce(v->job->comm, v->scale, count, TSRI_MAX));
    TSR_TRY(reduce(v->job->comm, sums, 2, TSRI_SUM));
    v->final_count = sums[0];
    v->final_far = sums[1];
    return TSR_OK;
}
