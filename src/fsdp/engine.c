/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The engine: what happens around each unit's forward and backward.
 *
 * The expected order of units is that of their creation until a forward has shown another one,
 * which then is expected from the next forward on. The root's hooks frame a pass.
 *
 * A rank that runs the root but comes to a unit later in the order than the next one has passed
 * over those between. Other ranks may be running them, so it issues their collectives in their
 * places: forward gathers, and backward (by markers on the tape) gathers and reduces zeros. */
#include "fsdp_priv.h"

#include "base/base.h"

static bool is_root(const unit *u)
{
    return u->module->parent == NULL;
}

/* ---- passes and steps ---- */

/* What a pass that failed, or was never played backward, left in u. */
static void forget_pass(unit *u)
{
    tsri_arena *arena = tsri_comm_arena(u->comm);
    tsr_stream *compute = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);

    for (int i = 0; i < u->param_count; i++) {
        (void)tsri_dtensor_attach(u->params[i].param->value, NULL, 0);
    }
    if (u->state != SLOT_EMPTY && u->has_slot) {
        tsri_arena_release(arena, &u->slot, tsri_last_use(compute, u->gathered_seen, u->gathered));
    }
    u->state = SLOT_EMPTY;
    if (u->grad_slot_held) {
        tsri_arena_release(arena, &u->grad_slot, tsri_event_record(compute));
        u->grad_slot_held = false;
    }
    tsri_unit_drop_kept(u, u->kept_ready);
}

static void begin_pass(engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        if (e->busy) {
            forget_pass(u);
        }
        u->calls = 0;
        u->inside = 0;
        u->trailing = 0;
    }
    e->root_running = false;
    e->busy = true;
}

/* The tape's step ends: gradients go, and with a failed step all that was taken in it. */
static tsr_status end_step(void *context, bool failed)
{
    engine *e = context;

    if (failed) {
        tsri_engine_release_draining(e);
        e->busy = false;
    }
    for (int i = 0; i < e->unit_count; i++) {
        if (failed) {
            forget_pass(e->units[i]);
        }
        TSR_TRY(tsri_unit_end_sums(e->units[i], failed));
    }
    return TSR_OK;
}

static tsr_status touch(unit *u, tsr_tape *tape)
{
    engine *e = u->engine;

    if (e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "unit \"%s\" has no memory yet: call tsr_module_materialize first",
                         u->module->path);
    }
    if (e->epoch != tsri_tape_epoch(tape)) {
        e->epoch = tsri_tape_epoch(tape);
        e->watch.end = end_step;
        e->watch.context = e;
        tsri_tape_watch(tape, &e->watch);
        begin_pass(e);
        if (tsri_tape_micro_batch(tape) == 0) {
            e->params_ready = tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
        }
    }
    return TSR_OK;
}

static bool is_tape_last(const tsr_tape *tape)
{
    return tsri_tape_micro_batch(tape) + 1 == tsri_tape_micro_batch_count(tape);
}

static bool is_last(const engine *e, const tsr_tape *tape)
{
    return e->last_mark < 0 ? is_tape_last(tape) : e->last_mark != 0;
}

/* ---- around backward ---- */

static bool prefetches(const unit *u, tsr_prefetch when)
{
    const tsr_prefetch asked = u->options.backward_prefetch;

    return (asked == TSR_PREFETCH_DEFAULT ? TSR_PREFETCH_PRE : asked) == when;
}

/* The root enters backward first: the unit that ran last comes next. */
static tsr_status prefetch_last(const unit *root)
{
    unit *last = root->engine->units[root->engine->unit_count - 1];

    if (last->ran_forward == root->engine->forward) {
        TSR_TRY(tsri_unit_unshard(last));
    }
    return TSR_OK;
}

static tsr_status after_backward(void *context, tsr_tape *tape);

static tsr_status enter_backward(unit *u)
{
    u->inside++;
    TSR_TRY(tsri_unit_unshard(u));
    if (prefetches(u, TSR_PREFETCH_PRE)) {
        if (is_root(u) && u->prefetch[1].units == NULL) {
            TSR_TRY(prefetch_last(u));
        } else {
            TSR_TRY(tsri_unit_prefetch(u, -1));
        }
    }
    TSR_TRY(tsri_unit_await(u));
    if (u->train_count > 0) {
        TSR_TRY(tsri_unit_open_grads(u));
    }
    return TSR_OK;
}

/* The units after the last one that ran. */
static tsr_status play_trailing(const engine *e, tsr_tape *tape)
{
    for (int i = e->unit_count - 1; i > 0; i--) {
        unit *u = e->units[i];

        if (u->trailing > 0) {
            u->trailing--;
            TSR_TRY(enter_backward(u));
            TSR_TRY(after_backward(u, tape));
        }
    }
    return TSR_OK;
}

