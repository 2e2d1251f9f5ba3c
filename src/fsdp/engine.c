/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The engine: what happens around each unit's forward and backward.
 *
 * The hooks of the outermost unit that runs, as a rule the root, bound a forward; the end of
 * tsr_backward ends a pass. Between a rank's own marks (schedule.c) lie those of units that it
 * passes over but others run, and it issues their collectives in their places: forward gathers, and
 * backward (by markers on the tape) gathers and reduces zeros. */
#include "fsdp_priv.h"

#include "base/base.h"

static bool is_root(const unit *u)
{
    return u->module->parent == NULL;
}

/* ---- passes and steps ---- */

/* What a pass that failed, or was never played backward, has gathered. An update may follow, which
 * writes what a gather under way reads. */
static tsr_status forget_gathered(unit *u, bool failed)
{
    tsri_arena *arena = tsri_comm_arena(u->comm);
    tsr_stream *compute = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);

    if (u->values.state == SLOT_GATHERING && !failed) {
        TSR_TRY(tsri_unit_await(u));
    }
    for (int i = 0; i < u->param_count; i++) {
        (void)tsri_dtensor_attach(u->params[i].param->value, NULL, 0);
    }
    if (u->values.state != SLOT_EMPTY && u->flat.has_slot) {
        tsri_arena_release(arena, &u->values.slot,
                           tsri_last_use(compute, u->values.gathered_seen, u->values.gathered));
    }
    u->values.state = SLOT_EMPTY;
    tsri_unit_drop_kept(u, u->values.kept_ready);
    return TSR_OK;
}

tsr_status tsri_engine_forget_forward(engine *e, bool failed)
{
    for (int i = 0; e->step.busy && i < e->unit_count; i++) {
        TSR_TRY(forget_gathered(e->units[i], failed));
    }
    e->step.busy = false;
    return TSR_OK;
}

static void forget_gradients(unit *u)
{
    if (u->grads.slot.buffer != NULL) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->grads.slot,
                           tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE)));
    }
    u->grads.unfilled = false;
}

/* A pass begins, or one goes on of which another frame's came between: backward of what is in
 * flight. Sums of earlier micro-batches stay: a forward without backward adds nothing to them. */
static tsr_status begin_pass(engine *e, const tsr_tape *tape)
{
    engine_step *step = &e->step;
    const int at = tsri_tape_frame(tape);
    const bool is_new = step->epochs[at] != tsri_tape_epoch(tape);

    TSR_TRY(tsri_engine_forget_forward(e, false));
    for (int i = 0; i < e->unit_count; i++) {
        if (is_new && at < TSRI_FRAMES_MAX) {
            e->units[i]->run.calls[at] = 0;
        }
        e->units[i]->run.inside = 0;
    }
    step->at = at;
    step->epochs[at] = tsri_tape_epoch(tape);
    step->has_root[at] = step->has_root[at] && !is_new;
    step->busy = true;
    e->order.outermost = NULL;
    e->order.back = e->order.expected.count;
    e->order.again = -1;
    for (int i = 0; !is_new && i < e->unit_count; i++) {
        if (e->units[i]->values.shared) { /* else its own backward gathers it */
            TSR_TRY(tsri_unit_unshard(e->units[i]));
            TSR_TRY(tsri_unit_await(e->units[i]));
        }
    }
    if (is_new && tsri_tape_micro_batch(tape) <= 0) {
        step->params_ready = tsri_event_record(tsri_comm_stream(e->comm, TSRI_STREAM_COMPUTE));
    }
    return TSR_OK;
}

bool tsri_unit_is_updated(const unit *u)
{
    for (int i = 0; i < u->param_count; i++) {
        if (u->params[i].param->updated) {
            return true;
        }
    }
    return false;
}

/* What stays for the next step is whole: of all micro-batches, reduced as far as each of them is,
 * and a sum of terms also where somebody has measured it in between. */
