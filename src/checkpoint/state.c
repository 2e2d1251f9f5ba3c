/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file state.c
 * The list of what a run is made of.
 *
 * Every entry is a descriptor of something at rest, scalars too: tensors without dims, replicated
 * on every axis. Where it lies is asked each time, since gradients come and go and the loss scale
 * changes places.
 */
#include "state_priv.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "nn/nn.h"
#include "optim/optim.h"

/* ---- the list ---- */

static tsr_status add(tsr_state *s, state_source from, tsr_param *param, int index,
                      const char *suffix)
{
    const char *base = param != NULL ? param->name : "";
    const size_t bytes = strlen(base) + strlen(suffix) + 1;
    char *name = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(bytes, 1, &name));
    (void)snprintf(name, bytes, "%s%s", base, suffix);
    TSR_TRY_GOTO(status, tsri_grow(&s->entries, &s->capacity, s->count + 1, sizeof(state_entry)),
                 free_name);
    s->entries[s->count++] = (state_entry){name, from, index, param};
    return TSR_OK;
free_name:
    tsri_free(&name);
    return status;
}

static tsr_status list_params(tsr_state *s, tsr_module *model)
{
    tsr_param *const *params = NULL;
    int count = 0;

    TSR_TRY(tsr_module_params(tsri_module_root(model), &params, &count));
    for (int i = 0; i < count; i++) {
        TSR_TRY(add(s, SOURCE_MASTER, params[i], i, ""));
    }
    for (int i = 0; i < count; i++) {
        if (!params[i]->spec.frozen) {
            TSR_TRY(add(s, SOURCE_GRAD, params[i], i, ".grad"));
        }
    }
    return TSR_OK;
}

static tsr_status list_optimizer(tsr_state *s, const tsr_optimizer *optimizer)
{
    for (int i = 0; i < tsri_optimizer_count(optimizer); i++) {
        const tsri_optimizer_state *state = tsri_optimizer_get_state(optimizer, i);
        tsr_param *param = tsri_optimizer_param(optimizer, i);

        if (state->m.buffer != NULL) {
            TSR_TRY(add(s, SOURCE_M, param, i, state->v.buffer != NULL ? ".exp_avg" : ".momentum"));
        }
        if (state->v.buffer != NULL) {
            TSR_TRY(add(s, SOURCE_V, param, i, ".exp_avg_sq"));
        }
    }
    TSR_TRY(add(s, SOURCE_UPDATES, NULL, 0, "optimizer.updates"));
    TSR_TRY(add(s, SOURCE_SKIPPED, NULL, 0, "optimizer.skipped"));
    return TSR_OK;
}

static tsr_status fill_state(tsr_state *s, tsr_module *model)
{
    TSR_TRY(list_params(s, model));
    if (s->optimizer != NULL) {
        TSR_TRY(list_optimizer(s, s->optimizer));
    }
    if (s->tape != NULL && tsri_tape_scale(s->tape)->on) {
        TSR_TRY(add(s, SOURCE_SCALE, NULL, 0, "loss_scale"));
        TSR_TRY(add(s, SOURCE_GOOD, NULL, 0, "loss_scale.good"));
    }
    return TSR_OK;
}

tsr_status tsr_state_open(tsr_module *model, tsr_optimizer *optimizer, tsr_tape *tape,
                          tsr_state **out)
{
    TSRI_WANT(model, out);

    tsr_state *s = NULL;
    tsr_status status = TSR_OK;

    if (!model->materialized) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "state of model \"%s\", which has no memory yet: call "
                         "tsr_module_materialize first",
                         model->path);
    }
    if ((optimizer != NULL && tsri_optimizer_comm(optimizer) != model->comm) ||
        (tape != NULL && tsri_tape_comm(tape) != model->comm)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "tsr_state_open: the %s lies on another comm than model \"%s\"",
                         tape != NULL && tsri_tape_comm(tape) != model->comm ? "tape" : "optimizer",
                         model->path);
    }
    TSR_TRY(tsri_alloc(1, sizeof(*s), &s));
    s->comm = tsr_comm_retain(model->comm);
    s->optimizer = optimizer;
    s->tape = tape;
    TSR_TRY_GOTO(status, fill_state(s, model), close);
    *out = s;
    return TSR_OK;
close:
    tsr_state_close(&s);
    return status;
}

void tsr_state_close(tsr_state **state)
{
    TSRI_WANT_VOID(state);

    tsr_state *s = *state;

    *state = NULL;
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < s->count; i++) {
        tsri_free(&s->entries[i].name);
    }
    tsri_free(&s->entries);
    tsr_comm_release(&s->comm);
    tsri_free(&s);
}

int tsr_state_count(const tsr_state *state)
{
    TSRI_WANT_OR(state, 0);
    return state->count;
}

