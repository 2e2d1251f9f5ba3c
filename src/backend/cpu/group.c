/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file group.c
 * Groups: opening them alike on all ranks, what a call says of itself, and how a group breaks.
 *
 * A group's cell has the same number on every rank, because all ranks open the same families in
 * the same order; opening checks it. A cell is cleared between two exchanges over the world: after
 * the one nobody uses it for an older group, after the other nobody finds it uncleared.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"

#include <string.h>

/* ---- open and close ---- */

typedef struct opening {
    int32_t cell, stream_kind;
    uint64_t name, members;
} opening;

static int free_cell(const tsri_cpu_device *device)
{
    for (int i = 0; i < TSRI_CPU_CELLS; i++) {
        if ((device->cells_used[i / 64] >> (i % 64) & 1U) == 0) {
            return i;
        }
    }
    return -1;
}

static void mark_cell(tsri_cpu_device *device, int cell, bool used)
{
    uint64_t bit = (uint64_t)1 << (cell % 64);

    if (used) {
        device->cells_used[cell / 64] |= bit;
    } else {
        device->cells_used[cell / 64] &= ~bit;
    }
}

static void free_group(tsri_cpu_group *group)
{
    tsri_free(&group->name);
    tsri_free(&group->ranks);
    tsri_free(&group->peer);
    tsri_free(&group->sources);
    tsri_free(&group);
}

static tsr_status make_group(tsri_cpu_device *device, const int *ranks, int size, int index,
                             const char *name, tsri_cpu_group **out)
{
    tsri_cpu_group *group = NULL;
    tsr_status status = TSR_OK;
    size_t count = (size_t)size;

    TSR_TRY(tsri_alloc(1, sizeof *group, &group));
    TSR_TRY_GOTO(status, tsri_strdup(name, &group->name), fail);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof *group->ranks, &group->ranks), fail);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(tsri_cpu_peer *), &group->peer), fail);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(void *), &group->sources), fail);
    group->shared = device->shared;
    for (int m = 0; m < size; m++) {
        if (ranks[m] < 0 || ranks[m] >= device->world) {
            status = TSR_RAISE(TSR_ERR_INVALID, "member %d of \"%s\" is rank %d, the world has %d",
                               m, name, ranks[m], device->world);
            goto fail;
        }
        group->ranks[m] = ranks[m];
        group->peer[m] = &device->peer[ranks[m]];
        group->shared = group->shared && group->peer[m]->node == device->peer[device->rank].node;
    }
    group->shared = group->shared || size == 1;
    group->cell = free_cell(device);
    if (group->cell < 0) {
        status =
            TSR_RAISE(TSR_ERR_UNSUPPORTED, "group \"%s\": %d groups are open, which is the most",
                      name, TSRI_CPU_CELLS);
        goto fail;
    }
    group->head = (tsr_group){.device = &device->head,
                              .name = group->name,
                              .size = size,
                              .index = index,
                              .world_ranks = group->ranks};
    *out = group;
    return TSR_OK;

fail:
    free_group(group);
    return status;
}

static tsr_status compare_openings(const tsri_cpu_device *device, const opening *mine,
                                   const opening *all, const int *ranks, int size)
{
    for (int r = 0; r < device->world; r++) {
        if (all[r].cell != mine->cell || all[r].name != mine->name ||
            all[r].stream_kind != mine->stream_kind) {
            return TSR_RAISE(TSR_ERR_DISAGREE,
                             "ranks %d and %d open different groups: number %d on stream %d and "
                             "number %d on stream %d%s",
                             device->rank, r, mine->cell, mine->stream_kind, all[r].cell,
                             all[r].stream_kind, all[r].name == mine->name ? "" : ", other axes");
        }
    }
    for (int m = 0; m < size; m++) {
        if (all[ranks[m]].members != mine->members) {
            return TSR_RAISE(TSR_ERR_DISAGREE, "ranks %d and %d name different members",
                             device->rank, ranks[m]);
        }
    }
    return TSR_OK;
}

/* mine is this rank's failure so far; what every rank opens is the same, or all fail. */
static tsr_status compare(const tsri_cpu_device *device, const char *what, const opening *mine,
                          tsr_status status, const int *ranks, int size)
{
    opening *all = NULL;

    if (status == TSR_OK) {
        status = tsri_alloc((size_t)device->world, sizeof *all, &all);
    }
    status = tsri_team_all_gather(device->team, what, status, mine, sizeof *mine, all);
    if (status == TSR_OK && all != NULL) {
        status = compare_openings(device, mine, all, ranks, size);
    }
    tsri_free(&all);
    return status;
}

static void clear_cell(tsri_cpu_device *device, int cell)
{
    tsri_cpu_cell *mine = &device->control->cell[cell];

    atomic_store(&mine->arrivals, 0);
    atomic_store(&mine->barrier, 0);
    atomic_store(&mine->failed, 0);
}

