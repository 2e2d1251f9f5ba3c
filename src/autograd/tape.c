/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tape.c
 * The tape's life: steps, micro-batches, and the device scalars of a step. What is legal when:
 * step.c.
 *
 * Two things keep a value's memory: the scope in which it was made (scope.c), and the nodes whose
 * backward needs its bytes. Whichever goes last gives it back, so the peak is what backward needs
 * and nothing more. A step's token count and its loss stay on the device; the host reads them late.
 */
#include "autograd_priv.h"

#include <string.h>

static tsr_status open_scalars(tsr_tape *tape)
{
    tsr_layout layout;
    const tsrk_scale_state one = {.scale = 1.0F};

    TSR_TRY(tsri_tokens_open(tape));
    TSR_TRY(tsri_loss_open(tape));
    TSR_TRY(tsri_comm_buffer(tape->comm, tsri_scale_offset(3), TSRI_MEM_OTHER, "loss scale",
                             &tape->scale.states));
    TSR_TRY(tsri_write(tape->scale.states, 0, &one, sizeof(one),
                       tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    TSR_TRY(tsri_facts_open(tape));
    TSR_TRY(tsri_values_open(tape));
    TSR_TRY(tsr_layout_init(tsr_comm_mesh(tape->comm), NULL, 0, &layout));
    TSR_TRY(tsri_dtensor_bare(tape->comm, &layout, TSR_F32, "one", &tape->one));
    TSR_TRY(tsri_dtensor_attach(tape->one, tape->scale.states, 0));
    return TSR_OK;
}

tsr_status tsr_tape_create(tsr_comm *comm, tsr_tape **out)
{
    TSRI_WANT(comm, out);

    tsr_tape *tape = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*tape), &tape));
    tape->comm = tsr_comm_retain(comm);
    TSR_TRY_GOTO(status, tsri_frames_open(tape), destroy_tape);
    TSR_TRY_GOTO(status, open_scalars(tape), destroy_tape);
    *out = tape;
    return TSR_OK;
destroy_tape:
    tsr_tape_destroy(&tape);
    return status;
}

/* ---- who watches ---- */

void tsri_tape_watch(tsr_tape *tape, tsri_step_watch *watch)
{
    if (watch->tape == tape) {
        return;
    }
    tsri_tape_unwatch(watch);
    watch->tape = tape;
    watch->next = tape->watches;
    tape->watches = watch;
}

void tsri_tape_unwatch(tsri_step_watch *watch)
{
    tsri_step_watch **at = NULL;

    if (watch->tape == NULL) {
        return;
    }
    at = &watch->tape->watches;
    while (*at != watch) {
        at = &(*at)->next;
    }
    *at = watch->next;
    watch->next = NULL;
    watch->tape = NULL;
}

static tsr_status tell_watches(const tsr_tape *tape, bool failed)
{
    for (const tsri_step_watch *w = tape->watches; w != NULL; w = w->next) {
        const tsr_status status = w->end(w->context, failed);

        if (status != TSR_OK && !failed) {
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
    }
    return TSR_OK;
}

/* ---- what a step keeps alive ---- */

bool tsri_tape_keeps(const tsr_tape *tape, const void *object)
{
    for (int i = 0; i < tape->object_count; i++) {
        if (tape->objects[i].object == object) {
            return true;
        }
    }
    return false;
}

tsr_status tsri_tape_keep(tsr_tape *tape, void *object, void (*release)(void *object))
{
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status,
                 tsri_grow(&tape->objects, &tape->object_capacity, tape->object_count + 1,
                           sizeof(tape->objects[0])),
                 release_object);
    tape->objects[tape->object_count++] = (tsri_kept_object){object, release};
    return TSR_OK;
release_object:
    release(object);
    return status;
}

void tsri_tape_drop_objects(tsr_tape *tape)
{
    while (tape->object_count > 0) {
        const tsri_kept_object *last = &tape->objects[--tape->object_count];

        last->release(last->object);
    }
}

tsr_status tsri_tape_tell_played(const tsr_tape *tape)
{
    for (const tsri_step_watch *w = tape->watches; w != NULL; w = w->next) {
        if (w->played != NULL) {
            TSR_TRY(w->played(w->context, tape));
        }
    }
    return TSR_OK;
}

tsr_status tsri_tape_meet(tsr_tape *tape, unsigned mask)
{
    if ((mask & tsri_comm_batch_axes(tape->comm)) == 0) {
        return TSR_OK;
    }
    for (const tsri_step_watch *w = tape->watches; w != NULL; w = w->next) {
        if (w->meet != NULL) {
            TSR_TRY(w->meet(w->context, tape));
        }
    }
    return TSR_OK;
}

