/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Colouring the intervals of a step: offsets such that intervals alive together share no byte.
 *
 * The problem is NP-hard, its lower bound (the largest sum of live sizes) is usually reached. So a
 * few orders are tried with first fit at the lowest offset, the cheapest first, until one meets the
 * bound: by birth; by size, by lifetime, by both, largest first; then the interval that sticks out
 * at the top is placed first, for a number of rounds. The smallest result is the plan.
 *
 * Placing is quadratic in the number of intervals (by birth: in that of live ones). Above
 * MAX_QUADRATIC intervals the orders behind the first are not tried, but the second one is up to
 * MAX_WASTEFUL where the first wastes more than MUCH of the bound: about a second. The rounds share
 * CLIMB_WORK pairs, about a quarter of a second. A rough plan is the better of the first two.
 *
 * Intervals that are fixed come first, keep their offsets, and are alive all the time: the others
 * are placed around them. */
#include "backend/arena_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#define MAX_QUADRATIC 20000
#define MAX_WASTEFUL  60000
#define MUCH          0.02
#define DROP_EVERY    64
#define CLIMB_ROUNDS  24
#define CLIMB_WORK    40000000

typedef enum order_kind {
    BY_BIRTH = 0,
    BY_SIZE,
    BY_LIFETIME,
    BY_AREA,
    ORDER_COUNT
} order_kind;

typedef struct sort_key {
    double major, minor; /* larger first */
    int index;
} sort_key;

/* A placed interval, kept sorted by offset. */
typedef struct placed {
    size_t begin, end;
    int birth, death;
} placed;

typedef struct work {
    const tsri_interval *intervals;
    int count, fixed;
    sort_key *keys;
    int *order;
    placed *placed;
    size_t *offset; /* of the order being tried */
    size_t *best;   /* of the smallest so far */
    size_t best_bytes;
    bool found;
} work;

/* ---- orders ---- */

static int compare_keys(const void *a, const void *b)
{
    const sort_key *left = a;
    const sort_key *right = b;
    if (left->major != right->major) {
        return left->major > right->major ? -1 : 1;
    }
    if (left->minor != right->minor) {
        return left->minor > right->minor ? -1 : 1;
    }
    return (left->index > right->index) - (left->index < right->index);
}

static void make_order(work *w, order_kind kind)
{
    for (int i = 0; i < w->count; i++) {
        const tsri_interval *interval = &w->intervals[i];
        const double size = (double)interval->size;
        const double life = (double)(interval->death - interval->birth);
        sort_key *key = &w->keys[i];
        *key = (sort_key){0, 0, i};
        switch (kind) {
        case BY_SIZE:
            key->major = size;
            key->minor = life;
            break;
        case BY_LIFETIME:
            key->major = life;
            key->minor = size;
            break;
        case BY_AREA:
            key->major = size * life;
            key->minor = size;
            break;
        case BY_BIRTH:
        case ORDER_COUNT:
        default:
            break;
        }
    }
    qsort(w->keys, (size_t)w->count, sizeof(sort_key), compare_keys);
    for (int i = 0; i < w->count; i++) {
        w->order[i] = w->keys[i].index;
    }
}

/* ---- placing ---- */

/* In order of birth, an interval that is dead already concerns nobody who follows. */
static int drop_dead(placed *list, int count, int now)
{
    int kept = 0;
    for (int i = 0; i < count; i++) {
        if (list[i].death > now) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

static size_t lowest_fit(const placed *list, int count, const tsri_interval *interval)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        if (list[i].death <= interval->birth || list[i].birth >= interval->death) {
            continue;
        }
        if (list[i].begin >= at + interval->size) {
            break;
        }
        at = list[i].end > at ? list[i].end : at;
    }
    return at;
}

