/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reducing a unit's gradients: from the slot into this rank's gradient shard.
 *
 * Every micro-batch: reduce-scatter over level 3, then over level 2. On the last one also:
 * all-reduce what tensor parallel left Partial, reduce-scatter over level 1, all-reduce over level
 * 0. Micro-batches add up in f32; whatever travels does so in reduce dtype. Without a slot (nothing
 * to reduce-scatter every time) gradients are written into the shard itself. */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

static size_t grad_slot_offset(const unit *u, const unit_param *p)
{
    return u->grads.slot.offset +
           (size_t)(p->shard_offset * u->levels.ranks[3]) * tsr_dtype_size(u->reduce_dtype);
}

tsr_status tsri_unit_open_grads(unit *u)
{
    TSR_TRY(tsri_engine_begin_backward(u->engine));
    TSR_TRY(tsri_unit_reopen(u));
    if (u->flat.has_grad_slot) {
        if (u->grads.slot.buffer == NULL) {
            const size_t bytes = (size_t)(u->flat.train_count * u->levels.ranks[3]) *
                                 tsr_dtype_size(u->reduce_dtype);

            TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), bytes, TSRI_MEM_SLOT_GRAD,
                                       u->module->path, tsri_unit_stream(u, TSRI_STREAM_COMPUTE),
                                       &u->grads.slot));
            for (int i = 0; i < u->param_count; i++) {
                u->params[i].written = false;
            }
        }
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_open_sums(u, TSRI_STREAM_COMPUTE));
    for (int i = 0; !tsri_unit_has_sums(u) && i < u->param_count; i++) {
        u->params[i].written = false;
    }
    u->grads.state = SUMS_TERMS;
    u->grads.unfilled = true;
    return TSR_OK;
}

tsri_mem tsri_unit_grad_range(const unit *u, const unit_param *p, tsr_dtype *dtype_out)
{
    const size_t count = (size_t)(p->rows * p->cols);

    *dtype_out = u->flat.has_grad_slot ? u->reduce_dtype : TSR_F32;
    if (u->flat.has_grad_slot) {
        return (tsri_mem){.buffer = u->grads.slot.buffer,
                          .offset = grad_slot_offset(u, p),
                          .bytes = count * tsr_dtype_size(u->reduce_dtype),
                          .interval = -1};
    }
    return (tsri_mem){.buffer = u->grads.sums.buffer,
                      .offset = u->grads.sums.offset + (size_t)p->shard_offset * F32,
                      .bytes = count * F32,
                      .interval = -1};
}

/* A gradient that comes outside the unit's own backward: from a use outside its module. */
static tsr_status open_outside(unit *u, const tsr_param *param)
{
    TSR_TRY(tsri_engine_begin_backward(u->engine));
    if (u->flat.has_grad_slot ? u->grads.slot.buffer != NULL
                              : u->grads.sums.buffer != NULL && u->grads.state != SUMS_FINAL) {
        return TSR_OK;
    }
    if (u->grads.state == SUMS_FINAL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "gradient of %s arrives after its unit \"%s\" has reduced the step's "
                         "gradients",
                         param->name, u->module->path);
    }
    u->values.shared = true;
    TSR_TRY(tsri_unit_open_grads(u));
    return TSR_OK;
}

static tsr_status destination(void *context, tsr_param *param, const tsr_layout *layout,
                              tsr_dtensor **dest_out, bool *accumulate_out)
{
    unit *u = context;
    unit_param *p = &u->params[param->unit_index];
    tsr_dtype dtype = TSR_F32;
    tsri_mem range;

    *dest_out = NULL;
    *accumulate_out = false;
    if (param->spec.frozen) {
        return TSR_OK;
    }
    TSR_TRY(open_outside(u, param));
    if (p->grad_value != NULL && !tsr_layout_equal(&p->grad_value->layout, layout)) {
        tsr_dtensor_release(&p->grad_value);
    }
    range = tsri_unit_grad_range(u, p, &dtype);
    if (p->grad_value == NULL) {
        TSR_TRY(tsri_dtensor_bare(u->comm, layout, dtype, param->name, &p->grad_value));
    }
    TSR_TRY(tsri_dtensor_attach(p->grad_value, range.buffer, range.offset));
    *dest_out = p->grad_value;
    *accumulate_out = p->written;
    p->written = true;
    p->reached = true;
    return TSR_OK;
}

