/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The engine: what happens around each unit's forward and backward.
 *
 * The expected order of units is that of their creation until a forward has shown another one,
 * which then is expected from the next forward on. The root's hooks frame a micro-batch. */
#include "fsdp_priv.h"

#include "base/base.h"

static tsr_status touch(unit *u, tsr_tape *tape)
{
    engine *e = u->engine;

    if (e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "unit \"%s\" has no memory yet: call tsr_module_materialize first",
                         u->module->path);
    }
    if (e->step != tsri_tape_step(tape)) {
        e->step = tsri_tape_step(tape);
        e->params_ready = tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
    }
    return TSR_OK;
}

static bool is_root(const unit *u)
{
    return u->module->parent == NULL;
}

static void begin_forward(engine *e)
{
    e->forward++;
    e->seen_count = 0;
    for (int i = 0; i < e->unit_count; i++) {
        e->units[i]->calls = 0;
    }
}

static tsr_status before_forward(void *context, tsr_tape *tape)
{
    unit *u = context;

    TSR_TRY(touch(u, tape));
    if (is_root(u)) {
        begin_forward(u->engine);
    }
    if (u->ran_forward != u->engine->forward) {
        u->ran_forward = u->engine->forward;
        u->engine->seen[u->engine->seen_count++] = u;
    }
    TSR_TRY(tsri_unit_unshard(u));
    if (!tsri_tape_in_recompute(tape)) {
        TSR_TRY(tsri_unit_prefetch(u, 1));
    }
    TSR_TRY(tsri_unit_await(u));
    if (!tsri_tape_no_grad(tape)) {
        u->calls++;
    }
    return TSR_OK;
}

/* Units that did not run follow those that did. */
static void learn_order(engine *e)
{
    int next = e->seen_count;

    for (int i = 0; i < e->unit_count; i++) {
        if (e->units[i]->ran_forward != e->forward) {
            e->seen[next++] = e->units[i];
        }
    }
    for (int i = 0; i < e->unit_count; i++) {
        e->units[i] = e->seen[i];
        e->units[i]->position = i;
    }
}

static tsr_status end_forward(engine *e, bool no_grad)
{
    learn_order(e);
    for (int i = 0; i < e->unit_count; i++) {
        if (no_grad || e->units[i]->ran_forward != e->forward) {
            TSR_TRY(tsri_unit_reshard(e->units[i]));
        }
    }
    return TSR_OK;
}

static tsr_status after_forward(void *context, tsr_tape *tape)
{
    unit *u = context;
    const bool no_grad = tsri_tape_no_grad(tape);
    const bool last = u->position == u->engine->unit_count - 1;
    const tsr_reshard reshard = u->options.reshard_after_forward;

    if (tsri_tape_in_recompute(tape)) {
        return TSR_OK; /* its backward comes at once */
    }
    if (is_root(u)) {
        TSR_TRY(end_forward(u->engine, no_grad));
        return TSR_OK;
    }
    if (no_grad || reshard == TSR_RESHARD_ALWAYS || (reshard == TSR_RESHARD_DEFAULT && !last)) {
        TSR_TRY(tsri_unit_reshard(u));
    }
    return TSR_OK;
}

static tsr_status before_backward(void *context, tsr_tape *tape)
{
    unit *u = context;
    const engine *e = u->engine;

    TSR_TRY(touch(u, tape));
    TSR_TRY(tsri_unit_unshard(u));
    if (is_root(u)) {
        if (e->units[e->unit_count - 1]->calls > 0) {
            TSR_TRY(tsri_unit_unshard(e->units[e->unit_count - 1]));
        }
    } else {
        TSR_TRY(tsri_unit_prefetch(u, -1));
    }
    TSR_TRY(tsri_unit_await(u));
    TSR_TRY(tsri_unit_open_grads(u, e->step));
    return TSR_OK;
}

/* The last reduction of a unit that did not run in the last micro-batch. */
static tsr_status finish_idle(unit *u)
{
    const int64_t step = u->engine->step;

    if (u->grad_step != step) {
        TSR_TRY(tsri_unit_zero_grads(u));
        u->reduced = tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
        tsri_log(TSRI_LOG_WARN, "unit \"%s\" got no gradient in step %lld: taken as zero",
                 u->module->path, (long long)step);
    }
    TSR_TRY(tsri_unit_reduce_last(u, step));
    return TSR_OK;
}

/* After the root: nothing stays gathered, and on the last micro-batch compute may read every
 * gradient. */
static tsr_status finish(engine *e, bool last)
{
    tsri_engine_release_draining(e);
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(tsri_unit_reshard(e->units[i]));
    }
    for (int i = 0; last && i < e->unit_count; i++) {
        unit *u = e->units[i];

        if (u->param_count > 0) {
            if (u->final_step != e->step) {
                TSR_TRY(finish_idle(u));
            }
            TSR_TRY(tsri_stream_wait(tsri_unit_stream(u, TSRI_STREAM_COMPUTE), u->reduced));
        }
    }
    return TSR_OK;
}

static tsr_status after_backward(void *context, tsr_tape *tape)
{
    unit *u = context;
    const bool last = tsri_tape_micro_batch(tape) + 1 == tsri_tape_micro_batch_count(tape);

    if (--u->calls > 0) {
        return TSR_OK; /* an earlier call of this unit still has its backward to come */
    }
    TSR_TRY(tsri_unit_reduce(u, u->engine->step, last));
    if (is_root(u)) {
        TSR_TRY(finish(u->engine, last));
    } else {
        TSR_TRY(tsri_unit_reshard(u));
    }
    return TSR_OK;
}

const tsri_module_hooks tsri_unit_hooks = {
    .before_forward = before_forward,
    .after_forward = after_forward,
    .before_backward = before_backward,
    .after_backward = after_backward,
    .release = tsri_unit_release,
};