static void insert_placed(placed *list, int count, const placed *added)
{
    int low = 0;
    int high = count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (list[middle].begin < added->begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(list + low + 1, list + low, (size_t)(count - low) * sizeof(placed));
    list[low] = *added;
}

/* Returns how many are placed. */
static int place_fixed(work *w, size_t *bytes_out)
{
    int count = 0;
    *bytes_out = 0;
    for (int i = 0; i < w->fixed; i++) {
        const tsri_interval *interval = &w->intervals[i];
        const placed added = {interval->offset, interval->offset + interval->size, interval->birth,
                              interval->death};
        w->offset[i] = interval->offset;
        if (interval->size > 0) {
            insert_placed(w->placed, count++, &added);
            *bytes_out = added.end > *bytes_out ? added.end : *bytes_out;
        }
    }
    return count;
}

/* Fill offset in the current order; returns the index of the interval at the top, or -1. */
static int place_all(work *w, bool by_birth, size_t *bytes_out)
{
    int count = place_fixed(w, bytes_out);
    int top = -1;
    for (int i = 0; i < w->count; i++) {
        const int index = w->order[i];
        const tsri_interval *interval = &w->intervals[index];
        if (index < w->fixed) {
            continue;
        }
        w->offset[index] = 0;
        if (interval->size == 0) {
            continue;
        }
        if (by_birth && i % DROP_EVERY == 0) {
            count = drop_dead(w->placed, count, interval->birth);
        }
        const size_t at = lowest_fit(w->placed, count, interval);
        const placed added = {at, at + interval->size, interval->birth, interval->death};
        insert_placed(w->placed, count, &added);
        count++;
        w->offset[index] = at;
        if (added.end > *bytes_out) {
            *bytes_out = added.end;
            top = index;
        }
    }
    return top;
}

static void keep_if_smaller(work *w, size_t bytes)
{
    if (w->found && bytes >= w->best_bytes) {
        return;
    }
    memcpy(w->best, w->offset, (size_t)w->count * sizeof(size_t));
    w->best_bytes = bytes;
    w->found = true;
}

/* Place what stuck out at the top before everything else, and look again. */
static void climb(work *w, size_t bound)
{
    const int64_t affordable = CLIMB_WORK / ((int64_t)w->count * w->count + 1);
    const int rounds = (int)tsri_min64(CLIMB_ROUNDS, affordable);
    size_t bytes = 0;
    int top = rounds > 0 ? place_all(w, false, &bytes) : -1;
    for (int round = 0; round < rounds && top >= 0 && w->best_bytes > bound; round++) {
        int at = 0;
        while (w->order[at] != top) {
            at++;
        }
        if (at == 0) {
            return;
        }
        memmove(w->order + 1, w->order, (size_t)at * sizeof(int));
        w->order[0] = top;
        top = place_all(w, false, &bytes);
        keep_if_smaller(w, bytes);
    }
}

static bool is_worthwhile(const work *w, order_kind kind, size_t bound)
{
    if (kind == BY_BIRTH) {
        return true;
    }
    if (w->count > MAX_QUADRATIC) {
        return kind == BY_SIZE && w->count <= MAX_WASTEFUL &&
               (double)(w->best_bytes - bound) > MUCH * (double)bound;
    }
    return w->best_bytes > bound;
}

static void search(work *w, size_t bound, bool is_rough)
{
    for (int kind = BY_BIRTH; kind < ORDER_COUNT; kind++) {
        size_t bytes = 0;
        if (!is_worthwhile(w, (order_kind)kind, bound) || (is_rough && kind > BY_SIZE)) {
            return;
        }
        make_order(w, (order_kind)kind);
        (void)place_all(w, kind == BY_BIRTH, &bytes);
        keep_if_smaller(w, bytes);
    }
    const order_kind starts[] = {BY_SIZE, BY_LIFETIME, BY_AREA};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (w->best_bytes > bound) {
            make_order(w, starts[i]);
            climb(w, bound);
        }
    }
}

static tsr_status place_intervals(tsri_arena_plan *plan, bool is_rough)
{
    work w = {.intervals = plan->intervals, .count = plan->count, .fixed = plan->fixed};
    const size_t count = (size_t)plan->count;
    tsr_status status = TSR_OK;
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(sort_key), &w.keys), free_work);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(int), &w.order), free_work);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(placed), &w.placed), free_work);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(size_t), &w.offset), free_work);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(size_t), &w.best), free_work);
    search(&w, plan->live_peak_bytes, is_rough);
    for (int i = 0; i < plan->count; i++) {
        plan->intervals[i].offset = w.best[i];
    }
    plan->bytes = w.best_bytes;
free_work:
    tsri_free(&w.keys);
    tsri_free(&w.order);
    tsri_free(&w.placed);
    tsri_free(&w.offset);
    tsri_free(&w.best);
    return status;
}