const tsri_grad_sink tsri_unit_sink = {.place = tsri_unit_sum_place,
                                       .destination = destination,
                                       .finalize = tsri_unit_finalize,
                                       .use = tsri_unit_use,
                                       .overwrite = tsri_unit_overwrite};

tsr_status tsri_unit_zero(const unit *u, tsr_buffer *buffer, size_t offset, size_t bytes)
{
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE), .label = u->module->path};
    tsrk_zero args = {.bytes = bytes};

    if (bytes == 0) {
        return TSR_OK;
    }
    args.out = tsri_arg_out(&call, buffer, offset, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

/* Without slot: every gradient's range is filled, and what comes is added to it. */
static void mark_filled(unit *u)
{
    for (int i = 0; !u->flat.has_grad_slot && i < u->param_count; i++) {
        u->params[i].written = true;
    }
}

/* Slack after a parameter's last row, and parameters to which no gradient came, are zeros. */
static tsr_status fill_gaps(unit *u)
{
    const size_t size = u->flat.has_grad_slot ? tsr_dtype_size(u->reduce_dtype) : (size_t)F32;

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        const int64_t used = p->written ? p->rows * p->cols : 0;
        const size_t bytes = (size_t)(p->chunk * u->levels.ranks[3] - used) * size;

        if (!tsri_unit_trains(p)) {
            continue;
        }
        if (u->flat.has_grad_slot) {
            TSR_TRY(tsri_unit_zero(u, u->grads.slot.buffer,
                                   grad_slot_offset(u, p) + (size_t)used * size, bytes));
        } else {
            TSR_TRY(tsri_unit_zero(u, u->grads.sums.buffer,
                                   u->grads.sums.offset + (size_t)(p->shard_offset + used) * size,
                                   bytes));
        }
    }
    mark_filled(u);
    return TSR_OK;
}

tsr_status tsri_unit_zero_grads(unit *u)
{
    TSR_TRY(tsri_unit_open_sums(u, TSRI_STREAM_COMPUTE));
    TSR_TRY(tsri_unit_zero(u, u->grads.sums.buffer, u->grads.sums.offset,
                           (size_t)u->flat.grad_count * F32));
    tsri_unit_note_reduced(u, tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
    u->grads.state = SUMS_TERMS;
    mark_filled(u);
    return TSR_OK;
}

/* sums[n elements from grad_offset] (+)= x, cast to f32. */
static tsr_status add_to_grad(const unit *u, tsr_buffer *x, size_t x_offset, int64_t grad_offset,
                              int64_t n, bool accumulate)
{
    const size_t at = u->grads.sums.offset + (size_t)grad_offset * F32;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_REDUCE), .label = u->module->path};
    tsrk_scale args = {.n = n,
                       .factor = 1.0F,
                       .x_type = u->reduce_dtype,
                       .y_type = TSR_F32,
                       .accumulate = accumulate};

    if (n == 0) {
        return TSR_OK;
    }
    args.x = tsri_arg_in(&call, x, x_offset, (size_t)n * tsr_dtype_size(u->reduce_dtype));
    if (accumulate) {
        args.y = tsri_arg_inout(&call, u->grads.sums.buffer, at, (size_t)n * F32);
    } else {
        args.y = tsri_arg_out(&call, u->grads.sums.buffer, at, (size_t)n * F32);
    }
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* Where the W chunks of p's gradient lie one after the other. */
static size_t chunks_at(const unit *u, const tsri_mem *folded, const unit_param *p)
{
    return p->by_cols ? folded->offset + (size_t)p->fold_offset * tsr_dtype_size(u->reduce_dtype)
                      : grad_slot_offset(u, p);
}

