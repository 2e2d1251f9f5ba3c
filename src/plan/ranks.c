/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* All ranks of a job by classes: numbering, simulating, matching. */
#include "plan/ranks.h"

#include "base/base.h"

#include <string.h>

#include "fsdp/fsdp.h"

/* ---- one rank ---- */

static int entries_so_far(const tsri_job *job)
{
    int count = 0;

    (void)tsri_recorder_entries(tsri_comm_device(job->comm), &count);
    return count;
}

static tsr_status run_two_steps(tsri_job *job, tsri_rank_run *out)
{
    tsri_step_result result;

    for (int step = 0; step < 2; step++) {
        out->begin[step] = entries_so_far(job);
        TSR_TRY(tsri_job_step(job, step, 0.0, 1.0, NULL, &result));
    }
    out->end = entries_so_far(job);
    tsri_job_summarize(job, &out->summary);
    (void)snprintf(out->label, sizeof(out->label), "%s",
                   out->summary.peak_label != NULL ? out->summary.peak_label : "");
    return TSR_OK;
}

static tsr_status open_world(const tsri_job_options *options, int rank, int size, tsr_world **out)
{
    const tsr_world_options sim = {
        .backend = "sim", .threads = options->dry_threads, .sim_rank = rank, .sim_size = size};

    TSR_TRY(tsr_world_open(NULL, NULL, &sim, out));
    return TSR_OK;
}

tsr_status tsri_rank_simulate(const tsri_job_options *options, int rank, int size,
                              tsri_arena_plans *plans, tsri_rank_run *out)
{
    tsri_comm_ledgers kept = {0};
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    *out = (tsri_rank_run){0};
    TSR_TRY(open_world(options, rank, size, &world));
    tsri_world_keep(world, &kept);
    TSR_TRY_GOTO(status, tsri_job_open(world, options, &job), close_world);
    tsri_arena_share_plans(tsri_comm_arena(job->comm), plans);
    TSR_TRY_GOTO(status, run_two_steps(job, out), close_job);
close_job:
    tsri_job_close(&job);
close_world:
    tsri_world_keep(world, NULL);
    tsr_world_close(&world);
    status = status == TSR_OK ? kept.status : status;
    if (status == TSR_OK) {
        out->ledger = kept.comms[0].ledger;
        kept.comms[0].ledger = NULL;
    }
    tsri_comm_ledgers_clear(&kept);
    return status;
}

void tsri_rank_run_destroy(tsri_rank_run *run)
{
    tsri_ledger_destroy(&run->ledger);
}

/* ---- classes ---- */

/* This rank's rows of the batch, and its positions where the residual stream is split by them. */
static tsr_status data_layout(const tsri_job *job, tsr_layout *out)
{
    const tsri_job_options *o = &job->options;
    const int64_t shape[2] = {o->batch, o->seq};
    const unsigned data = tsri_comm_batch_axes(job->comm);

    TSR_TRY(tsr_layout_data(job->comm, shape, 2, out));
    for (int axis = 0; o->sequence_parallel && axis < tsr_mesh_axis_count(job->mesh); axis++) {
        if ((data >> axis & 1U) == 0) {
            out->place[axis] = (tsr_placement){TSR_SHARD, 1};
        }
    }
    return TSR_OK;
}

static tsr_status number_rank(const tsri_job *job, const tsr_layout *layout, int rank,
                              uint64_t *out)
{
    const unsigned data = tsri_comm_sum_axes(job->comm);
    int64_t facts[2 + TSR_MESH_MAX_AXES] = {0};
    int64_t offset[TSR_MAX_DIMS];
    int coord[TSR_MESH_MAX_AXES] = {0};
    uint64_t hash = 0;

    TSR_TRY(tsr_layout_local(layout, rank, facts, offset));
    TSR_TRY(tsr_mesh_coord(job->mesh, rank, coord));
    /* A bias that is added once is added by the first rank of an axis. */
    for (int axis = 0; axis < tsr_mesh_axis_count(job->mesh); axis++) {
        facts[2 + axis] = (data >> axis & 1U) == 0 && coord[axis] == 0;
    }
    TSR_TRY(tsri_fsdp_rank_hash(job->model, rank, &hash));
    *out = tsri_hash(facts, sizeof(facts), hash);
    return TSR_OK;
}

tsr_status tsri_ranks_number(const tsri_job *job, uint64_t *numbers_out)
{
    tsr_layout layout;

    TSR_TRY(data_layout(job, &layout));
    for (int rank = 0; rank < tsr_world_size(job->world); rank++) {
        TSR_TRY(number_rank(job, &layout, rank, &numbers_out[rank]));
    }
    return TSR_OK;
}

static tsr_status number_all(const tsri_job_options *options, int size, uint64_t *numbers,
                             tsr_mesh **mesh_out)
{
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(open_world(options, 0, size, &world));
    TSR_TRY_GOTO(status, tsri_job_open(world, options, &job), close_world);
    TSR_TRY_GOTO(status, tsri_ranks_number(job, numbers), close_job);
    *mesh_out = tsr_mesh_retain(job->mesh);
close_job:
    tsri_job_close(&job);
close_world:
    tsr_world_close(&world);
    return status;
}

