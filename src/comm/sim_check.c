/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file sim_check.c
 * A program as every rank of a simulated world, its comms' ledgers matched.
 *
 * A world that keeps ledgers hands each comm a place when it opens, and takes the comm's ledger
 * when it closes, before the groups go whose members the entries name.
 */
#include "comm_priv.h"

#include "backend/sim/match.h"

#include "tessera/sim.h"

#include <string.h>

void tsri_keep_open(tsri_comm_ledgers *kept, tsr_comm *comm)
{
    tsri_comm_ledger *place = NULL;

    comm->kept_at = -1;
    if (kept->status == TSR_OK) {
        kept->status =
            tsri_grow(&kept->comms, &kept->capacity, kept->count + 1, sizeof(tsri_comm_ledger));
    }
    if (kept->status == TSR_OK) {
        comm->kept_at = kept->count++;
        place = &kept->comms[comm->kept_at];
        *place = (tsri_comm_ledger){.ledger = NULL};
        (void)tsr_mesh_format(comm->mesh, place->mesh, sizeof(place->mesh));
    }
}

void tsri_keep_ledger(tsri_comm_ledgers *kept, const tsr_comm *comm)
{
    if (kept->status == TSR_OK && comm->kept_at >= 0 && comm->device != NULL) {
        kept->status = tsri_recorder_take(comm->device, &kept->comms[comm->kept_at].ledger);
    }
}

void tsri_world_keep(tsr_world *world, tsri_comm_ledgers *kept)
{
    world->kept = kept;
}

void tsri_comm_ledgers_clear(tsri_comm_ledgers *kept)
{
    for (int i = 0; i < kept->count; i++) {
        tsri_ledger_destroy(&kept->comms[i].ledger);
    }
    tsri_free(&kept->comms);
    *kept = (tsri_comm_ledgers){0};
}

/* ---- one rank after the other ---- */

static tsr_status run_program(tsr_world *world, tsr_sim_program program, void *context)
{
    const tsri_comm_ledgers *kept = world->kept;
    const tsr_status status = program(world, context);

    if (status != TSR_OK) {
        return TSR_RAISE(status, "simulated rank %d of %d: %s", world->rank, world->size,
                         tsr_error_message());
    }
    TSR_TRY(kept->status);
    if (world->comms != NULL) {
        char text[sizeof(kept->comms->mesh)];

        return TSR_RAISE(
            TSR_ERR_STATE,
            "simulated rank %d of %d: the program returned with a comm open, on mesh %s",
            world->rank, world->size, tsr_mesh_format(world->comms->mesh, text, sizeof(text)));
    }
    return TSR_OK;
}

static tsr_status run_rank(int rank, int size, tsr_sim_program program, void *context,
                           tsri_comm_ledgers *kept)
{
    const tsr_world_options options = {.backend = "sim", .sim_rank = rank, .sim_size = size};
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_world_open(NULL, NULL, &options, &world));
    tsri_world_keep(world, kept);
    TSR_TRY_GOTO(status, run_program(world, program, context), close_world);
close_world:
    tsri_world_keep(world, NULL); /* a comm that is still open will not reach it */
    tsr_world_close(&world);
    return status;
}

/* ---- all of them against each other ---- */

typedef struct check {
    tsri_comm_ledgers *all; /* [size] */
    int size;
    FILE *report; /* NULL: none */
} check;

/* The same comms, by number and mesh. */
static tsr_status check_comms(const check *c)
{
    const tsri_comm_ledgers *all = c->all;

    for (int rank = 1; rank < c->size; rank++) {
        if (all[rank].count != all[0].count) {
            return TSR_RAISE(TSR_ERR_DISAGREE, "rank 0 opens %d comms, rank %d opens %d",
                             all[0].count, rank, all[rank].count);
        }
        for (int i = 0; i < all[0].count; i++) {
            if (strcmp(all[rank].comms[i].mesh, all[0].comms[i].mesh) != 0) {
                return TSR_RAISE(TSR_ERR_DISAGREE,
                                 "comm %d of rank 0 is on mesh %s, of rank %d on %s", i + 1,
                                 all[0].comms[i].mesh, rank, all[rank].comms[i].mesh);
            }
        }
    }
    return TSR_OK;
}

static tsr_status match_comm(const check *c, int index, tsri_match_ledger *ledgers)
{
    const tsri_match_input input = {
        .ledgers = ledgers, .rank_count = c->size, .inline_compute = true};
    tsri_match_report found;

    for (int rank = 0; rank < c->size; rank++) {
        ledgers[rank].entries =
            tsri_ledger_entries(c->all[rank].comms[index].ledger, &ledgers[rank].count);
    }
    TSR_TRY(tsri_match(&input, &found));
    if (found.cause == TSRI_MATCH_FITS) {
        return TSR_OK;
    }
    if (c->report != NULL) {
        (void)fprintf(c->report, "%s\n", found.text);
    }
    return TSR_RAISE(TSR_ERR_DISAGREE, "%s", found.text);
}

static tsr_status match_all(const check *c)
{
    tsri_match_ledger *ledgers = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_comms(c));
    TSR_TRY(tsri_alloc((size_t)c->size, sizeof(*ledgers), &ledgers));
    for (int i = 0; i < c->all[0].count; i++) {
        TSR_TRY_GOTO(status, match_comm(c, i, ledgers), free_ledgers);
    }
free_ledgers:
    tsri_free(&ledgers);
    return status;
}

tsr_status tsr_sim_check(int size, tsr_sim_program program, void *context, FILE *report)
{

    check c = {.size = size, .report = report};
    tsr_status status = TSR_OK;

    if (program == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: program is NULL", __func__);
    }
    if (size < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "a simulated world of %d ranks, wants at least 1", size);
    }
    TSR_TRY(tsri_alloc((size_t)size, sizeof(*c.all), &c.all));
    for (int rank = 0; rank < size; rank++) {
        TSR_TRY_GOTO(status, run_rank(rank, size, program, context, &c.all[rank]), drop_all);
    }
    TSR_TRY_GOTO(status, match_all(&c), drop_all);
drop_all:
    for (int rank = 0; rank < size; rank++) {
        tsri_comm_ledgers_clear(&c.all[rank]);
    }
    tsri_free(&c.all);
    return status;
}
