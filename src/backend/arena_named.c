/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Plans by name over one memory.
 *
 * Steps of one name ("train", "eval") follow one plan; all plans lie in one buffer, as large as the
 * largest of them. When a step ends, the newest uses of its memory are carried to the other plans,
 * whose first takers wait for them.
 *
 * A step may stand within another: an evaluation between two micro-batches. What the step around it
 * holds at that moment is fixed, and the inner plan is made around it; so there is one plan for
 * each moment of the outer plan. It waits for all uses of the memory before, and everything that
 * the step around takes behind it waits for its own. Within a step that has no plan, or has left
 * it, there is nothing to plan around: ranges are buffers of their own then. */
#include "backend/arena_priv.h"

#include "base/base.h"

#include <limits.h>
#include <string.h>

static void drop_plan(tsri_named_plan *named)
{
    tsri_free(&named->last_use);
    tsri_arena_plan_destroy(&named->plan);
    memset(named->carried, 0, sizeof(named->carried));
}

void tsri_arena_drop_plans(tsri_arena *arena)
{
    tsri_buffer_release(&arena->buffer);
    for (int i = 0; i < arena->named_count; i++) {
        drop_plan(arena->named[i]);
        tsri_free(&arena->named[i]);
    }
    tsri_free(&arena->named);
    arena->named_count = 0;
    arena->named_capacity = 0;
    arena->newest = NULL;
}

/* Plans within steps of named, which are another's from now on. */
static void drop_inner(tsri_arena *arena, const tsri_named_plan *named)
{
    int kept = 0;
    for (int i = 0; i < arena->named_count; i++) {
        if (arena->named[i]->around == named) {
            drop_plan(arena->named[i]);
            tsri_free(&arena->named[i]);
        } else {
            arena->named[kept++] = arena->named[i];
        }
    }
    arena->named_count = kept;
}

void tsri_arena_forget_uses(tsri_arena *arena)
{
    for (int i = 0; i < arena->named_count; i++) {
        tsri_named_plan *named = arena->named[i];
        if (named->plan != NULL) {
            memset(named->last_use, 0, (size_t)named->plan->count * sizeof(tsr_event));
        }
        memset(named->carried, 0, sizeof(named->carried));
    }
}

/* ---- a step begins ---- */

static tsr_status find(tsri_arena *arena, const char *name, const tsri_named_plan *around,
                       int moment, tsri_named_plan **out)
{
    for (int i = 0; i < arena->named_count; i++) {
        tsri_named_plan *named = arena->named[i];
        if (strcmp(named->name, name) == 0 && named->around == around && named->moment == moment) {
            *out = named;
            return TSR_OK;
        }
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    TSR_TRY(tsri_grow(&arena->named, &arena->named_capacity, arena->named_count + 1,
                      sizeof(arena->named[0])));
    TSR_TRY(tsri_alloc(1, sizeof(**out), out));
    **out = (tsri_named_plan){.name = name, .around = around, .moment = moment};
    arena->named[arena->named_count++] = *out;
    return TSR_OK;
}

/* What outer holds now comes first in r, where it lies. */
static tsr_status fix_held(const tsri_recording *outer, tsri_recording *r)
{
    for (int i = 0; i < outer->count; i++) {
        if (!outer->holdings[i].is_live || outer->holdings[i].own != TSRI_PLANNED) {
            continue;
        }
        TSR_TRY(tsri_grow(&r->step, &r->capacity, r->count + 1, sizeof(tsri_interval)));
        TSR_TRY(tsri_grow(&r->holdings, &r->holdings_capacity, r->count + 1, sizeof(tsri_holding)));
        r->step[r->count] = outer->step[i];
        r->step[r->count].offset = outer->named->plan->intervals[i].offset;
        r->step[r->count].birth = r->tick++;
        r->step[r->count].death = INT_MAX;
        r->holdings[r->count++] = (tsri_holding){.own = TSRI_PLANNED};
    }
    r->fixed = r->count;
    return TSR_OK;
}

/* Is the plan made around what is held now? */
static bool is_around(const tsri_arena_plan *plan, const tsri_recording *r)
{
    if (plan->fixed != r->fixed) {
        return false;
    }
    for (int i = 0; i < r->fixed; i++) {
        if (plan->intervals[i].offset != r->step[i].offset ||
            plan->intervals[i].bytes != r->step[i].bytes) {
            return false;
        }
    }
    return true;
}

static void carry(tsr_event to[TSRI_STREAM_COUNT], const tsr_event *from, int count)
{
    for (int i = 0; i < count; i++) {
        tsri_arena_keep_latest(to, from[i]);
    }
}

tsr_status tsri_arena_name(tsri_arena *arena, tsri_recording *r, const char *name)
{
    const tsri_recording *outer = arena->depth > 1 ? r - 1 : NULL;
    if (outer == NULL) {
        TSR_TRY(find(arena, name, NULL, 0, &r->named));
        return TSR_OK;
    }
    if (!tsri_arena_follows(arena, outer)) {
        return TSR_OK;
    }
    TSR_TRY(find(arena, name, outer->named, outer->count, &r->named));
    TSR_TRY(fix_held(outer, r));
    if (r->named->plan != NULL && !is_around(r->named->plan, r)) {
        drop_plan(r->named);
    }
    memset(r->named->carried, 0, sizeof(r->named->carried));
    carry(r->named->carried, outer->named->last_use, outer->named->plan->count);
    carry(r->named->carried, outer->named->carried, TSRI_STREAM_COUNT);
    carry(r->named->carried, outer->inside, TSRI_STREAM_COUNT);
    return TSR_OK;
}

/* ---- a step ends ---- */

void tsri_arena_pass_on(tsri_arena *arena, const tsri_recording *r)
{
    tsr_event used[TSRI_STREAM_COUNT] = {{0}};
    carry(used, r->named->last_use, r->count);
    if (r->named->around != NULL) {
        carry(arena->recordings[arena->depth - 2].inside, used, TSRI_STREAM_COUNT);
        return;
    }
    if (r->count == r->named->plan->count) {
        memset(r->named->carried, 0, sizeof(r->named->carried));
        carry(r->named->carried, r->inside, TSRI_STREAM_COUNT);
    }
    carry(used, r->inside, TSRI_STREAM_COUNT);
    for (int i = 0; i < arena->named_count; i++) {
        tsri_named_plan *other = arena->named[i];
        if (other->around == NULL && (other != r->named || r->count < r->named->plan->count)) {
            carry(other->carried, used, TSRI_STREAM_COUNT);
        }
    }
}

/* Take ownership of plan, also on failure; streams are idle. */
static tsr_status set_plan(tsri_arena *arena, tsri_named_plan *named, tsri_arena_plan *plan)
{
    tsr_event *last_use = NULL;
    tsr_status status = TSR_OK;
    drop_plan(named);
    drop_inner(arena, named);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)plan->count, sizeof(tsr_event), &last_use),
                 destroy_plan);
    named->plan = plan;
    named->last_use = last_use;
    return TSR_OK;