static tsr_status sort(tsri_ranks *ranks, const uint64_t *numbers)
{
    int capacity = 0;

    for (int rank = 0; rank < ranks->size; rank++) {
        int at = 0;

        while (at < ranks->class_count &&
               numbers[ranks->classes[at].representative] != numbers[rank]) {
            at++;
        }
        if (at == ranks->class_count) {
            TSR_TRY(tsri_grow(&ranks->classes, &capacity, at + 1, sizeof(tsri_rank_class)));
            ranks->classes[ranks->class_count++] = (tsri_rank_class){.representative = rank};
        }
        ranks->classes[at].rank_count++;
        ranks->class_of[rank] = at;
    }
    return TSR_OK;
}

/* ---- all of them against each other ---- */

/* context: the mesh. */
static tsr_status members_of(void *context, int rank, const tsri_entry *entry, int *members_out)
{
    int count = 0;
    int index = 0;

    TSR_TRY(tsr_mesh_flat_ranks(context, entry->axis_mask, rank, members_out, &count, &index));
    return TSR_OK;
}

static tsr_status match_ranks(tsri_ranks *ranks, tsr_mesh *mesh)
{
    tsri_match_ledger *ledgers = NULL;
    tsri_match_input input = {
        .rank_count = ranks->size, .inline_compute = true, .members = members_of, .context = mesh};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks->size, sizeof(*ledgers), &ledgers));
    for (int rank = 0; rank < ranks->size; rank++) {
        const tsri_rank_run *run = &ranks->classes[ranks->class_of[rank]].run;

        ledgers[rank].entries = tsri_ledger_entries(run->ledger, &ledgers[rank].count);
    }
    input.ledgers = ledgers;
    TSR_TRY_GOTO(status, tsri_match(&input, &ranks->match), free_ledgers);
free_ledgers:
    tsri_free(&ledgers);
    return status;
}

static tsr_status simulate_classes(const tsri_job_options *options, tsri_ranks *ranks)
{
    tsri_arena_plans *plans = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_arena_plans_create(&plans));
    for (int i = 0; i < ranks->class_count; i++) {
        tsri_rank_class *c = &ranks->classes[i];

        TSR_TRY_GOTO(status,
                     tsri_rank_simulate(options, c->representative, ranks->size, plans, &c->run),
                     destroy_plans);
        c->run.summary.peak_label = c->run.label;
    }
destroy_plans:
    tsri_arena_plans_destroy(&plans);
    return status;
}

static tsr_status find_classes(const tsri_job_options *options, tsri_ranks *ranks)
{
    uint64_t *numbers = NULL;
    tsr_mesh *mesh = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks->size, sizeof(*numbers), &numbers));
    TSR_TRY_GOTO(status,
                 tsri_alloc((size_t)ranks->size, sizeof(*ranks->class_of), &ranks->class_of),
                 free_numbers);
    TSR_TRY_GOTO(status, number_all(options, ranks->size, numbers, &mesh), free_numbers);
    TSR_TRY_GOTO(status, sort(ranks, numbers), release_mesh);
    TSR_TRY_GOTO(status, simulate_classes(options, ranks), release_mesh);
    TSR_TRY_GOTO(status, match_ranks(ranks, mesh), release_mesh);
release_mesh:
    tsr_mesh_release(&mesh);
free_numbers:
    tsri_free(&numbers);
    return status;
}

tsr_status tsri_ranks_check(const tsri_job_options *options, int size, tsri_ranks **out)
{
    tsri_ranks *ranks = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*ranks), &ranks));
    ranks->size = size;
    TSR_TRY_GOTO(status, find_classes(options, ranks), destroy);
    *out = ranks;
    return TSR_OK;
destroy:
    tsri_ranks_destroy(&ranks);
    return status;
}

void tsri_ranks_destroy(tsri_ranks **pointer)
{
    tsri_ranks *ranks = *pointer;

    *pointer = NULL;
    if (ranks == NULL) {
        return;
    }
    for (int i = 0; i < ranks->class_count; i++) {
        tsri_rank_run_destroy(&ranks->classes[i].run);
    }
    tsri_free(&ranks->classes);
    tsri_free(&ranks->class_of);
    tsri_free(&ranks);
}

/* ---- the table ---- */

void tsri_ranks_print(const tsri_ranks *ranks, FILE *stream)
{
    const double mib = 1024.0 * 1024.0;

    (void)fprintf(stream,
                  "\n%d ranks do %d different steps; MiB of a rank of each\n"
                  "  %8s %8s %12s %12s %12s %12s\n",
                  ranks->size, ranks->class_count, "ranks", "first", "at rest", "step arena",
                  "total", "host");
    for (int i = 0; i < ranks->class_count; i++) {
        const tsri_rank_class *c = &ranks->classes[i];
        const tsri_step_memory *s = &c->run.summary;

        (void)fprintf(stream, "  %8d %8d %12.1f %12.1f %12.1f %12.1f\n", c->rank_count,
                      c->representative, (double)s->fixed_bytes / mib, (double)s->arena_bytes / mib,
                      (double)s->total_bytes / mib, (double)s->host_bytes / mib);
    }
    (void)fprintf(stream, "%s\n",
                  ranks->match.cause == TSRI_MATCH_FITS
                      ? "every collective of two steps meets all its members"
                      : ranks->match.text);
}