/* What the step's norms made of the loss scale counts from now on. */
static tsr_status take_next_scale(tsr_tape *tape)
{
    tsri_loss_scale *s = &tape->scale;

    if (s->measured) {
        TSR_TRY(tsri_dtensor_attach(tape->one, s->states, tsri_scale_offset(1 - s->now)));
        s->now = 1 - s->now;
        s->measured = false;
    }
    return TSR_OK;
}

/* What a failed step left behind. */
static void abandon_step(tsr_tape *tape)
{
    tape->scale.measured = false;
    tsri_frames_drop(tape);
    (void)tell_watches(tape, true);
    tsri_tape_drop_objects(tape);
    for (int64_t step = 0; tsri_arena_step(tsri_comm_arena(tape->comm), &step);) {
        tsri_arena_step_abort(tsri_comm_arena(tape->comm));
    }
    tsri_step_ended(tape);
}

void tsr_tape_destroy(tsr_tape **tape)
{
    TSRI_WANT_VOID(tape);

    tsr_tape *old = *tape;

    if (old == NULL) {
        return;
    }
    if (tsri_tape_in_step(old)) {
        abandon_step(old);
    }
    while (old->watches != NULL) {
        tsri_tape_unwatch(old->watches);
    }
    (void)tsri_stream_sync(tsri_comm_stream(old->comm, TSRI_STREAM_COMPUTE));
    tsri_offload_close(old);
    for (int i = 0; i < old->rope_count; i++) {
        tsri_buffer_release(&old->ropes[i].table);
    }
    tsr_dtensor_release(&old->one);
    tsri_buffer_release(&old->scale.states);
    tsri_buffer_release(&old->loss.sums);
    tsri_buffer_release(&old->count);
    tsri_buffer_release(&old->eval_count);
    tsri_buffer_release(&old->facts);
    tsri_buffer_release(&old->values);
    tsri_free(&old->checks);
    for (int i = 0; i < old->name_capacity; i++) {
        tsri_free(&old->names[i]);
    }
    tsri_free(&old->names);
    tsri_free(&old->objects);
    tsri_free(&old->labels);
    tsri_free(&old->ropes);
    tsri_frames_close(old);
    tsri_customs_free(&old->customs);
    tsr_comm_release(&old->comm);
    tsri_free(&old);
    *tape = NULL;
}

/* ---- steps ---- */

/* What a step's loss is divided by: the count of labels; NULL: normaliser. */
typedef struct step_basis {
    tsr_dtensor *const *labels;
    double normaliser;
    int micro_batch_count;
} step_basis;

static tsr_status begin_scalars(tsr_tape *tape, const step_basis *basis)
{
    TSR_TRY(tsri_loss_zero(tape));
    TSR_TRY(tsri_values_begin(tape));
    TSR_TRY(tsri_facts_begin(tape));
    if (basis->labels != NULL) {
        TSR_TRY(tsri_tokens_count(tape, basis->labels, basis->micro_batch_count));
    } else {
        TSR_TRY(tsri_normaliser_take(tape, basis->normaliser, basis->micro_batch_count));
    }
    return TSR_OK;
}

static tsr_status begin_step(tsr_tape *tape, int64_t step, const step_basis *basis)
{
    tsr_device *device = tsri_comm_device(tape->comm);
    tsr_status status = TSR_OK;

    if (device->recorder != NULL) {
        int number = 0;

        TSR_TRY(tsri_to_int(step, "step", &number));
        tsri_recorder_set_step(device, number);
    }
    TSR_TRY(tsri_arena_step_begin(tsri_comm_arena(tape->comm), "train", step));
    tsri_step_begun(tape, step, basis->micro_batch_count);
    TSR_TRY_GOTO(status, begin_scalars(tape, basis), abandon);
    return TSR_OK;
abandon:
    abandon_step(tape);
    return status;
}

/* What was asked for may begin, and what failed before is over. */
static tsr_status clear_way(tsr_tape *tape, int64_t step)
{
    TSR_TRY(tsri_step_check_begin(tape, step));
    if (tsri_step_has_failed(tape)) {
        abandon_step(tape);
    }
    return TSR_OK;
}