static tsr_status complete_kept(engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        u->grads.keep = u->grads.keep && !tsri_unit_is_updated(u);
        if (!u->grads.keep) {
            continue;
        }
        TSR_TRY(tsri_step_check_final(e->step.watch.tape,
                                      "tsr_step_end: gradients stay for the next step"));
        TSR_TRY(tsri_unit_reopen(u));
        if (tsri_unit_has_pending(u)) {
            TSR_TRY(tsri_unit_reduce(u, false, true));
        }
    }
    return TSR_OK;
}

/* The tape's step ends: gradients go, and so does what was gathered and not played backward. */
static tsr_status end_step(void *context, bool failed)
{
    engine *e = context;

    e->step.busy = e->step.busy || failed;
    TSR_TRY(tsri_engine_forget_forward(e, failed));
    if (!failed) {
        TSR_TRY(complete_kept(e));
    }
    tsri_engine_release_draining(e);
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        u->rest.stale =
            u->rest.stale || (u->flat.own_count < u->flat.train_count && tsri_unit_is_updated(u));
        forget_gradients(u);
        TSR_TRY(tsri_unit_end_sums(u, failed));
        for (int k = 0; k < u->param_count; k++) {
            u->params[k].param->updated = false;
        }
    }
    e->step.played = false;
    e->order.outermost = NULL;
    return TSR_OK;
}

/* An evaluation is over: nothing stays gathered. */
static tsr_status leave_pass(void *context, const tsr_tape *tape, bool failed)
{
    engine *e = context;

    if (e->step.epoch != tsri_tape_epoch(tape)) {
        return TSR_OK;
    }
    e->step.busy = true; /* also what was gathered behind the last forward */
    TSR_TRY(tsri_engine_forget_forward(e, failed));
    e->order.outermost = NULL;
    return TSR_OK;
}

static tsr_status end_backward(void *context, const tsr_tape *tape);
static tsr_status at_meeting(void *context, tsr_tape *tape);

tsr_status tsri_engine_touch(engine *e, tsr_tape *tape)
{
    if (e->step.overwritten) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "model \"%s\" runs after parameters were written: tsr_state_commit "
                         "comes first",
                         e->units[0]->module->path);
    }
    if (e->step.watch.tape != NULL && e->step.watch.tape != tape) {
        TSR_TRY(tsri_step_check_outside(e->step.watch.tape, "a model runs on another tape"));
    }
    if (e->step.watch.tape != tape || e->step.epoch != tsri_tape_epoch(tape)) {
        e->step.epoch = tsri_tape_epoch(tape);
        e->step.watch.end = end_step;
        e->step.watch.played = end_backward;
        e->step.watch.left = leave_pass;
        e->step.watch.meet = at_meeting;
        e->step.watch.context = e;
        tsri_tape_watch(tape, &e->step.watch);
        TSR_TRY(begin_pass(e, tape));
    }
    return TSR_OK;
}

static tsr_status touch(const unit *u, tsr_tape *tape)
{
    if (u->engine == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "unit \"%s\" has no memory yet: call tsr_module_materialize first",
                         u->module->path);
    }
    TSR_TRY(tsri_engine_touch(u->engine, tape));
    return TSR_OK;
}

static bool is_last(const engine *e, const tsr_tape *tape)
{
    return e->step.last_mark < 0 ? tsri_tape_is_last(tape) : e->step.last_mark != 0;
}

/* ---- around backward ---- */

static bool prefetches(const unit *u, tsr_prefetch when)
{
    const tsr_prefetch asked = u->options.backward_prefetch;

    return (asked == TSR_PREFETCH_DEFAULT ? TSR_PREFETCH_PRE : asked) == when;
}

static tsr_status enter_backward(unit *u)
{
    u->run.inside++;
    tsri_schedule_back(u->engine, u->module, MARK_LEAVE);
    TSR_TRY(tsri_unit_unshard(u));
    if (prefetches(u, TSR_PREFETCH_PRE)) {
        TSR_TRY(tsri_unit_prefetch_back(u));
    }
    TSR_TRY(tsri_unit_await(u));
    if (u->flat.train_count > 0) {
        TSR_TRY(tsri_unit_open_grads(u));
    }
    return TSR_OK;
}