static tsr_status open_wire(tsri_cpu_group *group)
{
    tsri_boot_guard("opening a group between hosts");
    const tsr_status status = tsri_cpu_mpi_open(group);

    tsri_boot_guard_done();
    return status;
}

/* A mismatch shows on some ranks only; agreeing makes it everyone's, before any rank goes on alone.
 */
static tsr_status settle(tsri_cpu_device *cpu, const char *what, tsri_cpu_group *group,
                         const opening *mine, tsr_status status, const int *ranks, int size)
{
    if (cpu->world > 1) {
        status = tsri_team_agree(cpu->team, what, compare(cpu, what, mine, status, ranks, size));
    }
    if (status != TSR_OK || group == NULL) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    clear_cell(cpu, group->cell);
    if (cpu->world > 1) {
        TSR_TRY(tsri_team_agree(cpu->team, what, group->shared ? TSR_OK : open_wire(group)));
    }
    return TSR_OK;
}

tsr_status tsri_cpu_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                               tsr_stream *stream, const char *name, tsr_group **out)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)device;
    tsri_cpu_group *group = NULL;
    char what[64];

    tsr_status status = make_group(cpu, world_ranks, size, index, name, &group);
    const opening mine = {.cell = group == NULL ? -1 : group->cell,
                          .stream_kind = (int32_t)stream->kind,
                          .name = tsri_hash_text(name),
                          .members = tsri_hash(world_ranks, (size_t)size * sizeof *world_ranks, 0)};

    (void)snprintf(what, sizeof what, "opening group \"%s\"", name);
    status = settle(cpu, what, group, &mine, status, world_ranks, size);
    if (status != TSR_OK || group == NULL) {
        if (group != NULL) {
            tsri_cpu_mpi_close(group);
            free_group(group);
        }
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    mark_cell(cpu, group->cell, true);
    group->head.stream_kind = stream->kind;
    (void)pthread_mutex_lock(&cpu->lock);
    group->next = cpu->groups;
    cpu->groups = group;
    (void)pthread_mutex_unlock(&cpu->lock);
    *out = &group->head;
    return TSR_OK;
}

void tsri_cpu_group_close(tsr_group *group)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)group->device;
    tsri_cpu_group *mine = (tsri_cpu_group *)group;
    tsri_cpu_stream *stream = cpu->stream[group->stream_kind];

    if (stream != NULL) {
        tsri_cpu_stream_drain(stream); /* failures were told to whoever enqueued or synchronised */
    }
    (void)pthread_mutex_lock(&cpu->lock);
    for (tsri_cpu_group **at = &cpu->groups; *at != NULL; at = &(*at)->next) {
        if (*at == mine) {
            *at = mine->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&cpu->lock);
    mark_cell(cpu, mine->cell, false);
    tsri_cpu_mpi_close(mine);
    free_group(mine);
}

/* ---- calls ---- */

int64_t tsri_cpu_in_pieces(const tsri_cpu_op *op)
{
    return op->kind == TSRI_REDUCE_SCATTER || op->kind == TSRI_ALL_TO_ALL ? op->group->head.size
                                                                          : 1;
}

int64_t tsri_cpu_out_pieces(const tsri_cpu_op *op)
{
    return op->kind == TSRI_ALL_GATHER || op->kind == TSRI_ALL_TO_ALL ? op->group->head.size : 1;
}

void tsri_cpu_describe(const tsri_cpu_op *op, tsri_cpu_call *out)
{
    int64_t words[TSRI_COLL_MAX_ITEMS + 6] = {
        (int64_t)op->kind, (int64_t)op->dtype, (int64_t)op->reduce, op->root, op->item_count, 0};
    const char *label = op->label == NULL ? "" : op->label;

    *out = (tsri_cpu_call){.kind = (int32_t)op->kind,
                           .dtype = (int32_t)op->dtype,
                           .reduce = (int32_t)op->reduce,
                           .root = op->root,
                           .item_count = op->item_count};
    for (int i = 0; i < op->item_count; i++) {
        words[6 + i] = op->items[i].count;
        out->elements += op->items[i].count;
    }
    out->fingerprint =
        tsri_hash(words, (size_t)(6 + op->item_count) * sizeof *words, tsri_hash_text(label));
    (void)snprintf(out->label, sizeof out->label, "%s", label);
}

static const char *call_text(const tsri_cpu_call *call, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s of %s%s, root %d, %lld elements in %d items, \"%s\"",
                   tsri_coll_name((tsri_coll_kind)call->kind),
                   tsr_dtype_name((tsr_dtype)call->dtype),
                   call->reduce == (int32_t)TSRI_MAX ? " max" : "", call->root,
                   (long long)call->elements, call->item_count, call->label);
    return buffer;
}