static tsr_status before_backward(void *context, tsr_tape *tape)
{
    unit *u = context;

    TSR_TRY(touch(u, tape));
    TSR_TRY(enter_backward(u));
    if (is_root(u)) {
        TSR_TRY(play_trailing(u->engine, tape));
    }
    return TSR_OK;
}

/* The last reduction of a unit that has not made it in its own backward. */
static tsr_status finish_unit(unit *u)
{
    if (!u->open) {
        TSR_TRY(tsri_unit_zero_grads(u));
        tsri_log(TSRI_LOG_WARN, "unit \"%s\" got no gradient in this step: taken as zero",
                 u->module->path);
    }
    TSR_TRY(tsri_unit_reduce_last(u));
    return TSR_OK;
}

static void report_unreached(engine *e)
{
    const char *names[4] = {NULL};
    const int count = tsri_engine_unreached(e, names, 4);

    e->checked = true;
    if (count > 0) {
        tsri_log(TSRI_LOG_WARN,
                 "%d trained parameters got no gradient in the first step: %s%s%s%s%s%s%s%s", count,
                 names[0], count > 1 ? ", " : "", count > 1 ? names[1] : "", count > 2 ? ", " : "",
                 count > 2 ? names[2] : "", count > 3 ? ", " : "", count > 3 ? names[3] : "",
                 count > 4 ? ", ..." : "");
    }
}

/* After the root: nothing stays gathered, and at the end of a step compute may read every gradient.
 */
static tsr_status finish(engine *e, const tsr_tape *tape)
{
    const bool last = is_last(e, tape);

    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        const bool waits =
            u->has_grad_slot ? u->grad_slot_held : u->shared && u->sums_held && !u->done;

        if (waits && !is_root(u) && (u->shared || is_tape_last(tape))) {
            TSR_TRY(tsri_unit_reduce(u, last, is_tape_last(tape)));
        }
    }
    tsri_engine_release_draining(e);
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(tsri_unit_reshard(e->units[i]));
        tsri_unit_drop_kept(e->units[i], e->units[i]->kept_ready);
    }
    for (int i = 0; (last || is_tape_last(tape)) && i < e->unit_count; i++) {
        unit *u = e->units[i];

        if (u->train_count == 0) {
            continue;
        }
        if (last && u->all_reduce && !u->done) {
            TSR_TRY(finish_unit(u));
        }
        u->keep = is_tape_last(tape) && u->open && !u->done;
        u->stale = u->own_count < u->train_count;
        TSR_TRY(tsri_unit_await_sums(u));
    }
    if (last && !e->checked) {
        report_unreached(e);
    }
    e->busy = false;
    return TSR_OK;
}

static tsr_status after_backward(void *context, tsr_tape *tape)
{
    unit *u = context;
    engine *e = u->engine;

    u->inside--;
    if (--u->calls > 0) {
        return TSR_OK; /* an earlier call of this unit still has its backward to come */
    }
    if (!u->shared || is_root(u)) {
        TSR_TRY(tsri_unit_reduce(u, is_last(e, tape), is_tape_last(tape)));
    }
    if (is_root(u)) {
        TSR_TRY(finish(e, tape));
        return TSR_OK;
    }
    if (!u->shared) {
        TSR_TRY(tsri_unit_reshard(u));
    }
    if (prefetches(u, TSR_PREFETCH_POST)) {
        TSR_TRY(tsri_unit_prefetch(u, -1));
    }
    return TSR_OK;
}

/* ---- around forward ---- */

static void begin_forward(engine *e, const tsr_tape *tape)
{
    e->forward++;
    e->seen_count = 0;
    e->cursor = 0;
    e->root_running = true;
    e->eval = tsri_tape_no_grad(tape);
    for (int i = 0; i < e->unit_count; i++) {
        e->units[i]->passed = false;
        e->units[i]->before = NULL;
    }
}

/* After a forward of u: let go of its parameters, or not. */
static tsr_status leave(unit *u)
{
    const engine *e = u->engine;
    const bool last = u->position == e->unit_count - 1;
    const tsr_reshard reshard = u->options.reshard_after_forward;

    if (e->eval) {
        if (!u->shared) {
            TSR_TRY(tsri_unit_reshard(u));
        }
        return TSR_OK;
    }
    if (u->shared || reshard == TSR_RESHARD_NEVER || (reshard == TSR_RESHARD_DEFAULT && last)) {
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_reshard_kept(u));
    return TSR_OK;
}

/* By what backward comes to a unit that forward passed over: marks on the tape, or where no unit
 * came after it a number, since the root has left its own mark by then. */
