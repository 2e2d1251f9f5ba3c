/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/* Overlap on real ranks: what recorded times show, and that it changes no bit. */
#include "backend/boot/boot.h"
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 6,
    STEPS = 3
};

static tsri_job_options job_options(void)
{
    const int n = tsr_test_size();
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = LAYERS,
                                    .dim = 256,
                                    .heads = 8,
                                    .kv_heads = 4,
                                    .ffn = 704,
                                    .vocab = 97},
                          .axes = {{"replicate", n / 2}, {"shard", 2}},
                          .axis_count = 2,
                          .batch = 8,
                          .seq = 64,
                          .seed = 3,
                          .comm = {.record = true, .race_check = true}};

    return o;
}

static void fill_batch(const tsri_job *job, int step, int32_t *ids, int32_t *labels)
{
    const int64_t seq = job->options.seq;

    for (int64_t i = 0; i < job->row_count * seq; i++) {
        const int64_t global = job->row_begin * seq + i + step * 1000;

        ids[i] = (int32_t)(global * 31 % 97);
        labels[i] = (int32_t)(global * 17 % 97);
    }
}

static tsr_status run_step(tsri_job *job, int step, double *loss)
{
    int32_t ids[8 * 64];
    int32_t labels[8 * 64];
    tsri_step_result result;

    fill_batch(job, step, ids, labels);
    TSR_TRY(tsri_job_write_batch(job, 0, ids, labels));
    TSR_TRY(tsri_job_step(job, step, 1e-2, 1.0, NULL, &result));
    *loss = result.loss;
    return TSR_OK;
}

/* First and last instant at which compute ran kernels of unit path between entries a and b. */
static bool compute_span(const tsri_entry *e, int from, int to, const char *path, double *begin,
                         double *end)
{
    const size_t n = strlen(path);
    bool found = false;

    for (int i = from; i < to; i++) {
        if (e[i].kind == TSRI_ENTRY_KERNEL && e[i].stream == TSRI_STREAM_COMPUTE &&
            e[i].label != NULL && strncmp(e[i].label, path, n) == 0 &&
            (e[i].label[n] == '.' || e[i].label[n] == '\0')) {
            *begin = found ? *begin : e[i].begin_s;
            *end = e[i].end_s;
            found = true;
        }
    }
    return found;
}

static int find_gather(const tsri_entry *e, int from, int to, const char *path)
{
    for (int i = from; i < to; i++) {
        if (e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].stream == TSRI_STREAM_GATHER &&
            strcmp(e[i].label, path) == 0) {
            return i;
        }
    }
    return -1;
}

/* In the forward of one step: gathers of unit i + 1 that ran while unit i computed. */
static int overlapped_gathers(const tsri_job *job, int *gathers_out)
{
    int count = 0;
    int overlapped = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(job->comm), &count);

    *gathers_out = 0;
    for (int i = 0; i + 1 < LAYERS; i++) {
        const char *path = tsr_module_path(tsr_llama_layer(job->model, i));
        const int gather =
            find_gather(e, 0, count, tsr_module_path(tsr_llama_layer(job->model, i + 1)));
        double begin = 0.0;
        double end = 0.0;
        int next = count;

        if (gather < 0) {
            continue;
        }
        for (int k = gather + 1; k < count && next == count; k++) { /* up to the gather after it */
            next =
                e[k].kind == TSRI_ENTRY_COLLECTIVE && e[k].stream == TSRI_STREAM_GATHER ? k : count;
        }
        if (!compute_span(e, gather, next, path, &begin, &end)) {
            continue;
        }
        (*gathers_out)++;
        overlapped += e[gather].begin_s < end && e[gather].end_s > begin;
    }
    return overlapped;
}

static void gathers_run_under_compute(void)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    const tsri_job_options o = job_options();
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    int all[8] = {0};
    int gathers = 0;
    int overlapped = 0;
    int sum = 0;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    REQUIRE_OK(tsri_job_open(world, &o, &job));
    for (int step = 0; step < STEPS; step++) {
        double loss = 0.0;
        int n = 0;

        tsri_recorder_clear(tsri_comm_device(job->comm));
        REQUIRE_OK(run_step(job, step, &loss));
        overlapped += overlapped_gathers(job, &n);
        gathers += n;
    }
    CHECK_EQ(gathers, STEPS * (LAYERS - 1));
    printf("# rank %d: %d of %d gathers ran under compute\n", tsr_test_rank(), overlapped, gathers);
    /* Two cores serve all ranks and their progress threads, which may come late on one rank or
     * another: a quarter of all gathers must. */
    REQUIRE_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &overlapped,
                                    sizeof(overlapped), all));
    for (int i = 0; i < tsr_test_size(); i++) {
        sum += all[i];
    }
    CHECK(sum * 4 >= gathers * tsr_test_size());
    tsri_job_close(&job);
    tsr_world_close(&world);
}

/* Loss bits and a hash of this rank's weights after STEPS steps. */
static tsr_status outcome(const tsri_job_options *o, double *loss, uint64_t *hash)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;
    tsri_job *job = NULL;

    TSR_TRY(tsr_world_open(NULL, NULL, &cpu, &world));
    TSR_TRY(tsri_job_open(world, o, &job));
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY(run_step(job, step, loss));
    }
    *hash = 0;
    for (int i = 0; i < job->param_count; i++) {
        const tsr_param *p = job->params[i];
        const size_t bytes = (size_t)tsri_param_own_count(p) * sizeof(float);
        void *host = NULL;

        TSR_TRY(tsri_alloc(bytes, 1, &host));
        TSR_TRY(tsri_read(p->master.buffer, p->master.offset, host, bytes,
                          tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE)));
        *hash = tsri_hash(host, bytes, *hash);
        tsri_free(&host);
    }
    tsri_job_close(&job);
    tsr_world_close(&world);
    return TSR_OK;
}

static void overlap_changes_no_bit(void)
{
    double first_loss = 0.0;
    uint64_t first_hash = 0;

    for (int ahead = 0; ahead <= 2; ahead++) {
        for (int reshard = TSR_RESHARD_DEFAULT; reshard <= TSR_RESHARD_NEVER; reshard++) {
            tsri_job_options o = job_options();
            double loss = 0.0;
            uint64_t hash = 0;

            o.fsdp.prefetch_depth = ahead + 1;
            o.fsdp.reshard_after_forward = (tsr_reshard)reshard;
            REQUIRE_OK(outcome(&o, &loss, &hash));
            if (ahead == 0 && reshard == TSR_RESHARD_DEFAULT) {
                first_loss = loss;
                first_hash = hash;
            }
            CHECK_NEAR(loss, first_loss, 0.0); /* the same bits: neither is NaN nor -0 */
            CHECK_EQ(hash, first_hash);
        }
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"gathers_run_under_compute", gathers_run_under_compute},
    {"overlap_changes_no_bit", overlap_changes_no_bit},
    {NULL, NULL},
};
