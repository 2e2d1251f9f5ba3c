/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file state_access.c
 * Reading and writing the state by name and position.
 *
 * Reading and writing are local: each rank has to do with what it holds. What other ranks compute
 * with is another matter, and they gather it together or not at all; so what was written counts
 * from the moment at which all of them hear of it, the commit.
 */
#include "state_priv.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fsdp/digest.h"
#include "optim/optim.h"

enum {
    GATHER_ELEMENTS = 1 << 16 /* of the tensor that are exchanged at a time */
};

static tsr_stream *stream_of(const tsr_state *s)
{
    return tsri_comm_stream(s->comm, TSRI_STREAM_COMPUTE);
}

/* ---- reading ---- */

/* What a call is about. */
typedef struct request {
    const char *what; /* the function */
    const char *name;
    int64_t first, count;
} request;

static tsr_status raise_unknown(const tsr_state *s, const request *r)
{
    const char **names = NULL;
    const char *near = NULL;

    TSR_TRY(tsri_alloc((size_t)s->count, sizeof(*names), &names));
    for (int i = 0; i < s->count; i++) {
        names[i] = s->entries[i].name;
    }
    near = tsri_nearest(r->name, names, s->count);
    tsri_free(&names);
    return TSR_RAISE(TSR_ERR_INVALID, "%s: the state has no entry \"%s\"%s%s%s", r->what, r->name,
                     near != NULL ? ", nearest: \"" : "", near != NULL ? near : "",
                     near != NULL ? "\"" : "");
}

static tsr_status check_backend(const tsr_state *s, const char *what)
{
    const tsr_backend *backend = tsri_comm_device(s->comm)->backend;

    if ((backend->caps & TSR_CAP_EXECUTES) == 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: backend %s holds no bytes", what, backend->name);
    }
    return TSR_OK;
}

/* The entry that r names, and where it lies, but for gradients, which are made final first. */
static tsr_status find(const tsr_state *s, const request *r, int *index_out, tsri_rest *out)
{
    const int index = tsr_state_find(s, r->name);
    int64_t count = 0;

    if (index < 0) {
        return raise_unknown(s, r);
    }
    TSR_TRY(tsri_state_locate(s, &s->entries[index], out));
    count = tsri_state_count_of(&out->layout.outer);
    if (r->first < 0 || r->count < 0 || r->first > count - r->count) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %lld elements from %lld on of %s, which has %lld",
                         r->what, (long long)r->count, (long long)r->first, r->name,
                         (long long)count);
    }
    TSR_TRY(check_backend(s, r->what));
    *index_out = index;
    return TSR_OK;
}

static tsr_status settle_state(const state_entry *e, const request *r, tsri_rest *rest)
{
    const tsri_rest *grad = NULL;
    tsr_tape *tape = NULL;

    if (e->from != SOURCE_GRAD) {
        return TSR_OK;
    }
    TSR_TRY(e->param->sink->finalize(e->param->sink_context, e->param, r->what, &tape));
    TSR_TRY(tsri_param_get_grad(e->param, &grad));
    *rest = *grad;
    return TSR_OK;
}

tsr_status tsr_state_read(tsr_state *state, const char *name, int64_t first, int64_t count,
                          void *host)
{
    TSRI_WANT(state, name, host);

    const request r = {__func__, name, first, count};
    int index = 0;
    tsri_rest rest = {0};

    TSR_TRY(find(state, &r, &index, &rest));
    TSR_TRY(settle_state(&state->entries[index], &r, &rest));
    TSR_TRY(tsri_rest_read(&rest, first, count, host, stream_of(state)));
    return TSR_OK;
}

/* ---- gathering ---- */

/* The part of [first, first + count) that rank holds and speaks for, as elements of its block. */
static tsr_status part_of(const tsri_rest *rest, int rank, int64_t first, int64_t count,
                          tsri_piece *out)
{
    const tsri_rest_layout *layout = &rest->layout;
    int coord[TSR_MESH_MAX_AXES] = {0};
    tsri_piece piece;

    TSR_TRY(tsri_rest_locate(layout, rank, &piece));
    TSR_TRY(tsr_mesh_coord(layout->outer.mesh, rank, coord));
    *out = piece;
    out->begin = tsri_piece_find(&piece, first);
    out->end =
        tsri_rest_speaks(layout, coord) ? tsri_piece_find(&piece, first + count) : out->begin;
    return TSR_OK;
}