/* ---- the lower bound ---- */

typedef struct death {
    int tick, interval;
} death;

static int compare_deaths(const void *a, const void *b)
{
    const death *left = a;
    const death *right = b;
    return (left->tick > right->tick) - (left->tick < right->tick);
}

static tsr_status find_peak(tsri_arena_plan *plan)
{
    death *deaths = NULL;
    size_t live[TSRI_MEM_COUNT] = {0};
    size_t sum = 0;
    int dead = 0;
    const char *label = NULL;
    TSR_TRY(tsri_alloc((size_t)plan->count, sizeof(death), &deaths));
    for (int i = 0; i < plan->count; i++) {
        deaths[i] = (death){plan->intervals[i].death, i};
    }
    qsort(deaths, (size_t)plan->count, sizeof(death), compare_deaths);
    for (int i = 0; i < plan->count; i++) {
        const tsri_interval *born = &plan->intervals[i];
        for (; dead < plan->count && deaths[dead].tick <= born->birth; dead++) {
            const tsri_interval *gone = &plan->intervals[deaths[dead].interval];
            live[gone->kind] -= gone->size;
            sum -= gone->size;
        }
        live[born->kind] += born->size;
        sum += born->size;
        if (live[born->kind] > plan->kind_peak[born->kind]) {
            plan->kind_peak[born->kind] = live[born->kind];
        }
        if (sum > plan->live_peak_bytes) {
            plan->live_peak_bytes = sum;
            memcpy(plan->kind_at_peak, live, sizeof(live));
            label = born->label;
            plan->peak_tick = born->birth;
        }
    }
    tsri_free(&deaths);
    TSR_TRY(tsri_strdup(label == NULL ? "" : label, &plan->peak_label));
    return TSR_OK;
}

/* ---- whose memory is taken over ---- */

/* Bytes [begin, end) of the buffer were last taken by interval owner. */
typedef struct owned {
    size_t begin, end;
    int owner;
} owned;

typedef struct owners {
    owned *ranges; /* disjoint, sorted */
    int count, capacity;
} owners;

typedef struct int_list {
    int *values;
    int count, capacity;
} int_list;

static tsr_status add_once(int_list *list, int first, int value)
{
    if (list == NULL) {
        return TSR_OK;
    }
    for (int i = first; i < list->count; i++) {
        if (list->values[i] == value) {
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&list->values, &list->capacity, list->count + 1, sizeof(int)));
    list->values[list->count++] = value;
    return TSR_OK;
}

