/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The mesh of a configuration: as it says, or chosen from hosts and memory. */
#include "plan/fit.h"

#include "base/base.h"

#include "config/config.h"
#include "job/from_config.h"
#include "plan/mesh_auto.h"

enum {
    ALIKE = 3
};

static tsr_status choose(tsri_config *config, const tsri_mesh_facts *facts)
{
    config->mesh = (tsri_mesh_text){.count = 0};
    TSR_TRY(tsri_mesh_auto(facts, &config->mesh, config->mesh_reason, sizeof(config->mesh_reason)));
    TSR_TRY(tsri_mesh_fit(&config->mesh, facts->ranks));
    return TSR_OK;
}

/* Does the job fit a rank, and is it legal? */
static tsr_status try_job(const tsri_config *config, int ranks, const tsri_config_memory *memory,
                          bool *fits_out)
{
    tsri_job_options options;
    tsri_step_memory need;
    tsr_world *world = NULL;
    tsri_job *dry = NULL;

    *fits_out = false;
    tsri_job_from_config(config, memory->bf16, &options);
    options.dry_threads = 1;
    if (options.micro_batches > ALIKE) { /* further ones take the same memory again */
        options.micro_batches = ALIKE;
    }
    const tsr_status status = tsri_job_dry_run(&options, 0, ranks, &world, &dry);

    if (status == TSR_ERR_INVALID || status == TSR_ERR_SHAPE || status == TSR_ERR_PLACEMENT) {
        tsr_error_clear(); /* heads that tp does not divide, say */
        return TSR_OK;
    }
    TSR_TRY(status);
    tsri_job_summarize(dry, &need);
    *fits_out = need.total_bytes <= memory->device_bytes;
    tsri_job_close(&dry);
    tsr_world_close(&world);
    return TSR_OK;
}

static tsr_status choose_by_memory(tsri_config *config, tsri_mesh_facts facts,
                                   const tsri_config_memory *memory)
{
    const int local = facts.ranks / (facts.hosts > 0 ? facts.hosts : 1);
    const int island = memory->island > 0 && memory->island < local ? memory->island : local;
    bool fits = false;

    for (int tp = 1; tp <= island && !fits; tp++) {
        if (island % tp == 0 && local % tp == 0 && (tp == 1 || config->parallel.tp_plan == 0)) {
            facts.tp = tp;
            TSR_TRY(choose(config, &facts));
            TSR_TRY(try_job(config, facts.ranks, memory, &fits));
        }
    }
    if (!fits) { /* what does not fit is told by who runs it */
        facts.tp = 1;
        TSR_TRY(choose(config, &facts));
    }
    return TSR_OK;
}

tsr_status tsri_config_fit(tsri_config *config, int ranks, int hosts,
                           const tsri_config_memory *memory)
{
    const tsri_mesh_facts facts = {.ranks = ranks, .hosts = hosts};

    if (config->mesh.count > 0) {
        TSR_TRY(tsri_mesh_fit(&config->mesh, ranks));
    } else if (memory != NULL && memory->device_bytes > 0) {
        TSR_TRY(choose_by_memory(config, facts, memory));
    } else {
        TSR_TRY(choose(config, &facts));
    }
    return TSR_OK;
}