static void unpack(const tsri_piece *part, size_t size, int64_t first, const unsigned char *packed,
                   unsigned char *host)
{
    const int64_t runs = tsri_piece_runs(part);

    for (int64_t i = 0; i < runs; i++) {
        tsri_run run;

        tsri_piece_run(part, i, &run);
        memcpy(host + (size_t)(run.global - first) * size,
               packed + (size_t)(run.local - part->begin) * size, (size_t)run.count * size);
    }
}

/* Every rank's part, in a place of count elements of its own. */
static tsr_status gather_part(const tsr_state *s, const tsri_rest *rest, int64_t first,
                              int64_t count, unsigned char *mine, unsigned char *all,
                              unsigned char *host)
{
    const size_t size = tsr_dtype_size(rest->dtype);
    const int ranks = tsr_mesh_cell_count(tsr_comm_mesh(s->comm));
    int64_t most = 0;
    tsri_piece part;

    for (int rank = 0; rank < ranks; rank++) {
        TSR_TRY(part_of(rest, rank, first, count, &part));
        most = tsri_max64(most, part.end - part.begin);
    }
    TSR_TRY(part_of(rest, tsr_comm_rank(s->comm), first, count, &part));
    TSR_TRY(tsri_rest_get(rest, part.begin, part.end, mine, stream_of(s)));
    TSR_TRY(tsri_comm_exchange(s->comm, "state", mine, (size_t)most * size, all));
    for (int rank = 0; rank < ranks; rank++) {
        TSR_TRY(part_of(rest, rank, first, count, &part));
        unpack(&part, size, first, all + (size_t)(rank * most) * size, host);
    }
    return TSR_OK;
}

/* All ranks want the same, or hear of it; mine: whether this one could be served. */
static tsr_status agree(const tsr_state *s, const request *r, tsr_status mine)
{
    tsr_world *world = tsr_comm_world(s->comm);
    char text[512];

    (void)snprintf(text, sizeof(text), "%.400s %lld %lld", r->name, (long long)r->first,
                   (long long)r->count);
    TSR_TRY(tsri_world_agree(world, "gathering the state", mine));
    TSR_TRY(tsr_world_check_same(world, "what to gather of the state", text, strlen(text)));
    return TSR_OK;
}

tsr_status tsr_state_gather(tsr_state *state, const char *name, int64_t first, int64_t count,
                            void *host)
{
    TSRI_WANT(state, name, host);

    const request r = {__func__, name, first, count};
    const size_t ranks = (size_t)tsr_world_size(tsr_comm_world(state->comm));
    int index = 0;
    unsigned char *mine = NULL;
    unsigned char *all = NULL;
    size_t size = 0;
    tsri_rest rest = {0};
    tsr_status status = TSR_OK;

    TSR_TRY(agree(state, &r, find(state, &r, &index, &rest)));
    TSR_TRY(settle_state(&state->entries[index], &r, &rest));
    size = tsr_dtype_size(rest.dtype);
    TSR_TRY(tsri_alloc(GATHER_ELEMENTS, size, &mine));
    TSR_TRY_GOTO(status, tsri_alloc(GATHER_ELEMENTS * ranks, size, &all), free_mine);
    for (int64_t at = 0; at < count; at += GATHER_ELEMENTS) {
        TSR_TRY_GOTO(status,
                     gather_part(state, &rest, first + at, tsri_min64(GATHER_ELEMENTS, count - at),
                                 mine, all, (unsigned char *)host + (size_t)at * size),
                     free_all);
    }
free_all:
    tsri_free(&all);
free_mine:
    tsri_free(&mine);
    return status;
}

/* ---- writing ---- */

static tsr_status check_scalar(const state_entry *e, const request *r, const void *host)
{
    int64_t count = 0;
    int32_t good = 0;
    float scale = 1.0F;

    if (r->count == 0) {
        return TSR_OK;
    }
    if (e->from == SOURCE_UPDATES || e->from == SOURCE_SKIPPED) {
        memcpy(&count, host, sizeof(count));
    } else if (e->from == SOURCE_GOOD) {
        memcpy(&good, host, sizeof(good));
        count = good;
    } else if (e->from == SOURCE_SCALE) {
        memcpy(&scale, host, sizeof(scale));
    }
    if (count < 0 || !(scale > 0.0F) || !isfinite(scale)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s becomes %g, wants %s", r->what, r->name,
                         e->from == SOURCE_SCALE ? (double)scale : (double)count,
                         e->from == SOURCE_SCALE ? "a finite number above 0" : "0 or more");
    }
    return TSR_OK;
}