/* Reduce-scatter the slot over level 3: to (out, out_offset) laid out as the flat shard, or in
 * place within the slot when out is NULL. */
static tsr_status scatter_slot(const unit *u, const tsri_mem *folded, tsr_buffer *out,
                               size_t out_offset)
{
    const size_t size = tsr_dtype_size(u->reduce_dtype);
    tsri_coll coll = {.kind = TSRI_REDUCE_SCATTER,
                      .dtype = u->reduce_dtype,
                      .items = u->items,
                      .label = u->module->path};

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        tsr_buffer *chunks = p->by_cols ? folded->buffer : u->grads.slot.buffer;
        const size_t in = chunks_at(u, folded, p);

        if (!tsri_unit_trains(p)) {
            continue;
        }
        u->items[coll.item_count++] = (tsri_coll_item){
            .in = chunks,
            .in_offset = in,
            .out = out != NULL ? out : chunks,
            .out_offset = out != NULL ? out_offset + (size_t)p->shard_offset * size
                                      : in + (size_t)(u->levels.index[3] * p->chunk) * size,
            .count = p->chunk};
    }
    TSR_TRY(tsri_unit_collective(u, u->levels.reduce, &coll, TSRI_STREAM_REDUCE));
    return TSR_OK;
}

/* One collective over a flat interval of f32 or reduce dtype, in place. */
static tsr_status flat_collective(const unit *u, tsr_group *group, tsri_coll_kind kind,
                                  tsr_dtype dtype, const tsri_coll_item *item,
                                  tsri_stream_kind stream)
{
    const tsri_coll coll = {
        .kind = kind, .dtype = dtype, .items = item, .item_count = 1, .label = u->module->path};

    TSR_TRY(tsri_unit_collective(u, group, &coll, stream));
    return TSR_OK;
}

/* Level 2: the flat gradient [E] at (buffer, offset) becomes this rank's interval in sums. */
static tsr_status scatter_flat(const unit *u, tsr_buffer *buffer, size_t offset, bool accumulate)
{
    const size_t size = tsr_dtype_size(u->reduce_dtype);
    const size_t own = offset + (size_t)u->flat.grad_begin * size;
    const tsri_coll_item item = {.in = buffer,
                                 .in_offset = offset,
                                 .out = buffer,
                                 .out_offset = own,
                                 .count = u->flat.grad_count};

    TSR_TRY(flat_collective(u, u->levels.flat_reduce[2], TSRI_REDUCE_SCATTER, u->reduce_dtype,
                            &item, TSRI_STREAM_REDUCE));
    TSR_TRY(add_to_grad(u, buffer, own, 0, u->flat.grad_count, accumulate));
    return TSR_OK;
}

/* Level 3 in place within the slot, then chunk by chunk into sums. */
static tsr_status scatter_and_add(const unit *u, const tsri_mem *folded, bool accumulate)
{
    const size_t size = tsr_dtype_size(u->reduce_dtype);

    TSR_TRY(scatter_slot(u, folded, NULL, 0));
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];

        if (tsri_unit_trains(p)) {
            TSR_TRY(add_to_grad(u, p->by_cols ? folded->buffer : u->grads.slot.buffer,
                                chunks_at(u, folded, p) +
                                    (size_t)(u->levels.index[3] * p->chunk) * size,
                                p->shard_offset, p->chunk, accumulate));
        }
    }
    return TSR_OK;
}

static tsr_status scatter_via_flat(unit *u, const tsri_mem *folded, bool accumulate)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_REDUCE);
    tsri_arena *arena = tsri_comm_arena(u->comm);
    tsri_mem flat = {0};

    TSR_TRY(tsri_arena_acquire(arena, (size_t)u->flat.train_count * tsr_dtype_size(u->reduce_dtype),
                               TSRI_MEM_SLOT_GRAD, u->module->path, stream, &flat));
    TSR_TRY(scatter_slot(u, folded, flat.buffer, flat.offset));
    TSR_TRY(scatter_flat(u, flat.buffer, flat.offset, accumulate));
    tsri_arena_release(arena, &flat, tsri_event_record(stream));
    return TSR_OK;
}