static tsr_status mark_passed(unit *u, tsr_tape *tape)
{
    if (!tsri_tape_no_grad(tape) && u->before == NULL) {
        u->trailing++;
        u->calls++;
        u->passed_marked = true;
    } else if (!tsri_tape_no_grad(tape)) {
        TSR_TRY(tsri_tape_marker(tape, after_backward, u));
        TSR_TRY(tsri_tape_marker(tape, before_backward, u));
        u->calls++;
        u->passed_marked = true;
    }
    return TSR_OK;
}

/* What other ranks may be doing in u's forward, without the forward. */
static tsr_status pass_over(unit *u, const unit *before, tsr_tape *tape)
{
    u->ran_forward = u->engine->forward;
    u->passed = true;
    u->passed_marked = false;
    u->before = before;
    TSR_TRY(tsri_unit_unshard(u));
    TSR_TRY(tsri_unit_prefetch(u, 1));
    TSR_TRY(tsri_unit_await(u));
    TSR_TRY(mark_passed(u, tape));
    TSR_TRY(leave(u));
    return TSR_OK;
}

/* Those between the last unit run and the one at position, which is before's (NULL: the end). */
static tsr_status pass_over_until(engine *e, int position, const unit *before, tsr_tape *tape)
{
    for (int i = e->cursor + 1; i < position; i++) {
        if (e->units[i]->ran_forward != e->forward) {
            TSR_TRY(pass_over(e->units[i], before, tape));
        }
    }
    if (position > e->cursor) {
        e->cursor = position;
    }
    return TSR_OK;
}

static tsr_status note_forward(unit *u, tsr_tape *tape)
{
    engine *e = u->engine;

    if (is_root(u)) {
        begin_forward(e, tape);
    } else if (e->root_running) {
        TSR_TRY(pass_over_until(e, u->position, u, tape));
    }
    if (u->ran_forward != e->forward || u->passed) {
        u->ran_forward = e->forward;
        u->passed = false;
        e->seen[e->seen_count++] = u;
    }
    return TSR_OK;
}

/* Backward runs the forward again: what the first run passed over here is marked now. */
static tsr_status mark_again(const unit *u, tsr_tape *tape)
{
    for (int i = 0; i < u->engine->unit_count; i++) {
        unit *other = u->engine->units[i];

        if (other->before == u && !other->passed_marked) {
            TSR_TRY(mark_passed(other, tape));
        }
    }
    return TSR_OK;
}

static tsr_status before_forward(void *context, tsr_tape *tape)
{
    unit *u = context;
    const bool again = tsri_tape_in_recompute(tape);

    TSR_TRY(touch(u, tape));
    if (again) {
        TSR_TRY(mark_again(u, tape));
    } else {
        TSR_TRY(note_forward(u, tape));
    }
    TSR_TRY(tsri_unit_unshard(u));
    if (!again) {
        TSR_TRY(tsri_unit_prefetch(u, 1));
    } else if (prefetches(u, TSR_PREFETCH_PRE)) {
        TSR_TRY(tsri_unit_prefetch(u, -1));
    }
    TSR_TRY(tsri_unit_await(u));
    u->inside++;
    if (!tsri_tape_no_grad(tape)) {
        u->calls++;
    }
    return TSR_OK;
}

/* What this rank passed over keeps its place between its neighbours. */
static void learn_order(engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];
        int at = 0;

        if (u->passed) {
            while (at < e->seen_count && e->seen[at] != u->before) {
                at++;
            }
            for (int k = e->seen_count; k > at; k--) {
                e->seen[k] = e->seen[k - 1];
            }
            e->seen[at] = u;
            e->seen_count++;
            u->passed_count++;
            tsri_log(
                TSRI_LOG_INFO,
                "unit \"%s\" is passed over on this rank: its collectives are issued in place, "
                "its gradients are zero",
                u->module->path);
        }
    }
    for (int i = 0; i < e->unit_count; i++) {
        e->units[i] = e->seen[i];
        e->units[i]->position = i;
    }
}

static tsr_status end_forward(engine *e, tsr_tape *tape)
{
    TSR_TRY(pass_over_until(e, e->unit_count, NULL, tape));
    learn_order(e);
    e->root_running = false;
    if (e->eval) {
        for (int i = 0; i < e->unit_count; i++) {
            TSR_TRY(tsri_unit_reshard(e->units[i]));
        }
        e->busy = false;
    }
    return TSR_OK;
}

static tsr_status after_forward(void *context, tsr_tape *tape)
{
    unit *u = context;

    u->inside--;
    if (tsri_tape_in_recompute(tape)) {
        return TSR_OK; /* its backward comes at once */
    }
    if (is_root(u)) {
        TSR_TRY(end_forward(u->engine, tape));
        return TSR_OK;
    }
    TSR_TRY(leave(u));
    return TSR_OK;
}

const tsri_module_hooks tsri_unit_hooks = {
    .before_forward = before_forward,
    .after_forward = after_forward,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .release = tsri_unit_release,
};
