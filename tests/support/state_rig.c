/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/state_rig.h"

#include "support/parity.h"
#include "support/tsr_test.h"

const state_layout state_layouts[] = {
    {{"one", "fsdp", 1, 1, 1, false, false}, PLAIN},
    {{"two, ddp", "ddp", 2, 1, 1, true, false}, PLAIN},
    {{"two, zero1", "zero1", 1, 2, 1, true, false}, OFFLOADED},
    {{"two, tp", "fsdp", 1, 1, 2, true, false}, PLAIN},
    {{"two, fsdp by columns", "fsdp", 1, 2, 1, true, false}, SPLIT_COLS},
    {{"four, zero2 and tp", "zero2", 1, 2, 2, true, false}, PLAIN},
    {{"four, hfsdp", "hfsdp", 2, 2, 1, true, false}, SCALED},
    {{"four, hsdp offloaded", "hsdp", 2, 2, 1, true, false}, OFFLOADED},
    {{"eight, hfsdp and tp", "hfsdp", 2, 2, 2, true, true}, PLAIN},
    {{"eight, fsdp", "fsdp", 1, 8, 1, true, false}, SCALED},
    {{"eight, tp and zero1", "zero1", 1, 2, 4, true, false}, OFFLOADED},
    {{"eight, fsdp by columns", "fsdp", 1, 4, 2, true, false}, SPLIT_COLS},
    {{"one, half", "fsdp", 1, 1, 1, false, false}, HALF},
    {{"two, lean", "zero1", 1, 2, 1, true, false}, HALF | SCALED},
    {{"four, lean hfsdp", "hfsdp", 2, 2, 1, true, false}, HALF},
    {{"eight, lean and tp", "hfsdp", 2, 2, 2, true, false}, HALF},
};

const int state_layout_count = (int)(sizeof(state_layouts) / sizeof(state_layouts[0]));
const double state_lr = 1e-3;

int state_rank_count(const state_layout *l)
{
    return l->mesh.replicate * l->mesh.shard * l->mesh.tp;
}

bool state_fits(const state_layout *l)
{
    return state_rank_count(l) == tsr_test_size();
}

static tsri_job_options options_of(const state_layout *l)
{
    tsri_job_options o = parity_options(&l->mesh, 2, true);

    if ((l->extras & OFFLOADED) != 0) {
        o.fsdp.offload_params = true;
        o.fsdp.offload_grads = true;
        o.optim.offload = true;
    }
    if ((l->extras & HALF) != 0) {
        o.fsdp.param_dtype = TSR_BF16;
    }
    o.scale_loss = (l->extras & SCALED) != 0;
    o.loss_scale = (tsr_loss_scale_options){.init = 64.0, .interval = 3};
    if ((l->extras & SPLIT_COLS) != 0) {
        o.split_cols.at[0] = "layers.*.mlp.down.weight";
        o.split_cols.count = 1;
    }
    return o;
}

tsri_job *state_open_job(tsr_world *world, const state_layout *l, uint64_t seed)
{
    tsri_job_options o = options_of(l);
    tsri_job *job = NULL;

    o.seed = seed;
    CHECK_OK(tsri_job_open(world, &o, &job));
    return job;
}

tsr_status state_run(tsri_job *job, int from, int to, tsri_step_result *out)
{
    for (int step = from; step < to; step++) {
        TSR_TRY(parity_write_step(job, step));
        TSR_TRY(tsri_job_step(job, step, state_lr, 1.0, NULL, &out[step]));
    }
    return TSR_OK;
}
