/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file watch.c
 * What a waiting operation looks at besides its barrier: time, and whether its peers still come.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"

static const char *what(const tsri_cpu_op *op, char *buffer, size_t size)
{
    (void)snprintf(buffer, size, "%s #%llu of \"%s\" over \"%s\"", tsri_coll_name(op->kind),
                   (unsigned long long)op->number, op->label == NULL ? "" : op->label,
                   op->group->name);
    return buffer;
}

static tsri_cpu_cell *cell_of(const tsri_cpu_group *group, int member)
{
    return &group->peer[member]->control->cell[group->cell];
}

static bool absent(const tsri_cpu_group *group, int member)
{
    return atomic_load(&cell_of(group, member)->barrier) < group->barrier;
}

static tsr_status late(const tsri_cpu_op *op)
{
    char call[200];
    char names[120];
    char around[120];
    const char *host = "?";
    size_t at = 0;
    const tsri_cpu_group *group = op->group;
    const tsri_team *team = ((const tsri_cpu_device *)group->head.device)->team;
    double limit = group->head.device->timeout_s;

    (void)what(op, call, sizeof call);
    names[0] = '\0';
    for (int m = 0; m < group->head.size && at + 16 < sizeof names; m++) {
        if (group->shared ? absent(group, m) : tsri_cpu_mpi_absent(op, m)) {
            int wrote = snprintf(names + at, sizeof names - at, "%s%d", at == 0 ? "" : ", ",
                                 group->ranks[m]);
            host = at == 0 ? tsri_team_host(team, group->ranks[m]) : host;
            at += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    if (at == 0 && !group->shared && op->state == TSRI_CPU_MOVE) {
        return TSR_RAISE(TSR_ERR_COMM, "%s did not end within %g s", call, limit);
    }
    if (at == 0) {
        return TSR_OK; /* the last one has just come */
    }
    (void)tsri_boot_look_around(around, sizeof around);
    return TSR_RAISE(TSR_ERR_COMM, "rank(s) %s did not %s %s within %g s (host %s)%s%s", names,
                     op->state == TSRI_CPU_ARRIVE ? "arrive at" : "finish", call, limit, host,
                     around[0] != '\0' ? ": " : "", around);
}

static tsr_status look(const tsri_cpu_op *op)
{
    char call[200];
    const tsri_cpu_group *group = op->group;

    for (int m = 0; m < group->head.size; m++) {
        const tsri_cpu_peer *peer = group->peer[m];
        const char *fate = NULL;
        if (m == group->head.index) {
            continue;
        }
        if (atomic_load(&cell_of(group, m)->failed) != 0) {
            bool told = atomic_load(&peer->control->failure_state) == 2;
            return TSR_RAISE(TSR_ERR_REMOTE, "rank %d failed during %s: %s", group->ranks[m],
                             what(op, call, sizeof call),
                             told ? peer->control->failure : "no message");
        }
        if (!absent(group, m)) {
            continue;
        }
        if (atomic_load(&peer->control->closed) != 0) {
            fate = "closed its device";
        } else if (!tsri_cpu_peer_alive(peer)) {
            fate = "ended";
        }
        /* It may have arrived just before it left. */
        if (fate != NULL && absent(group, m)) {
            return TSR_RAISE(TSR_ERR_REMOTE, "rank %d %s before it came to %s", group->ranks[m],
                             fate, what(op, call, sizeof call));
        }
    }
    return TSR_OK;
}

tsr_status tsri_cpu_watch(tsri_cpu_op *op)
{
    double now = tsri_now_s();

    if (op->group->shared && now - op->looked_s >= TSRI_CPU_ALIVE_S) {
        op->looked_s = now;
        TSR_TRY(look(op));
    }
    if (now - op->wait_s > op->group->head.device->timeout_s) {
        return late(op);
    }
    return TSR_OK;
}