/* The chunks of by_cols parameters where a collective can take them; their slack is zero, for it
 * is summed. */
static tsr_status fold_slot(unit *u, tsri_mem *folded, tsr_stream *stream)
{
    const size_t bytes = (size_t)u->flat.fold_count * tsr_dtype_size(u->reduce_dtype);
    tsri_call call = {.stream = stream, .label = u->module->path};
    tsrk_zero args = {.bytes = bytes};

    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), bytes, TSRI_MEM_SLOT_GRAD, u->module->path,
                               stream, folded));
    args.out = tsri_arg_out(&call, folded->buffer, folded->offset, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    TSR_TRY(tsri_unit_fold(u, &u->grads.slot, folded, u->reduce_dtype, stream));
    return TSR_OK;
}

void tsri_engine_release_draining(engine *e)
{
    if (e->step.draining.buffer != NULL) {
        tsri_arena_release(tsri_comm_arena(e->comm), &e->step.draining, e->step.drained);
        e->step.draining = (tsri_mem){0};
    }
}

static tsr_status scatter(unit *u, const tsri_mem *folded, bool accumulate)
{
    if (u->levels.flat_reduce[2] != NULL && u->levels.ranks[3] > 1) {
        TSR_TRY(scatter_via_flat(u, folded, accumulate));
    } else if (u->levels.flat_reduce[2] != NULL) {
        TSR_TRY(scatter_flat(u, u->grads.slot.buffer, u->grads.slot.offset, accumulate));
    } else if (accumulate || u->reduce_dtype != TSR_F32) {
        TSR_TRY(scatter_and_add(u, folded, accumulate));
    } else {
        TSR_TRY(scatter_slot(u, folded, u->grads.sums.buffer, u->grads.sums.offset));
    }
    return TSR_OK;
}

/* The part of every micro-batch: the slot's gradients go into sums. The slot is given back one unit
 * later: were its memory the next unit's, compute would wait for this reduction. */
static tsr_status reduce_slot(unit *u, bool accumulate)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_REDUCE);
    tsr_stream *compute = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);
    const uint64_t enqueued = stream->enqueued;
    tsri_mem folded = {0};

    TSR_TRY(tsri_stream_wait(stream, tsri_event_record(compute)));
    if (u->flat.fold_count > 0) {
        TSR_TRY(fold_slot(u, &folded, stream));
    }
    TSR_TRY(scatter(u, &folded, accumulate));
    if (u->flat.fold_count > 0) {
        tsri_arena_release(tsri_comm_arena(u->comm), &folded, tsri_event_record(stream));
    }
    tsri_engine_release_draining(u->engine);
    u->engine->step.draining = u->grads.slot;
    u->engine->step.drained = tsri_event_record(compute);
    /* An event stands for work: a rank whose pieces are all empty has done none here. */
    if (stream->enqueued != enqueued) {
        tsri_unit_note_reduced(u, stream);
        u->engine->step.drained = u->grads.reduced;
    }
    u->grads.slot = (tsri_mem){0};
    return TSR_OK;
}

/* The gradients that are Partial on exactly the axes of mask, as one all-reduce. */
static tsr_status reduce_partial_mask(const unit *u, const tsri_mem *wire, unsigned mask)
{
    const size_t size = tsr_dtype_size(u->reduce_dtype);
    tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                      .dtype = u->reduce_dtype,
                      .items = u->items,
                      .label = u->module->path};
    tsr_group *group = NULL;

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        int64_t begin = 0;
        int64_t end = 0;

        if (p->partial_mask != mask || !tsri_unit_trains(p)) {
            continue;
        }
        TSR_TRY(tsri_comm_group(u->comm, mask, TSRI_STREAM_REPLICATE, &group));
        tsri_intersect(u->flat.grad_begin, u->flat.grad_begin + u->flat.grad_count, p->shard_offset,
                       p->shard_offset + p->chunk, &begin, &end);
        if (begin < end) {
            const size_t offset = wire->offset + (size_t)(begin - u->flat.grad_begin) * size;

            u->items[coll.item_count++] =
                (tsri_coll_item){wire->buffer, offset, wire->buffer, offset, end - begin};
        }
    }
    if (coll.item_count > 0) {
        TSR_TRY(tsri_unit_collective(u, group, &coll, TSRI_STREAM_REPLICATE));
    }
    return TSR_OK;
}

