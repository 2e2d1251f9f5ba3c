/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Parameters in Hugging Face weight files.
 *
 * Llama's tensors are shaped as ours. GPT-2 stores its linear weights [in, out] (Conv1D) and q, k,
 * v as one tensor c_attn of three blocks of out columns. A block of a transposed tensor is read
 * column by column of ours, each a run of the file, so that memory beyond the block is one such
 * run. */
#include "checkpoint/hf.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_ELEMENTS = 1 << 18
};

/* The row whose module is the first length characters of name. */
static const tsri_file_name *find_row(const tsri_file_name *rows, const char *name, size_t length)
{
    for (const tsri_file_name *row = rows; row->ours != NULL; row++) {
        if (strlen(row->ours) == length && strncmp(row->ours, name, length) == 0) {
            return row;
        }
    }
    return NULL;
}

static const char head_name[] = "lm_head.weight";

tsr_status tsri_hf_locate(const tsri_model_spec *spec, const char *param, tsri_hf_place *out)
{
    const tsri_arch_info *arch = tsri_arch_get(spec->arch);
    const char *leaf = strrchr(param, '.');
    const char *module = param;
    const tsri_file_name *row = NULL;
    long layer = -1;
    int n = 0;

    if (strncmp(param, "layers.", strlen("layers.")) == 0) {
        char *end = NULL;

        layer = strtol(param + strlen("layers."), &end, 10);
        module = *end == '.' ? end + 1 : end;
    }
    if (leaf != NULL && leaf > module) {
        row = find_row(layer >= 0 ? arch->block_names : arch->root_names, module,
                       (size_t)(leaf - module));
    }
    if (row == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "parameter %s has no place in a %s checkpoint", param,
                         arch->name);
    }
    if (layer >= 0) {
        n = snprintf(out->name, sizeof(out->name), "%s.%ld.%s%s", arch->block_name, layer,
                     row->theirs, leaf);
    } else {
        n = snprintf(out->name, sizeof(out->name), "%s%s", row->theirs, leaf);
    }
    if (n < 0 || n >= (int)sizeof(out->name)) {
        return TSR_RAISE(TSR_ERR_INVALID, "parameter %s: its name in a checkpoint is too long",
                         param);
    }
    out->twin = spec->tied && strcmp(param, "embed.weight") == 0 ? head_name : NULL;
    out->transposed = row->transposed && strcmp(leaf, ".weight") == 0;
    out->part = row->part;
    out->parts = row->parts;
    return TSR_OK;
}

int tsri_hf_tensor_shape(const tsri_hf_place *place, const tsr_param_spec *spec, int64_t *shape)
{
    for (int d = 0; d < spec->ndim; d++) {
        shape[place->transposed ? spec->ndim - 1 - d : d] =
            spec->shape[d] * (d == 0 ? place->parts : 1);
    }
    return spec->ndim;
}

/* name without its first component, if that is one that files leave out. */
static const char *short_name(const char *name)
{
    static const char *const prefixes[] = {"model.", "transformer."};

    for (int i = 0; i < 2; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            return name + strlen(prefixes[i]);
        }
    }
    return name;
}

const tsri_safetensors_tensor *tsri_hf_look_up(const tsri_safetensors *st, const char *prefix,
                                               const char *name)
{
    static const char *const wrappers[] = {
        "",       "module.",     "_orig_mod.", "module._orig_mod.", "_orig_mod.module.",
        "model.", "transformer."};
    const char *const names[] = {name, short_name(name)};
    char full[TSRI_HF_NAME_BYTES + 48];

    for (size_t w = 0; w < sizeof(wrappers) / sizeof(wrappers[0]); w++) {
        for (int i = 0; i < 2; i++) {
            const int n = snprintf(full, sizeof(full), "%s%s%s", prefix, wrappers[w], names[i]);
            const tsri_safetensors_tensor *t = NULL;

            if (n > 0 && n < (int)sizeof(full)) {
                t = tsri_safetensors_find(st, full);
            }
            if (t != NULL) {
                return t;
            }
        }
    }
    return NULL;
}

static tsr_status raise_missing(const tsri_safetensors *st, const char *prefix,
                                const tsri_hf_place *place, const tsr_param *param,
                                const char *shape)
{
    const bool head = strcmp(place->name, head_name) == 0;

    return TSR_RAISE(TSR_ERR_FORMAT, "%s: no tensor %s%s of shape %s, which is %s%s",
                     tsri_safetensors_path(st), prefix, place->name, shape, tsr_param_name(param),
                     head ? "; model.tied=true takes the embedding for it" : "");
}