static tsr_status before_backward(void *context, tsr_tape *tape)
{
    unit *u = context;

    TSR_TRY(touch(u, tape));
    TSR_TRY(enter_backward(u));
    return TSR_OK;
}

static void report_unreached(engine *e)
{
    const char *names[4] = {NULL};
    const int count = tsri_engine_unreached(e, names, 4);

    e->step.checked = true;
    if (count > 0) {
        tsri_log(TSRI_LOG_WARN,
                 "%d trained parameters got no gradient in the first step: %s%s%s%s%s%s%s%s", count,
                 names[0], count > 1 ? ", " : "", count > 1 ? names[1] : "", count > 2 ? ", " : "",
                 count > 2 ? names[2] : "", count > 3 ? ", " : "", count > 3 ? names[3] : "",
                 count > 4 ? ", ..." : "");
    }
}

static tsr_status finish_unit(unit *u, const tsr_tape *tape)
{
    const engine *e = u->engine;
    const bool last = is_last(e, tape);

    if (u->flat.train_count == 0) {
        return TSR_OK;
    }
    if (last && u->all_reduce && u->grads.state != SUMS_FINAL) {
        TSR_TRY(tsri_unit_finish(u));
    }
    u->grads.keep = u->grads.state != SUMS_FINAL &&
                    (tsri_unit_has_sums(u) || tsri_unit_has_pending(u)) &&
                    (!u->all_reduce || e->step.last_mark == 0);
    if (last || tsri_tape_is_last(tape)) {
        TSR_TRY(tsri_unit_await_sums(u));
    }
    return TSR_OK;
}

/* Backward is over: nothing stays gathered, and at the end of a step compute may read every
 * gradient. */
static tsr_status end_backward(void *context, const tsr_tape *tape)
{
    engine *e = context;
    const bool last = is_last(e, tape);

    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        const bool waits =
            u->flat.has_grad_slot
                ? u->grads.slot.buffer != NULL
                : u->values.shared && u->grads.sums.buffer != NULL && u->grads.state != SUMS_FINAL;

        if (waits && (u->values.shared || tsri_tape_is_last(tape))) {
            TSR_TRY(tsri_unit_reduce(u, last, tsri_tape_is_last(tape)));
        }
    }
    tsri_engine_release_draining(e);
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(tsri_unit_reshard(e->units[i]));
        tsri_unit_drop_kept(e->units[i], e->units[i]->values.kept_ready);
    }
    for (int i = 0; e->step.played && i < e->unit_count; i++) {
        TSR_TRY(finish_unit(e->units[i], tape));
    }
    tsri_engine_release_draining(e);
    if (e->step.last_mark == 1) {
        tsri_step_mark_last(e->step.watch.tape);
    }
    if (last && e->step.played && !e->step.checked) {
        report_unreached(e);
    }
    e->step.busy = false;
    return TSR_OK;
}

static tsr_status after_backward(void *context, tsr_tape *tape)
{
    unit *u = context;

    u->run.inside--;
    tsri_schedule_back(u->engine, u->module, MARK_ENTER);
    if (--u->run.calls[u->engine->step.at] > 0) {
        return TSR_OK; /* an earlier call of this unit still has its backward to come */
    }
    if (!u->values.shared) {
        TSR_TRY(tsri_unit_reduce(u, is_last(u->engine, tape), tsri_tape_is_last(tape)));
        TSR_TRY(tsri_unit_reshard(u));
    }
    if (prefetches(u, TSR_PREFETCH_POST)) {
        TSR_TRY(tsri_unit_prefetch_back(u));
    }
    return TSR_OK;
}

/* ---- around forward ---- */

static tsr_status begin_forward(engine *e, tsr_module *outermost, const tsr_tape *tape)
{
    e->step.forward++;
    e->order.outermost = outermost;
    e->step.has_root[e->step.at] = e->step.has_root[e->step.at] || outermost->parent == NULL;
    e->step.eval = tsri_tape_no_grad(tape) && !tsri_tape_in_part(tape);
    for (int i = 0; i < e->unit_count; i++) {
        e->units[i]->run.passed = false;
    }
    TSR_TRY(tsri_schedule_begin(e, outermost));
    return TSR_OK;
}