/* What tensor parallel left Partial counts as level 0. */
static tsr_status reduce_partial(const unit *u, const tsri_mem *wire)
{
    const unsigned masks = 1u << tsr_mesh_axis_count(tsr_comm_mesh(u->comm));

    for (unsigned mask = 1; mask < masks; mask++) {
        TSR_TRY(reduce_partial_mask(u, wire, mask));
    }
    return TSR_OK;
}

/* What this rank owns, divided by what the program asked for. */
static tsr_status divide(const unit *u, size_t own)
{
    const size_t bytes = (size_t)u->flat.own_count * F32;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_REPLICATE),
                      .label = u->module->path};
    tsrk_scale args = {.n = u->flat.own_count, .x_type = TSR_F32, .y_type = TSR_F32};

    if (u->options.gradient_divisor == 0.0 || u->flat.own_count == 0) {
        return TSR_OK;
    }
    args.factor = (float)(1.0 / u->options.gradient_divisor);
    args.y = tsri_arg_inout(&call, u->grads.sums.buffer, own, bytes);
    args.x = tsri_arg_in(&call, u->grads.sums.buffer, own, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

static bool any_partial(const unit *u)
{
    for (int i = 0; i < u->param_count; i++) {
        if (u->params[i].partial_mask != 0 && tsri_unit_trains(&u->params[i])) {
            return true;
        }
    }
    return false;
}

/* n elements of sums from grad_offset on to their place on the wire, or back. */
static tsr_status cast_sums(const unit *u, const tsri_mem *wire, int64_t grad_offset, int64_t n,
                            bool back)
{
    const tsr_dtype type = u->reduce_dtype;
    const size_t size = tsr_dtype_size(type);
    const size_t sums_at = u->grads.sums.offset + (size_t)grad_offset * F32;
    const size_t wire_at = wire->offset + (size_t)grad_offset * size;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_REPLICATE),
                      .label = u->module->path};
    tsrk_scale args = {
        .n = n, .factor = 1.0F, .x_type = back ? type : TSR_F32, .y_type = back ? TSR_F32 : type};

    if (n == 0) {
        return TSR_OK;
    }
    if (back) {
        args.x = tsri_arg_in(&call, wire->buffer, wire_at, (size_t)n * size);
        args.y = tsri_arg_out(&call, u->grads.sums.buffer, sums_at, (size_t)n * F32);
    } else {
        args.x = tsri_arg_in(&call, u->grads.sums.buffer, sums_at, (size_t)n * F32);
        args.y = tsri_arg_out(&call, wire->buffer, wire_at, (size_t)n * size);
    }
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* Everything that is reduced once a step, where the sums lie in reduce dtype. */
static tsr_status reduce_wire(const unit *u, const tsri_mem *wire)
{
    const size_t own = wire->offset + (size_t)(u->flat.own_begin - u->flat.grad_begin) *
                                          tsr_dtype_size(u->reduce_dtype);
    const tsri_coll_item scattered = {.in = wire->buffer,
                                      .in_offset = wire->offset,
                                      .out = wire->buffer,
                                      .out_offset = own,
                                      .count = u->flat.own_count};
    const tsri_coll_item reduced = {.in = wire->buffer,
                                    .in_offset = own,
                                    .out = wire->buffer,
                                    .out_offset = own,
                                    .count = u->flat.own_count};

    TSR_TRY(reduce_partial(u, wire));
    if (u->levels.flat_reduce[1] != NULL) {
        TSR_TRY(flat_collective(u, u->levels.flat_reduce[1], TSRI_REDUCE_SCATTER, u->reduce_dtype,
                                &scattered, TSRI_STREAM_REPLICATE));
    }
    if (u->levels.replicate != NULL) {
        TSR_TRY(flat_collective(u, u->levels.replicate, TSRI_ALL_REDUCE, u->reduce_dtype, &reduced,
                                TSRI_STREAM_REPLICATE));
    }
    return TSR_OK;
}