destroy_plan:
    tsri_arena_plan_destroy(&plan);
    return status;
}

tsr_status tsri_arena_plan_again(tsri_arena *arena, tsri_recording *r)
{
    tsri_arena_plan *plan = NULL;
    if (r->count == r->fixed) {
        return TSR_OK;
    }
    if (r->fixed > 0) {
        TSR_TRY(tsri_arena_plan_around(r->step, r->fixed, r->count, &plan));
    } else if (arena->is_rough) {
        TSR_TRY(tsri_arena_plan_roughly(r->step, r->count, &plan));
    } else {
        TSR_TRY(tsri_arena_plans_get(arena->shared, r->step, r->count, &plan));
    }
    TSR_TRY(set_plan(arena, r->named, plan));
    arena->plans_made++;
    return TSR_OK;
}

tsr_status tsri_arena_install(tsri_arena *arena, const char *name, tsri_arena_plan *plan)
{
    tsri_named_plan *named = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY_GOTO(status, find(arena, name, NULL, 0, &named), destroy_plan);
    TSR_TRY(set_plan(arena, named, plan));
    arena->newest = named;
    TSR_TRY(tsri_arena_fit(arena));
    return TSR_OK;
destroy_plan:
    tsri_arena_plan_destroy(&plan);
    return status;
}

tsr_status tsri_arena_fit(tsri_arena *arena)
{
    bool is_needed = false;
    size_t bytes = 0;
    tsr_status status = TSR_OK;
    for (int i = 0; i < arena->named_count; i++) {
        const tsri_arena_plan *plan = arena->named[i]->plan;
        is_needed = is_needed || plan != NULL;
        bytes = plan != NULL && plan->bytes > bytes ? plan->bytes : bytes;
    }
    if (arena->buffer != NULL ? arena->buffer->bytes == bytes : !is_needed) {
        return TSR_OK;
    }
    TSR_TRY_GOTO(status, tsri_arena_sync(arena), drop);
    tsri_arena_forget_uses(arena);
    tsri_buffer_release(&arena->buffer);
    if (is_needed) {
        TSR_TRY_GOTO(status,
                     tsri_buffer_alloc(arena->device, bytes, TSRI_MEM_ACTIVATION, "step arena",
                                       &arena->buffer),
                     drop);
    }
    return TSR_OK;
drop:
    tsri_arena_drop_plans(arena);
    return status;
}
