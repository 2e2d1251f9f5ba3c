/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/hostile_rig.h"

#include "backend/recorder.h"

#include <mpi.h>

#include <stdio.h>
#include <string.h>

#include "support/hostile.h"
#include "support/parity.h"
#include "support/tsr_test.h"

/* Of a collective, where a rank has failed alone. */
static const double timeout_s = 5;

static const parity_case one[] = {{"one_rank", "ddp", 1, 1, 1, false, false}, {NULL}};
static const parity_case two[] = {{"ddp", "ddp", 2, 1, 1, true, false},
                                  {"fsdp", "fsdp", 1, 2, 1, true, false},
                                  {"tp_sequence", "ddp", 1, 1, 2, true, true},
                                  {NULL}};
static const parity_case four[] = {
    {"zero2", "zero2", 1, 4, 1, true, false},     {"fsdp", "fsdp", 1, 4, 1, true, false},
    {"hsdp", "hsdp", 2, 2, 1, true, false},       {"hfsdp", "hfsdp", 2, 2, 1, true, false},
    {"tp_fsdp", "fsdp", 1, 2, 2, true, false},    {"tp_hsdp", "hsdp", 2, 1, 2, true, false},
    {"tp_sequence", "ddp", 1, 1, 4, false, true}, {NULL}};

const parity_case *hostile_cases(void)
{
    const int size = tsr_test_size();

    return size == 1 ? one : size == 2 ? two : four;
}

tsr_status hostile_rig_open(const parity_case *layout, int micro_batches, hostile_rig *rig)
{
    const tsr_world_options cpu = {.backend = "cpu", .threads = 1};
    const tsr_world_options hostile = {.backend = "hostile", .threads = 1, .timeout_s = timeout_s};
    parity_run run = {.r = &rig->record};
    bool struck = false;

    *rig = (hostile_rig){.layout = *layout, .options = parity_options(layout, micro_batches, true)};
    TSR_TRY(tsr_world_open(NULL, NULL, &hostile, &rig->hostile));
    /* The last one's limit is that of exchanges, which outlast collectives. */
    TSR_TRY(tsr_world_open(NULL, NULL, &cpu, &rig->cpu));
    TSR_TRY(parity_record_single(rig->cpu, &rig->options, &rig->record));
    TSR_TRY(
        parity_run_layout(rig->cpu, layout, &rig->options, TSRI_SABOTAGE_NONE, 0, &run, &struck));
    rig->bits = run.bits;
    return TSR_OK;
}

void hostile_rig_close(hostile_rig *rig)
{
    parity_record_free(&rig->record);
    tsr_world_close(&rig->cpu);
    tsr_world_close(&rig->hostile);
    hostile_set(NULL);
}

/* Counting begins with the steps: no wait is dropped before, and n counts what the race check does.
 */
static tsr_status set_options(tsri_job *job, void *context)
{
    (void)job;
    hostile_set(context);
    return TSR_OK;
}

int hostile_rig_run(hostile_rig *rig, const hostile_options *options, char *text)
{
    hostile_options wanted = *options;
    const hostile_options gentle = {.seed = options->seed};
    parity_run run = {.r = &rig->record, .opened = set_options, .context = &wanted};
    bool struck = false;
    int wrong = 0;

    hostile_set(&gentle);
    tsr_status status = parity_run_layout(rig->hostile, &rig->layout, &rig->options,
                                          TSRI_SABOTAGE_NONE, 0, &run, &struck);
    status = tsr_world_agree(rig->hostile, status); /* others may be in an exchange of the step */
    text[0] = '\0';
    if (status != TSR_OK) {
        (void)snprintf(text, HOSTILE_TEXT, "%s", tsr_error_message());
        tsr_error_clear();
    } else if (!(run.worst <= 1.0)) {
        (void)snprintf(text, HOSTILE_TEXT, "%.3g bounds off at %s", run.worst, run.where);
    } else if (run.bits != rig->bits) {
        (void)snprintf(text, HOSTILE_TEXT, "other bits than on cpu");
    } else if (hostile_fault_count() > 0) {
        (void)snprintf(text, HOSTILE_TEXT, "written to after its release");
    }
    const int mine = text[0] != '\0';
    (void)MPI_Allreduce(&mine, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return wrong;
}

/* ---- what the race check says ---- */

typedef struct watch {
    int drop, waits;
} watch;

static tsr_status attach(tsri_job *job, void *context)
{
    watch *w = context;
    const tsri_recorder_options options = {.race_check = true, .drop_wait = w->drop};

    TSR_TRY(tsri_recorder_attach(tsri_comm_device(job->comm), &options));
    return TSR_OK;
}

static tsr_status count_waits(tsri_job *job, void *context)
{
    watch *w = context;

    w->waits = tsri_recorder_wait_count(tsri_comm_device(job->comm));
    return TSR_OK;
}

/* On sim. */
static tsr_status run_watched(const hostile_rig *rig, watch *w)
{
    const tsr_world_options sim = {.backend = "sim", .threads = 1, .sim_size = tsr_test_size()};
    parity_record record = rig->record;
    parity_run run = {
        .r = &record, .keeps_digest = true, .opened = attach, .closing = count_waits, .context = w};
    tsr_world *world = NULL;
    bool struck = false;

    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &world));
    const tsr_status status =
        parity_run_layout(world, &rig->layout, &rig->options, TSRI_SABOTAGE_NONE, 0, &run, &struck);
    tsr_world_close(&world);
    return status;
}

tsr_status hostile_rig_count_waits(const hostile_rig *rig, int *out)
{
    watch w = {.drop = 0};

    TSR_TRY(run_watched(rig, &w));
    *out = w.waits;
    return TSR_OK;
}

tsr_status hostile_rig_find_race(const hostile_rig *rig, int n, char *race)
{
    watch w = {.drop = n};
    const tsr_status status = run_watched(rig, &w);

    race[0] = '\0';
    if (status == TSR_ERR_INTERNAL) {
        (void)snprintf(race, HOSTILE_RACE, "%s", tsr_error_message());
        tsr_error_clear();
        return TSR_OK;
    }
    return status;
}