tsr_status tsr_step_begin(tsr_tape *tape, int64_t step, tsr_dtensor *const *labels,
                          int micro_batch_count)
{
    TSRI_WANT(tape);
    TSRI_WANT_EACH(labels, micro_batch_count);
    TSRI_WANT_COUNT(step);

    const step_basis basis = {.labels = labels, .micro_batch_count = micro_batch_count};

    TSR_TRY(clear_way(tape, step));
    TSR_TRY(tsri_tokens_check(tape, labels, micro_batch_count));
    TSR_TRY(begin_step(tape, step, &basis));
    return TSR_OK;
}

tsr_status tsr_step_begin_with(tsr_tape *tape, int64_t step, double normaliser,
                               int micro_batch_count)
{
    TSRI_WANT(tape);
    TSRI_WANT_COUNT(step);

    const step_basis basis = {.normaliser = normaliser, .micro_batch_count = micro_batch_count};

    TSR_TRY(clear_way(tape, step));
    TSR_TRY(tsri_normaliser_check(normaliser, micro_batch_count));
    TSR_TRY(begin_step(tape, step, &basis));
    return TSR_OK;
}

tsr_status tsr_tape_begin(tsr_tape *tape, int micro_batch)
{
    TSRI_WANT(tape);
    TSR_TRY(tsri_step_check_micro_batch(tape, micro_batch));
    TSR_TRY(tsri_frame_begin(tape, micro_batch));
    tsri_step_forward(tape);
    return TSR_OK;
}

void tsri_tape_pass_over(tsr_tape *tape)
{
    tape->frame->passed_over = true;
}

static tsr_status end_memory(tsr_tape *tape)
{
    tsri_frames_drop(tape);
    TSR_TRY(tell_watches(tape, false));
    tsri_tape_drop_objects(tape);
    TSR_TRY(tsri_arena_step_end(tsri_comm_arena(tape->comm)));
    TSR_TRY(take_next_scale(tape));
    return TSR_OK;
}

tsr_status tsr_step_end(tsr_tape *tape)
{
    TSRI_WANT(tape);

    tsr_status status = TSR_OK;

    TSR_TRY(tsri_step_check_end(tape));
    if (tsri_step_has_failed(tape)) {
        abandon_step(tape);
        return TSR_OK;
    }
    if (tape->check_count > 0) { /* a forward without backward, as in evaluation */
        TSR_TRY_GOTO(status, tsri_facts_compare(tape), abandon);
    }
    TSR_TRY_GOTO(status, end_memory(tape), abandon);
    tsri_step_ended(tape);
    return TSR_OK;
abandon:
    abandon_step(tape);
    return status;
}

tsr_status tsr_tape_ignore_outside(tsr_tape *tape, int64_t vocab)
{
    TSRI_WANT(tape);
    TSRI_WANT_COUNT(vocab);
    if (tsri_tape_in_step(tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "tsr_tape_ignore_outside within %s: end it first",
                         tsr_tape_in_eval(tape) ? "an evaluation" : "a step");
    }
    tape->outside = vocab;
    return TSR_OK;
}

/* ---- facts ---- */

const char *tsri_tape_path(const tsr_tape *tape)
{
    return tape->frame->depth > 0 ? tape->frame->scopes[tape->frame->depth - 1] : "";
}

tsr_comm *tsri_tape_comm(const tsr_tape *tape)
{
    return tape->comm;
}

bool tsri_tape_in_step(const tsr_tape *tape)
{
    return tsri_step_is_under_way(tape) || tsr_tape_in_eval(tape);
}

int64_t tsri_tape_step(const tsr_tape *tape)
{
    return tape->step;
}

int tsri_tape_micro_batch(const tsr_tape *tape)
{
    return tape->frame->micro_batch;
}

bool tsri_tape_in_backward(const tsr_tape *tape)
{
    return tape->state == TSRI_STEP_BACKWARD;
}

uint64_t tsri_tape_epoch(const tsr_tape *tape)
{
    return tape->frame->epoch;
}

tsr_buffer *tsri_tape_token_count(const tsr_tape *tape)
{
    return tsr_tape_in_eval(tape) ? tape->eval_count : tape->count;
}

tsri_loss_scale *tsri_tape_scale(tsr_tape *tape)
{
    return &tape->scale;
}

void tsri_tape_set_seed(tsr_tape *tape, uint64_t seed)
{
    tape->seed = seed;
}

const tsri_inserted *tsri_tape_inserted(const tsr_tape *tape, int *count_out)
{
    *count_out = tape->frame->inserted_count;
    return tape->frame->inserted;
}

bool tsri_tape_no_grad(const tsr_tape *tape)
{
    return tape->frame->no_grad;
}