/* After a forward of u: let go of its parameters, or not. */
static tsr_status leave(unit *u)
{
    const engine *e = u->engine;
    const bool last = u->run.position == e->order.last_entered;
    const tsr_reshard reshard = u->options.reshard_after_forward;

    if (e->step.eval) {
        if (!u->values.shared) {
            TSR_TRY(tsri_unit_reshard(u));
        }
        return TSR_OK;
    }
    if (u->values.shared || reshard == TSR_RESHARD_NEVER ||
        (reshard == TSR_RESHARD_DEFAULT && last)) {
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_reshard_kept(u));
    return TSR_OK;
}

/* ---- passing over ---- */

/* Backward comes to a parameter that was used outside its unit: also ranks to which no gradient
 * comes have a sum to reduce. */
static tsr_status use_backward(void *context, tsr_tape *tape)
{
    unit *u = context;

    (void)tape;
    TSR_TRY(tsri_engine_begin_backward(u->engine));
    if (u->flat.train_count > 0 && u->grads.state != SUMS_FINAL) {
        TSR_TRY(tsri_unit_open_grads(u));
    }
    return TSR_OK;
}

tsr_status tsri_engine_use(unit *u, tsr_tape *tape)
{
    u->values.shared = true;
    TSR_TRY(tsri_unit_unshard(u));
    TSR_TRY(tsri_unit_await(u));
    TSR_TRY(tsri_tape_marker(tape, use_backward, u));
    return TSR_OK;
}

static tsr_status part_again(void *context, tsr_tape *tape)
{
    tsr_module *module = context;

    (void)tape;
    TSR_TRY(tsri_schedule_part_again(tsri_engine_of(module), module));
    return TSR_OK;
}

tsr_status tsri_engine_gather_again(unit *u, int at, int end)
{
    TSR_TRY(tsri_unit_unshard(u));
    TSR_TRY(tsri_unit_prefetch_again(u, at, end));
    TSR_TRY(tsri_unit_await(u));
    return TSR_OK;
}

/* For a forward of u that begins, or runs again from the engine's mark on. */
static tsr_status gather(unit *u, bool again)
{
    TSR_TRY(tsri_unit_unshard(u));
    if (again) {
        TSR_TRY(
            tsri_unit_prefetch_again(u, u->engine->order.again - 1, u->engine->order.again_end));
    } else {
        TSR_TRY(tsri_unit_prefetch(u));
    }
    TSR_TRY(tsri_unit_await(u));
    return TSR_OK;
}

/* Count a forward of u that backward comes to: at once, or when it runs a part again; that second
 * run is not another. */
static void count_call(unit *u, const tsr_tape *tape, bool again)
{
    if (!again && (!tsri_tape_no_grad(tape) || tsri_tape_in_part(tape))) {
        u->run.calls[u->engine->step.at]++;
    }
}

static tsr_status pass_enter(unit *u, tsr_tape *tape, bool again)
{
    if (!again) {
        u->run.ran_forward = u->engine->step.forward;
        u->run.passed = true;
        tsri_tape_pass_over(tape);
    }
    TSR_TRY(gather(u, again));
    TSR_TRY(tsri_tape_marker(tape, after_backward, u));
    count_call(u, tape, again);
    return TSR_OK;
}

tsr_status tsri_engine_pass(const mark *m, tsr_tape *tape, bool again)
{
    unit *u = tsri_unit_of(m->module);

    switch (m->kind) {
    case MARK_ENTER:
        return pass_enter(u, tape, again);
    case MARK_LEAVE:
        TSR_TRY(tsri_tape_marker(tape, before_backward, u));
        return again ? TSR_OK : leave(u);
    case MARK_PART_LEAVE:
        return tsri_tape_marker(tape, part_again, m->module);
    case MARK_USE:
        u->run.used_forward =
            u->engine->step.forward; /* what this rank uses later is not the first */
        return tsri_engine_use(u, tape);
    case MARK_MEET: /* none does it in this forward, or those who do find out */
    case MARK_PART_ENTER:
        break;
    }
    return TSR_OK;
}

