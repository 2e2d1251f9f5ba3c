/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Where a unit's reduced gradients are.
 *
 * Sums are formed in step memory, taken at the step's first reduction (without a slot: for the
 * first gradient) and given back when the step ends, so that a forward pass after an update finds
 * no gradients. What does not fit or has to outlive the step is copied to rest: offloaded gradients
 * to the host pool after each reduction, and sums that a step leaves for the next one, when it
 * ends, to a device buffer of their own; what is at rest comes back before more is added.
 * Parameters point to whichever it is, and nowhere while there are no gradients.
 */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

/* Let parameters find their gradients; buffer NULL: there are none. */
static void point(const unit *u, tsr_buffer *buffer, size_t offset)
{
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        tsri_rest *grad = &p->param->grad;

        if (tsri_unit_trains(p)) {
            grad->buffer = buffer;
            grad->offset = offset;
        }
        if (tsri_unit_trains(p) && tsri_rest_count(grad) > 0) {
            grad->offset +=
                (size_t)(p->shard_offset + grad->piece.begin - u->flat.grad_begin) * F32;
        }
    }
}

/* By a reduction, or by who has used them on compute since. */
static tsr_event last_use(const unit *u)
{
    return tsri_last_use(tsri_unit_stream(u, TSRI_STREAM_COMPUTE), u->grads.reduced_seen,
                         u->grads.reduced);
}

static tsri_mem rest_range(const unit *u)
{
    return (tsri_mem){
        .buffer = u->rest.sums, .bytes = (size_t)u->flat.grad_count * F32, .interval = -1};
}

tsr_status tsri_unit_open_sums(unit *u, tsri_stream_kind kind)
{
    const bool comes_back = tsri_unit_has_sums(u) && u->grads.sums.buffer == NULL;
    const tsri_stream_kind first = comes_back && u->options.offload_grads ? TSRI_STREAM_COPY : kind;
    const tsri_mem rest = rest_range(u);

    if (u->grads.sums.buffer != NULL) {
        return TSR_OK;
    }
    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)u->flat.grad_count * F32,
                               TSRI_MEM_GRAD, u->module->path, tsri_unit_stream(u, first),
                               &u->grads.sums));
    if (comes_back) {
        TSR_TRY(tsri_stream_wait(tsri_unit_stream(u, first), u->grads.reduced));
        TSR_TRY(tsri_unit_copy(u, first, &rest, &u->grads.sums, u->flat.grad_count));
        tsri_unit_note_reduced(u, tsri_unit_stream(u, first));
        TSR_TRY(tsri_stream_wait(tsri_unit_stream(u, kind), u->grads.reduced));
    }
    point(u, u->grads.sums.buffer, u->grads.sums.offset);
    return TSR_OK;
}

/* What the replicate stream, which may lag behind by a backward's length, has sent. It is given
 * back as late as the sums: whoever took it over sooner would wait for that stream. */
static void release_wire(unit *u, tsr_event last_use)
{
    if (u->grads.wire.buffer != NULL) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->grads.wire, last_use);
        u->grads.wire = (tsri_mem){0};
    }
}

tsr_status tsri_unit_rest_sums(unit *u)
{
    const tsri_stream_kind kind = u->options.offload_grads ? TSRI_STREAM_COPY : TSRI_STREAM_REDUCE;
    tsri_mem rest = rest_range(u);

    if (u->grads.sums.buffer == NULL) {
        return TSR_OK;
    }
    if (u->rest.sums == NULL) {
        TSR_TRY(
            tsri_comm_buffer(u->comm, rest.bytes, TSRI_MEM_GRAD, u->module->path, &u->rest.sums));
        rest.buffer = u->rest.sums;
    }
    TSR_TRY(tsri_stream_wait(tsri_unit_stream(u, kind), last_use(u)));
    TSR_TRY(tsri_unit_copy(u, kind, &u->grads.sums, &rest, u->flat.grad_count));
    tsri_unit_note_reduced(u, tsri_unit_stream(u, kind));
    u->grads.rest =
        u->grads.rest == REST_EARLIER || u->grads.rest == REST_BOTH ? REST_BOTH : REST_NOW;
    tsri_arena_release(tsri_comm_arena(u->comm), &u->grads.sums, u->grads.reduced);
    release_wire(u, u->grads.reduced);
    point(u, u->rest.sums, 0);
    return TSR_OK;
}

tsr_status tsri_unit_await_sums(unit *u)
{
    tsr_stream *compute = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);

    TSR_TRY(tsri_stream_wait(compute, u->grads.reduced));
    u->grads.reduced_seen = compute->enqueued;
    return TSR_OK;
}

void tsri_unit_drop_sums(unit *u)
{
    const tsr_event last = last_use(u);

    if (u->grads.sums.buffer != NULL) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->grads.sums, last);
    }
    release_wire(u, last);
    point(u, NULL, 0);
}

/* After a step that was given up or cut short what earlier steps left counts again, unless
 * offloaded sums have been written over it. */
static void fall_back(unit *u)
{
    if (u->grads.rest == REST_BOTH) {
        tsri_log(TSRI_LOG_WARN,
                 "unit \"%s\": gradients kept from earlier steps are lost with this one",
                 u->module->path);
    }
    u->grads.rest = u->grads.rest == REST_EARLIER ? REST_EARLIER : REST_FREE;
}

tsr_status tsri_unit_end_sums(unit *u, bool failed)
{
    unit_grads *g = &u->grads;

    if (!failed && g->keep) {
        TSR_TRY(tsri_unit_rest_sums(u));
        g->rest = REST_EARLIER;
    } else if (!failed && g->state == SUMS_FINAL) {
        g->rest = REST_FREE;
    } else {
        fall_back(u);
    }
    tsri_unit_drop_sums(u);
    g->state = g->rest == REST_EARLIER ? SUMS_TERMS : SUMS_NONE;
    g->keep = false;
    if (tsri_unit_has_sums(u)) {
        point(u, u->rest.sums, 0);
    }
    return TSR_OK;
}