/* Whether r may be written now. */
static tsr_status prepare(tsr_state *s, const request *r, const void *host, state_entry *e)
{
    TSR_TRY(check_scalar(e, r, host));
    if (e->from != SOURCE_GRAD && s->tape != NULL) {
        TSR_TRY(tsri_step_check_outside(s->tape, r->what));
    }
    if (e->from == SOURCE_MASTER) {
        TSR_TRY(e->param->sink->overwrite(e->param->sink_context, e->param, TSRI_OVERWRITE_ALONE));
    }
    return TSR_OK;
}

tsr_status tsr_state_write(tsr_state *state, const char *name, int64_t first, int64_t count,
                           const void *host)
{
    TSRI_WANT(state, name, host);

    const request r = {__func__, name, first, count};
    int index = 0;
    tsri_rest rest = {0};

    TSR_TRY(find(state, &r, &index, &rest));

    state_entry *e = &state->entries[index];

    TSR_TRY(prepare(state, &r, host, e));
    TSR_TRY(settle_state(e, &r, &rest));
    TSR_TRY(tsri_rest_write(&rest, first, count, host, stream_of(state)));
    return TSR_OK;
}

/* All ranks' flags, one after the other. */
static tsr_status commit_all(tsr_state *s, const unsigned char *all, int ranks)
{
    for (int i = 0; i < s->count; i++) {
        state_entry *e = &s->entries[i];
        bool written = false;

        for (int rank = 0; rank < ranks; rank++) {
            written = written || all[(size_t)rank * (size_t)s->count + (size_t)i] != 0;
        }
        if (written) {
            TSR_TRY(
                e->param->sink->overwrite(e->param->sink_context, e->param, TSRI_OVERWRITE_TOLD));
        }
    }
    return TSR_OK;
}

/* No rank runs the model on a state that some rank could not write. */
static void refuse_to_run(const tsr_state *s)
{
    for (int i = 0; i < s->count; i++) {
        const state_entry *e = &s->entries[i];

        if (e->from == SOURCE_MASTER) {
            tsri_error_hold();
            (void)e->param->sink->overwrite(e->param->sink_context, e->param, TSRI_OVERWRITE_ALONE);
            tsri_error_release();
            return;
        }
    }
}

tsr_status tsr_state_commit(tsr_state *state, tsr_status mine)
{
    TSRI_WANT(state);

    const size_t count = (size_t)state->count;
    const int ranks = tsr_world_size(tsr_comm_world(state->comm));
    unsigned char *flags = NULL;
    unsigned char *all = NULL;
    tsr_status status = TSR_OK;

    mine = tsri_world_agree(tsr_comm_world(state->comm), "writing the state", mine);
    if (mine != TSR_OK) {
        refuse_to_run(state);
        return tsr_error_pass(mine, __FILE__, __LINE__, __func__);
    }
    TSR_TRY(tsri_alloc(count, 1, &flags));
    TSR_TRY_GOTO(status, tsri_alloc(count * (size_t)ranks, 1, &all), free_flags);
    for (size_t i = 0; i < count; i++) {
        flags[i] = state->entries[i].from == SOURCE_MASTER && state->entries[i].param->written;
    }
    TSR_TRY_GOTO(status, tsri_comm_exchange(state->comm, "what was written", flags, count, all),
                 free_all);
    TSR_TRY_GOTO(status, commit_all(state, all, ranks), free_all);
free_all:
    tsri_free(&all);
free_flags:
    tsri_free(&flags);
    return status;
}

tsr_status tsr_state_digest(tsr_state *state, uint64_t *digest_out)
{
    TSRI_WANT(state, digest_out);

    tsri_digest_item *items = NULL;
    int count = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(check_backend(state, __func__));
    TSR_TRY(tsri_alloc((size_t)state->count, sizeof(*items), &items));
    for (int i = 0; i < state->count; i++) {
        if (state->entries[i].from != SOURCE_GRAD) {
            items[count].name = state->entries[i].name;
            TSR_TRY_GOTO(status, tsri_state_locate(state, &state->entries[i], &items[count].rest),
                         free_items);
            count++;
        }
    }
    TSR_TRY_GOTO(status, tsri_digest(state->comm, items, count, digest_out), free_items);
free_items:
    tsri_free(&items);
    return status;
}