/* ---- the hooks ---- */

/* This rank comes to u's beginning. */
static tsr_status arrive(unit *u, tsr_tape *tape, bool again)
{
    if (again) {
        TSR_TRY(tsri_schedule_again(u->engine, u->module, MARK_ENTER, tape));
    } else if (u->engine->order.outermost == NULL || is_root(u)) {
        TSR_TRY(begin_forward(u->engine, u->module, tape));
    } else {
        TSR_TRY(tsri_schedule_reach(u->engine, u->module, MARK_ENTER, tape));
    }
    if (!again) {
        u->run.ran_forward = u->engine->step.forward;
        u->run.passed = false;
    }
    return TSR_OK;
}

static tsr_status before_forward(void *context, tsr_tape *tape)
{
    unit *u = context;
    const bool again = tsri_tape_in_recompute(tape);

    TSR_TRY(touch(u, tape));
    TSR_TRY(arrive(u, tape, again));
    TSR_TRY(gather(u, again));
    u->run.inside++;
    count_call(u, tape, again);
    return TSR_OK;
}

static void count_passes(const engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        if (u->run.passed) {
            u->run.passed_count++;
            tsri_log(
                TSRI_LOG_INFO,
                "unit \"%s\" is passed over on this rank: its collectives are issued in place, "
                "its gradients are zero",
                u->module->path);
        }
    }
}

static tsr_status end_forward(engine *e, tsr_tape *tape)
{
    TSR_TRY(tsri_schedule_reach(e, e->order.outermost, MARK_LEAVE, tape));
    TSR_TRY(tsri_schedule_end(e));
    count_passes(e);
    e->order.outermost = NULL;
    if (e->step.eval) {
        for (int i = 0; i < e->unit_count; i++) {
            TSR_TRY(tsri_unit_reshard(e->units[i]));
        }
        e->step.busy = false;
    }
    return TSR_OK;
}

static tsr_status after_forward(void *context, tsr_tape *tape)
{
    unit *u = context;

    u->run.inside--;
    if (tsri_tape_in_recompute(tape)) {
        TSR_TRY(tsri_schedule_again(u->engine, u->module, MARK_LEAVE, tape));
        return TSR_OK; /* its backward comes at once */
    }
    if (u->engine->order.outermost == u->module) {
        TSR_TRY(end_forward(u->engine, tape));
    } else {
        TSR_TRY(tsri_schedule_reach(u->engine, u->module, MARK_LEAVE, tape));
    }
    if (!is_root(u)) {
        TSR_TRY(leave(u));
    }
    return TSR_OK;
}

static tsr_status at_meeting(void *context, tsr_tape *tape)
{
    engine *e = context;
    tsr_module *root = e->units[0]->module;

    if (tsri_tape_in_recompute(tape)) {
        TSR_TRY(tsri_schedule_again(e, root, MARK_MEET, tape));
    } else if (e->order.outermost != NULL && e->step.epoch == tsri_tape_epoch(tape)) {
        TSR_TRY(tsri_schedule_reach(e, root, MARK_MEET, tape));
    }
    return TSR_OK;
}

static tsr_status at_part(void *context, tsr_module *module, tsr_tape *tape, bool leaves)
{
    const unit *root = context;
    const mark_kind kind = leaves ? MARK_PART_LEAVE : MARK_PART_ENTER;
    engine *e = root->engine;

    if (e != NULL && tsri_tape_in_recompute(tape)) {
        TSR_TRY(tsri_schedule_again(e, module, kind, tape));
    } else if (e != NULL && e->order.outermost != NULL && e->step.epoch == tsri_tape_epoch(tape)) {
        TSR_TRY(tsri_schedule_reach(e, module, kind, tape));
    }
    return TSR_OK;
}

const tsri_module_hooks tsri_unit_hooks = {
    .before_forward = before_forward,
    .after_forward = after_forward,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .part = at_part,
    .release = tsri_unit_release,
};