static tsr_status reduce_cast(unit *u)
{
    if (u->grads.wire.buffer == NULL) {
        TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm),
                                   (size_t)u->flat.grad_count * tsr_dtype_size(u->reduce_dtype),
                                   TSRI_MEM_SLOT_GRAD, u->module->path,
                                   tsri_unit_stream(u, TSRI_STREAM_REPLICATE), &u->grads.wire));
    }
    TSR_TRY(cast_sums(u, &u->grads.wire, 0, u->flat.grad_count, false));
    TSR_TRY(reduce_wire(u, &u->grads.wire));
    TSR_TRY(cast_sums(u, &u->grads.wire, u->flat.own_begin - u->flat.grad_begin, u->flat.own_count,
                      true));
    return TSR_OK;
}

/* The part of the last micro-batch alone, on sums that are in place. */
static tsr_status reduce_sums(unit *u)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_REPLICATE);
    const size_t own =
        u->grads.sums.offset + (size_t)(u->flat.own_begin - u->flat.grad_begin) * F32;
    const uint64_t enqueued = stream->enqueued;

    TSR_TRY(tsri_stream_wait(stream, u->grads.reduced));
    if (u->reduce_dtype == TSR_F32) {
        TSR_TRY(reduce_wire(u, &u->grads.sums));
    } else if (u->levels.flat_reduce[1] != NULL || u->levels.replicate != NULL || any_partial(u)) {
        TSR_TRY(reduce_cast(u));
    }
    TSR_TRY(divide(u, own));
    /* An event stands for work: where none was enqueued here, the reduce stream's still holds. */
    if (stream->enqueued != enqueued) {
        tsri_unit_note_reduced(u, stream);
    }
    u->grads.state = SUMS_FINAL;
    return TSR_OK;
}

tsr_status tsri_unit_reduce_last(unit *u)
{
    TSR_TRY(tsri_unit_settle_sums(u));
    TSR_TRY(tsri_unit_open_sums(u, TSRI_STREAM_REPLICATE));
    TSR_TRY(reduce_sums(u));
    if (u->options.offload_grads) {
        TSR_TRY(tsri_unit_rest_sums(u));
    }
    return TSR_OK;
}

/* Without slot: the gradients are in sums already. */
static tsr_status reduce_in_place(unit *u, bool fills)
{
    TSR_TRY(tsri_unit_settle_sums(u));
    if (fills) {
        TSR_TRY(fill_gaps(u));
        u->grads.unfilled = false;
    }
    tsri_unit_note_reduced(u, tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
    return TSR_OK;
}

tsr_status tsri_unit_reduce(unit *u, bool last, bool forced)
{
    if (u->flat.train_count == 0) {
        return TSR_OK;
    }
    if (u->flat.has_grad_slot) {
        if (u->grads.slot.buffer == NULL || (!u->gradient_sync && !last && !forced)) {
            return TSR_OK; /* the slot goes on adding up */
        }
        TSR_TRY(tsri_unit_settle_sums(u));
        TSR_TRY(fill_gaps(u));
        TSR_TRY(tsri_unit_open_sums(u, TSRI_STREAM_REDUCE));
        TSR_TRY(reduce_slot(u, tsri_unit_has_sums(u)));
        u->grads.state = SUMS_TERMS;
    } else {
        TSR_TRY(reduce_in_place(u, last || forced));
    }
    if (last && u->all_reduce) {
        TSR_TRY(tsri_unit_reduce_last(u));
        return TSR_OK;
    }
    if (u->options.offload_grads) {
        TSR_TRY(tsri_unit_rest_sums(u));
    }
    return TSR_OK;
}