tsr_status tsri_hf_find(const tsri_safetensors *st, const char *prefix, const tsri_hf_place *place,
                        const tsr_param *param, const tsri_safetensors_tensor **out)
{
    const tsri_safetensors_tensor *t = tsri_hf_look_up(st, prefix, place->name);
    int64_t shape[TSR_MAX_DIMS];
    const int ndim = tsri_hf_tensor_shape(place, tsr_param_get_spec(param), shape);
    char want[96];
    char have[96];

    if (t == NULL && place->twin != NULL) {
        t = tsri_hf_look_up(st, prefix, place->twin);
    }
    (void)tsri_format_shape(shape, ndim, want, sizeof(want));
    if (t == NULL) {
        return raise_missing(st, prefix, place, param, want);
    }
    for (int d = 0; d < ndim || d < t->ndim; d++) {
        if (ndim != t->ndim || t->shape[d] != shape[d]) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s has shape %s, the model wants %s",
                             tsri_safetensors_path(st), t->name,
                             tsri_safetensors_shape(t, have, sizeof(have)), want);
        }
    }
    TSR_TRY(tsri_safetensors_check_float(st, t));
    *out = t;
    return TSR_OK;
}

static tsr_status read_rows(tsri_safetensors *st, const tsri_safetensors_tensor *t, int64_t row0,
                            const tsri_block *b, float *out)
{
    const int64_t first = (row0 + b->first_row) * b->global_cols + b->first_col;

    if (b->cols == b->global_cols) {
        TSR_TRY(tsri_safetensors_read_f32(st, t, first, b->rows * b->cols, out));
        return TSR_OK;
    }
    for (int64_t r = 0; r < b->rows; r++) {
        TSR_TRY(tsri_safetensors_read_f32(st, t, first + r * b->global_cols, b->cols,
                                          out + r * b->cols));
    }
    return TSR_OK;
}

/* The file's row c holds our column c. */
static tsr_status read_transposed(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                  int64_t row0, const tsri_block *b, float *out)
{
    const int64_t width = t->shape[1];
    float *run = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)b->rows, sizeof(*run), &run));
    for (int64_t c = 0; c < b->cols; c++) {
        TSR_TRY_GOTO(status,
                     tsri_safetensors_read_f32(
                         st, t, (b->first_col + c) * width + row0 + b->first_row, b->rows, run),
                     free_run);
        for (int64_t r = 0; r < b->rows; r++) {
            out[r * b->cols + c] = run[r];
        }
    }
free_run:
    tsri_free(&run);
    return status;
}

tsr_status tsri_hf_read_block(tsri_safetensors *st, const tsri_safetensors_tensor *tensor,
                              const tsri_hf_place *place, const tsri_block *block, float *out)
{
    const int64_t row0 = place->part * block->global_rows;

    if (block->rows == 0 || block->cols == 0) {
        return TSR_OK;
    }
    if (place->transposed) {
        TSR_TRY(read_transposed(st, tensor, row0, block, out));
    } else {
        TSR_TRY(read_rows(st, tensor, row0, block, out));
    }
    return TSR_OK;
}

/* Rows of which this rank owns something go through host memory in chunks. */
static tsr_status load_param(tsri_safetensors *st, const tsri_model_spec *spec, tsr_param *param)
{
    const tsri_piece *piece = &param->master.piece;
    const int64_t cols = piece->block.cols;
    const tsri_safetensors_tensor *t = NULL;
    tsri_hf_place place;
    tsri_block part = piece->block;
    int64_t chunk = 0;
    int64_t last = 0;
    float *host = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_hf_locate(spec, tsr_param_name(param), &place));
    TSR_TRY(tsri_hf_find(st, "", &place, param, &t));
    if (piece->begin == piece->end) {
        TSR_TRY(tsri_param_put(param, 0, 0, host));
        return TSR_OK;
    }
    chunk = tsri_max64(1, CHUNK_ELEMENTS / cols);
    last = tsri_ceil_div(piece->end, cols);
    TSR_TRY(tsri_alloc((size_t)(chunk * cols), sizeof(*host), &host));
    for (int64_t row = piece->begin / cols; row < last; row += chunk) {
        part.first_row = piece->block.first_row + row;
        part.rows = tsri_min64(chunk, last - row);
        TSR_TRY_GOTO(status, tsri_hf_read_block(st, t, &place, &part, host), free_host);
        TSR_TRY_GOTO(status, tsri_param_put(param, row * cols, (row + part.rows) * cols, host),
                     free_host);
    }
free_host:
    tsri_free(&host);
    return status;
}

tsr_status tsri_hf_load(tsri_safetensors *st, const tsri_model_spec *spec, tsr_param *const *params,
                        int count, char *notice)
{
    TSR_TRY(tsri_hf_check(st, spec, params, count, notice));
    for (int i = 0; i < count; i++) {
        TSR_TRY(load_param(st, spec, params[i]));
    }
    return TSR_OK;
}
