/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What stays of the comms of a simulated rank. A world that keeps ledgers hands each comm a place
 * when it opens, and takes the comm's ledger when it closes, before the groups go whose members the
 * entries name. */
#include "comm_priv.h"

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

const tsr_mesh *tsri_world_open_mesh(const tsr_world *world)
{
    return world->comms != NULL ? world->comms->mesh : NULL;
}