tsr_status tsri_cpu_compare(const tsri_cpu_op *op, const tsri_cpu_call *mine,
                            const tsri_cpu_call *theirs, int member)
{
    char ours[160];
    char other[160];
    const tsr_group *group = &op->group->head;

    if (theirs->fingerprint == mine->fingerprint) {
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_DISAGREE, "call #%llu over \"%s\": rank %d makes %s; rank %d makes %s",
                     (unsigned long long)op->number, group->name, group->world_ranks[group->index],
                     call_text(mine, ours, sizeof ours), group->world_ranks[member],
                     call_text(theirs, other, sizeof other));
}

void tsri_cpu_group_break(tsri_cpu_group *group, tsr_status status, const char *text)
{
    tsri_cpu_device *device = (tsri_cpu_device *)group->head.device;
    tsri_cpu_control *control = device->control;
    uint32_t none = 0;

    if (atomic_exchange(&group->breaks, true)) {
        return;
    }
    (void)snprintf(group->text, sizeof group->text, "%s", text);
    atomic_store_explicit(&group->broken, status, memory_order_release);
    if (atomic_compare_exchange_strong(&control->failure_state, &none, 1)) {
        (void)snprintf(control->failure, sizeof control->failure, "%s", text);
        atomic_store(&control->failure_state, 2);
    }
    atomic_store(&control->cell[group->cell].failed, 1);
    for (int m = 0; group->shared && m < group->head.size; m++) {
        tsri_cpu_ring(group->peer[m]->control);
    }
}

tsr_status tsri_cpu_op_step(tsri_cpu_op *op, tsri_cpu_activity *activity)
{
    tsri_cpu_group *group = op->group;
    tsr_status status = TSR_OK;

    if (atomic_load_explicit(&group->broken, memory_order_acquire) != TSR_OK) {
        return TSR_RAISE(TSR_ERR_REMOTE, "group \"%s\" failed before: %s", group->name,
                         group->text);
    }
    if (op->state == TSRI_CPU_BEGIN) {
        op->begin_s = tsri_now_s();
        op->wait_s = op->begin_s;
        op->looked_s = op->begin_s;
    }
    status = group->shared ? tsri_cpu_node_step(op, activity) : tsri_cpu_mpi_step(op, activity);
    if (status != TSR_OK) {
        tsri_cpu_group_break(group, status, tsr_error_message());
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

static void fill_op(tsri_cpu_group *group, const tsri_coll *coll, tsri_cpu_op *op)
{
    *op = (tsri_cpu_op){.group = group,
                        .kind = coll->kind,
                        .dtype = coll->dtype,
                        .reduce = coll->op,
                        .root = coll->root,
                        .item_count = coll->item_count,
                        .label = coll->label,
                        .number = group->head.seq};
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        /* Only the root of a broadcast needs an input. */
        op->items[i].in =
            item->in == NULL ? NULL : (const unsigned char *)item->in->address + item->in_offset;
        op->items[i].out = (unsigned char *)item->out->address + item->out_offset;
        op->items[i].count = item->count;
    }
}

tsr_status tsri_cpu_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    tsri_cpu_device *device = (tsri_cpu_device *)group->device;
    tsri_cpu_group *mine = (tsri_cpu_group *)group;
    tsri_cpu_stream *queue = (tsri_cpu_stream *)stream;
    tsri_cpu_op op;

    if (coll->item_count > TSRI_COLL_MAX_ITEMS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d items in a collective, at most %d", coll->item_count,
                         TSRI_COLL_MAX_ITEMS);
    }
    if (stream->kind != group->stream_kind) {
        return TSR_RAISE(TSR_ERR_INVALID, "group \"%s\" is bound to stream %s, not %s", group->name,
                         tsri_stream_name(group->stream_kind), tsri_stream_name(stream->kind));
    }
    TSR_TRY(tsri_cpu_stream_check(queue));
    if (atomic_load_explicit(&mine->broken, memory_order_acquire) != TSR_OK) {
        return TSR_RAISE(TSR_ERR_REMOTE, "group \"%s\" failed before: %s", group->name, mine->text);
    }
    fill_op(mine, coll, &op);
    if (stream->kind != TSRI_STREAM_COMPUTE) {
        return tsri_cpu_submit(queue, &op);
    }
    atomic_store(&queue->waits, true);
    tsr_status status = tsri_cpu_run(device, &op);
    atomic_store(&queue->waits, false);
    if (status != TSR_OK) {
        tsri_cpu_stream_fail(device, queue, status);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    device->exposed_s += tsri_now_s() - op.begin_s;
    tsri_cpu_record(queue, stream->enqueued, op.begin_s);
    return TSR_OK;
}