int tsr_state_find(const tsr_state *state, const char *name)
{
    TSRI_WANT_OR(state, -1);
    TSRI_WANT_OR(name, -1);
    for (int i = 0; i < state->count; i++) {
        if (strcmp(state->entries[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- where an entry lies ---- */

/* A number that every rank has. */
static tsr_status place_scalar(const tsr_state *s, tsr_dtype dtype, tsr_buffer *buffer,
                               size_t offset, tsri_rest *out)
{
    tsri_rest_layout layout = {0};

    TSR_TRY(tsr_layout_init(tsr_comm_mesh(s->comm), NULL, 0, &layout.outer));
    TSR_TRY(tsri_rest_init(&layout, dtype, tsr_comm_rank(s->comm), out));
    out->buffer = buffer;
    out->offset = offset;
    return TSR_OK;
}

static tsr_status place_scale(const tsr_state *s, state_source from, tsri_rest *out)
{
    const tsri_loss_scale *scale = tsri_tape_scale(s->tape);
    const size_t at = tsri_scale_offset(scale->measured ? 1 - scale->now : scale->now);

    if (from == SOURCE_SCALE) {
        TSR_TRY(
            place_scalar(s, TSR_F32, scale->states, at + offsetof(tsrk_scale_state, scale), out));
    } else {
        TSR_TRY(
            place_scalar(s, TSR_I32, scale->states, at + offsetof(tsrk_scale_state, good), out));
    }
    return TSR_OK;
}

tsr_status tsri_state_locate(const tsr_state *s, const state_entry *e, tsri_rest *out)
{
    tsr_buffer *buffer = NULL;
    size_t offset = 0;

    switch (e->from) {
    case SOURCE_MASTER:
        *out = e->param->master;
        break;
    case SOURCE_GRAD:
        *out = e->param->grad;
        break;
    case SOURCE_M:
        *out = tsri_optimizer_get_state(s->optimizer, e->index)->m;
        break;
    case SOURCE_V:
        *out = tsri_optimizer_get_state(s->optimizer, e->index)->v;
        break;
    case SOURCE_UPDATES:
    case SOURCE_SKIPPED:
        tsri_optimizer_get_counter(s->optimizer, e->from == SOURCE_SKIPPED, &buffer, &offset);
        TSR_TRY(place_scalar(s, TSR_I64, buffer, offset, out));
        break;
    case SOURCE_SCALE:
    case SOURCE_GOOD:
        TSR_TRY(place_scale(s, e->from, out));
        break;
    }
    return TSR_OK;
}

static tsr_state_kind kind_of(const state_entry *e)
{
    switch (e->from) {
    case SOURCE_MASTER:
        return TSR_STATE_PARAM;
    case SOURCE_GRAD:
        return TSR_STATE_GRAD;
    case SOURCE_M:
    case SOURCE_V:
        return TSR_STATE_MOMENT;
    case SOURCE_UPDATES:
    case SOURCE_SKIPPED:
    case SOURCE_SCALE:
    case SOURCE_GOOD:
        break;
    }
    return TSR_STATE_SCALAR;
}

static tsr_status check_index(const tsr_state *s, const char *what, int index)
{
    if (index < 0 || index >= s->count) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: entry %d, the state has %d", what, index, s->count);
    }
    return TSR_OK;
}

int64_t tsri_state_count_of(const tsr_layout *layout)
{
    int64_t count = 1;

    for (int d = 0; d < layout->ndim; d++) {
        count *= layout->shape[d];
    }
    return count;
}

tsr_status tsr_state_get(const tsr_state *state, int index, tsr_state_entry *out)
{
    TSRI_WANT(state, out);

    tsri_rest rest;

    TSR_TRY(check_index(state, __func__, index));
    TSR_TRY(tsri_state_locate(state, &state->entries[index], &rest));
    *out = (tsr_state_entry){.name = state->entries[index].name,
                             .kind = kind_of(&state->entries[index]),
                             .dtype = rest.dtype,
                             .ndim = rest.layout.outer.ndim,
                             .count = tsri_state_count_of(&rest.layout.outer),
                             .range_count = tsri_piece_runs(&rest.piece),
                             .speaks = rest.speaks};
    memcpy(out->shape, rest.layout.outer.shape, sizeof(out->shape));
    return TSR_OK;
}

tsr_status tsr_state_range(const tsr_state *state, int index, int64_t range, int64_t *first_out,
                           int64_t *count_out)
{
    TSRI_WANT(state, first_out, count_out);

    tsri_rest rest;
    tsri_run run;

    TSR_TRY(check_index(state, __func__, index));
    TSR_TRY(tsri_state_locate(state, &state->entries[index], &rest));
    if (range < 0 || range >= tsri_piece_runs(&rest.piece)) {
        return TSR_RAISE(TSR_ERR_INVALID, "range %lld of %s, this rank holds %lld",
                         (long long)range, state->entries[index].name,
                         (long long)tsri_piece_runs(&rest.piece));
    }
    tsri_piece_run(&rest.piece, range, &run);
    *first_out = run.global;
    *count_out = run.count;
    return TSR_OK;
}
