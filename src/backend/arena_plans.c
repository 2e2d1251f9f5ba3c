/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Plans of one program's ranks: those whose steps have the same intervals share one. */
#include "backend/arena_priv.h"

#include "base/base.h"

struct tsri_arena_plans {
    tsri_arena_plan **plans;
    int count, capacity;
};

tsr_status tsri_arena_plans_create(tsri_arena_plans **out)
{
    TSR_TRY(tsri_alloc(1, sizeof(**out), out));
    return TSR_OK;
}

void tsri_arena_plans_destroy(tsri_arena_plans **pointer)
{
    tsri_arena_plans *plans = *pointer;
    *pointer = NULL;
    if (plans == NULL) {
        return;
    }
    for (int i = 0; i < plans->count; i++) {
        tsri_arena_plan_destroy(&plans->plans[i]);
    }
    tsri_free(&plans->plans);
    tsri_free(&plans);
}

/* All that a plan is made from. */
static bool is_of(const tsri_arena_plan *plan, const tsri_interval *intervals, int count)
{
    if (plan->count != count) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        const tsri_interval *a = &plan->intervals[i];
        const tsri_interval *b = &intervals[i];
        if (a->bytes != b->bytes || a->kind != b->kind || a->stream != b->stream ||
            a->birth != b->birth || a->death != b->death) {
            return false;
        }
    }
    return true;
}

static tsr_status enter(tsri_arena_plans *plans, const tsri_arena_plan *plan)
{
    TSR_TRY(
        tsri_grow(&plans->plans, &plans->capacity, plans->count + 1, sizeof(tsri_arena_plan *)));
    TSR_TRY(tsri_arena_plan_copy(plan, &plans->plans[plans->count]));
    plans->count++;
    return TSR_OK;
}

tsr_status tsri_arena_plans_get(tsri_arena_plans *plans, const tsri_interval *intervals, int count,
                                tsri_arena_plan **out)
{
    tsri_arena_plan *plan = NULL;
    tsr_status status = TSR_OK;
    for (int i = 0; plans != NULL && i < plans->count; i++) {
        if (is_of(plans->plans[i], intervals, count)) {
            TSR_TRY(tsri_arena_plan_copy(plans->plans[i], out));
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_arena_plan_create(intervals, count, &plan));
    if (plans != NULL) {
        TSR_TRY_GOTO(status, enter(plans, plan), destroy_plan);
    }
    *out = plan;
    return TSR_OK;
destroy_plan:
    tsri_arena_plan_destroy(&plan);
    return status;
}