/* The first range that ends behind byte at. */
static int first_behind(const owned *ranges, int count, size_t at)
{
    int low = 0;
    int high = count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (ranges[middle].end <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Interval owner takes [begin, end); the owners so far are added to before, if that is given. */
static tsr_status take(owners *map, const owned *taken, int_list *before)
{
    const int before_first = before == NULL ? 0 : before->count;
    if (taken->begin == taken->end) {
        return TSR_OK;
    }
    const owned *ranges = map->ranges;
    const int first = first_behind(ranges, map->count, taken->begin);
    int last = first;
    for (; ranges != NULL && last < map->count && ranges[last].begin < taken->end; last++) {
        TSR_TRY(add_once(before, before_first, ranges[last].owner));
    }
    owned parts[3];
    int part_count = 0;
    if (last > first && ranges[first].begin < taken->begin) {
        parts[part_count] = ranges[first];
        parts[part_count++].end = taken->begin;
    }
    parts[part_count++] = *taken;
    if (last > first && ranges[last - 1].end > taken->end) {
        parts[part_count] = ranges[last - 1];
        parts[part_count++].begin = taken->end;
    }
    const int grown = map->count + part_count - (last - first);
    TSR_TRY(tsri_grow(&map->ranges, &map->capacity, grown, sizeof(owned)));
    memmove(map->ranges + first + part_count, map->ranges + last,
            (size_t)(map->count - last) * sizeof(owned));
    memcpy(map->ranges + first, parts, (size_t)part_count * sizeof(owned));
    map->count = grown;
    return TSR_OK;
}

static tsr_status take_in_turn(tsri_arena_plan *plan, owners *map, int_list *before)
{
    for (int i = 0; i < plan->count; i++) {
        const tsri_interval *interval = &plan->intervals[i];
        const owned taken = {interval->offset, interval->offset + interval->size, i};
        plan->before_first[i] = before == NULL ? 0 : before->count;
        TSR_TRY(take(map, &taken, before));
    }
    return TSR_OK;
}

/* Two rounds of the step: the second finds the memory as the step before left it. */
static tsr_status find_before(tsri_arena_plan *plan)
{
    owners map = {0};
    int_list before = {0};
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc((size_t)plan->count + 1, sizeof(int), &plan->before_first));
    TSR_TRY_GOTO(status, take_in_turn(plan, &map, NULL), free_map);
    TSR_TRY_GOTO(status, take_in_turn(plan, &map, &before), free_map);
    plan->before_first[plan->count] = before.count;
    plan->before = before.values;
    before.values = NULL;
free_map:
    tsri_free(&map.ranges);
    tsri_free(&before.values);
    return status;
}

/* ---- the plan ---- */

static tsr_status create(const tsri_interval *intervals, int fixed, int count, bool is_rough,
                         tsri_arena_plan **out)
{
    tsri_arena_plan *plan = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc(1, sizeof(*plan), &plan));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count, sizeof(tsri_interval), &plan->intervals),
                 destroy_plan);
    memcpy(plan->intervals, intervals, (size_t)count * sizeof(tsri_interval));
    plan->count = count;
    plan->fixed = fixed;
    TSR_TRY_GOTO(status, find_peak(plan), destroy_plan);
    TSR_TRY_GOTO(status, place_intervals(plan, is_rough), destroy_plan);
    TSR_TRY_GOTO(status, find_before(plan), destroy_plan);
    *out = plan;
    return TSR_OK;
destroy_plan:
    tsri_arena_plan_destroy(&plan);
    return status;
}

tsr_status tsri_arena_plan_create(const tsri_interval *intervals, int count, tsri_arena_plan **out)
{
    TSR_TRY(create(intervals, 0, count, false, out));
    return TSR_OK;
}

tsr_status tsri_arena_plan_around(const tsri_interval *intervals, int fixed, int count,
                                  tsri_arena_plan **out)
{
    TSR_TRY(create(intervals, fixed, count, false, out));
    return TSR_OK;
}

tsr_status tsri_arena_plan_roughly(const tsri_interval *intervals, int count, tsri_arena_plan **out)
{
    TSR_TRY(create(intervals, 0, count, true, out));
    return TSR_OK;
}

tsr_status tsri_arena_plan_copy(const tsri_arena_plan *from, tsri_arena_plan **out)
{
    const size_t count = (size_t)from->count;
    const size_t before_count = (size_t)from->before_first[from->count];
    tsri_arena_plan *plan = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc(1, sizeof(*plan), &plan));
    *plan = *from;
    plan->intervals = NULL;
    plan->peak_label = NULL;
    plan->before_first = NULL;
    plan->before = NULL;
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(tsri_interval), &plan->intervals), destroy_plan);
    TSR_TRY_GOTO(status, tsri_strdup(from->peak_label, &plan->peak_label), destroy_plan);
    TSR_TRY_GOTO(status, tsri_alloc(count + 1, sizeof(int), &plan->before_first), destroy_plan);
    TSR_TRY_GOTO(status, tsri_alloc(before_count, sizeof(int), &plan->before), destroy_plan);
    memcpy(plan->intervals, from->intervals, count * sizeof(tsri_interval));
    memcpy(plan->before_first, from->before_first, (count + 1) * sizeof(int));
    if (before_count > 0) {
        memcpy(plan->before, from->before, before_count * sizeof(int));
    }
    for (int i = 0; i < plan->count; i++) {
        plan->intervals[i].label = NULL; /* belongs to from's program */
    }
    *out = plan;
    return TSR_OK;
destroy_plan:
    tsri_arena_plan_destroy(&plan);
    return status;
}

void tsri_arena_plan_destroy(tsri_arena_plan **plan)
{
    if (*plan == NULL) {
        return;
    }
    tsri_free(&(*plan)->intervals);
    tsri_free(&(*plan)->peak_label);
    tsri_free(&(*plan)->before_first);
    tsri_free(&(*plan)->before);
    tsri_free(plan);
}
