/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A program as every rank of a simulated world, its comms' ledgers matched. */
#include "base/base.h"

#include "tessera/sim.h"

#include <string.h>

#include "comm/comm.h"
#include "plan/match.h"

/* ---- one rank after the other ---- */

static tsr_status run_program(tsr_world *world, tsr_sim_program program, void *context,
                              const tsri_comm_ledgers *kept)
{
    const int rank = tsr_world_rank(world);
    const tsr_status status = program(world, context);
    const tsr_mesh *open = tsri_world_open_mesh(world);

    if (status != TSR_OK) {
        return TSR_RAISE(status, "simulated rank %d of %d: %s", rank, tsr_world_size(world),
                         tsr_error_message());
    }
    TSR_TRY(kept->status);
    if (open != NULL) {
        char text[sizeof(kept->comms->mesh)];

        return TSR_RAISE(
            TSR_ERR_STATE,
            "simulated rank %d of %d: the program returned with a comm open, on mesh %s", rank,
            tsr_world_size(world), tsr_mesh_format(open, text, sizeof(text)));
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
    TSR_TRY_GOTO(status, run_program(world, program, context, kept), close_world);
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
