/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 6 8 */
/* hostile: 4 */
/* labels: parity */
/**
 * @file test_parity_random.c
 * Random small models on random layouts against the same model on one rank: loss, gradient norm,
 * every gradient and every trained weight.
 *
 * The one-rank run is made by every rank for itself: its mesh has one axis, "copies", that carries
 * no data and splits no weight. Sizes do not divide: fewer rows, heads, words or sequences than
 * ranks are frequent.
 *
 * Tolerances: both runs sum the same f32 terms in other orders. Relative to the largest entry of a
 * tensor that is some 2^-24 * sqrt(terms) with at most thousands of terms: 2^-24 * 64 < 4e-6, taken
 * twice and with room: 2e-5. A gradient that cancels to nearly nothing (of queries, where a
 * sequence is one token long) is measured by a 64th of the model's largest. An Adam step turns a
 * relative error of a gradient that is large against eps into one of the update, at most lr; of
 * smaller ones into lr * error / eps.
 */
#include "base/base.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "job/job.h"
#include "support/tsr_test.h"

enum {
    ROUNDS = 32, /* divided by the number of ranks */
    STEPS = 3,
    MAX_PARAMS = 64
};

static const double tolerance = 2e-5;
static const double lr = 1e-3;

typedef struct chance {
    uint64_t key, index;
} chance;

static int pick(chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

static int between(chance *c, int low, int high)
{
    return low + pick(c, high - low + 1);
}

/* ---- a random job ---- */

static int random_factor(chance *c, int n)
{
    int factor = 0;

    do {
        factor = between(c, 1, n);
    } while (n % factor != 0);
    return factor;
}

static void random_mesh(chance *c, tsri_job_options *o)
{
    static const char *const orders[][3] = {{"replicate", "shard", "tp"},
                                            {"tp", "shard", "replicate"},
                                            {"shard", "tp", "replicate"},
                                            {"data", "tp", "more"}};
    const char *const *names = orders[pick(c, 4)];
    const int first = random_factor(c, tsr_test_size());
    const int second = random_factor(c, tsr_test_size() / first);

    o->axis_count = 3;
    o->axes[0] = (tsr_mesh_axis){names[0], first};
    o->axes[1] = (tsr_mesh_axis){names[1], second};
    o->axes[2] = (tsr_mesh_axis){names[2], tsr_test_size() / first / second};
}

static int tp_size(const tsri_job_options *o)
{
    for (int i = 0; i < o->axis_count; i++) {
        if (strcmp(o->axes[i].name, "tp") == 0) {
            return o->axes[i].size;
        }
    }
    return 1;
}

static void random_model(chance *c, tsri_job_options *o)
{
    static const int per_kv[] = {1, 2, 3};
    const int tp = tp_size(o);
    const int kv = pick(c, 2) == 0 ? tp * between(c, 1, 2) : random_factor(c, tp);
    const int heads = kv * (kv < tp ? tp / kv : 1) * per_kv[pick(c, 3)];
    const int layers = between(c, 1, 3);
    const int ffn = between(c, 1, 21);
    const int vocab = between(c, 2, 23);

    if (pick(c, 2) == 0) {
        o->model = (tsri_model_spec){.arch = TSRI_ARCH_GPT2,
                                     .layers = layers,
                                     .heads = heads,
                                     .dim = heads * between(c, 6 / heads + 1, 6 / heads + 3),
                                     .ffn = ffn,
                                     .vocab = vocab,
                                     .positions = o->seq + pick(c, 3),
                                     .tied = pick(c, 2) != 0,
                                     .init_std = 0.2};
    } else {
        o->model = (tsri_model_spec){.arch = TSRI_ARCH_LLAMA,
                                     .layers = layers,
                                     .heads = heads,
                                     .kv_heads = kv,
                                     .dim = between(c, 3, 17),
                                     .ffn = ffn,
                                     .vocab = vocab,
                                     .head_dim = 2 * between(c, 1, 3),
                                     .attention_bias = pick(c, 2) == 0,
                                     .mlp_bias = pick(c, 2) == 0,
                                     .tied = pick(c, 2) == 0,
                                     .init_std = 0.2};
    }
}

static tsri_job_options random_job(chance *c)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};
    tsri_job_options o = {0};

    o.seq = between(c, 1, 7);
    o.batch = between(c, 1, 9);
    o.micro_batches = between(c, 1, 3);
    random_mesh(c, &o);
    random_model(c, &o);
    o.preset = presets[pick(c, 6)];
    o.fsdp.reshard_after_forward = (tsr_reshard)pick(c, 3);
    o.fsdp.prefetch_depth = pick(c, 4);
    o.one_unit = pick(c, 4) == 0;
    o.recompute.every = pick(c, 3);
    o.sequence_parallel = tp_size(&o) > 1 && pick(c, 2) == 0;
    o.seed = tsri_rng_word(c->key, c->index++);
    o.optim = (tsr_optimizer_options){.eps = 1e-4, .weight_decay = 0.1};
    return o;
}

static void print_job(const tsri_job_options *o, int round)
{
    const tsri_model_spec *m = &o->model;

    if (tsr_test_rank() != 0) {
        return;
    }
    (void)fprintf(stderr,
                  "round %d: %s=%d,%s=%d,%s=%d preset %s reshard %d prefetch %d one_unit %d "
                  "checkpoint %d sequence %d, %d x %lld x %lld tokens\n",
                  round, o->axes[0].name, o->axes[0].size, o->axes[1].name, o->axes[1].size,
                  o->axes[2].name, o->axes[2].size, o->preset, (int)o->fsdp.reshard_after_forward,
                  o->fsdp.prefetch_depth, (int)o->one_unit, o->recompute.every,
                  (int)o->sequence_parallel, o->micro_batches, (long long)o->batch,
                  (long long)o->seq);
    (void)fprintf(
        stderr,
        "  %s layers %d heads %d kv %d dim %lld head_dim %lld ffn %lld vocab %lld tied %d\n",
        tsri_model_arch_name(m), m->layers, m->heads, m->kv_heads, (long long)m->dim,
        (long long)m->head_dim, (long long)m->ffn, (long long)m->vocab, (int)m->tied);
}

/* ---- the same on one rank ---- */

static tsr_status open_single(tsr_world *world, const tsri_job_options *o, tsri_job *job)
{
    const tsr_mesh_axis axis = {"copies", tsr_world_size(world)};
    const int64_t shape[2] = {o->batch, o->seq};
    tsr_layout layout;

    memset(job, 0, sizeof(*job));
    job->world = world;
    job->options = *o;
    job->row_count = o->batch;
    TSR_TRY(tsr_mesh_create(axis.size, &axis, 1, NULL, &job->mesh));
    TSR_TRY(tsr_comm_open(world, job->mesh, NULL, &job->comm));
    TSR_TRY(tsri_comm_claim_axis(job->comm, "copies", "one rank"));
    TSR_TRY(tsri_model_create(job->comm, &o->model, &job->model));
    TSR_TRY(tsr_fully_shard(job->model, NULL));
    TSR_TRY(tsr_module_materialize(job->model, o->seed));
    TSR_TRY(tsr_module_params(job->model, &job->params, &job->param_count));
    TSR_TRY(
        tsr_optimizer_create(job->comm, job->params, job->param_count, &o->optim, &job->optimizer));
    TSR_TRY(tsr_tape_create(job->comm, &job->tape));
    TSR_TRY(tsr_layout_data(job->comm, shape, 2, &layout));
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->ids));
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->labels));
    for (int i = 0; i < o->micro_batches; i++) {
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "ids", &job->ids[i]));
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "labels", &job->labels[i]));
    }
    return TSR_OK;
}

static void close_single(tsri_job *job)
{
    for (int i = 0; i < job->options.micro_batches; i++) {
        tsr_dtensor_release(&job->ids[i]);
        tsr_dtensor_release(&job->labels[i]);
    }
    tsri_free(&job->ids);
    tsri_free(&job->labels);
    tsr_tape_destroy(&job->tape);
    tsr_optimizer_destroy(&job->optimizer);
    tsr_module_release(&job->model);
    tsr_comm_release(&job->comm);
    tsr_mesh_release(&job->mesh);
}

/* ---- running and remembering ---- */

typedef struct record {
    tsri_step_result result[STEPS];
    float *grad[MAX_PARAMS], *final[MAX_PARAMS]; /* whole tensors of the one-rank run */
} record;

/* Makes the whole micro-batch and keeps this rank's rows, so that no token depends on the layout.
 */
static void make_tokens(const tsri_job *job, int step, int micro, int32_t *ids, int32_t *labels)
{
    const int vocab = (int)job->options.model.vocab;
    const int64_t begin = job->row_begin * job->options.seq;
    const int64_t end = begin + job->row_count * job->options.seq;
    chance c = {tsri_rng_key(job->options.seed, 77, (uint64_t)step, (uint64_t)micro), 0};

    for (int64_t at = 0; at < job->options.batch * job->options.seq; at++) {
        const int id = pick(&c, vocab);
        const int label = pick(&c, 4) == 0 ? TSR_IGNORE_INDEX : pick(&c, vocab);

        if (at >= begin && at < end) {
            ids[at - begin] = id;
            labels[at - begin] = label;
        }
    }
}

static tsr_status write_step(tsri_job *job, int step)
{
    const size_t count = (size_t)(job->row_count * job->options.seq);
    int32_t *ids = NULL;
    int32_t *labels = NULL;

    TSR_TRY(tsri_alloc(count, sizeof(*ids), &ids));
    TSR_TRY(tsri_alloc(count, sizeof(*labels), &labels));
    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        make_tokens(job, step, micro, ids, labels);
        TSR_TRY(tsri_job_write_batch(job, micro, ids, labels));
    }
    tsri_free(&ids);
    tsri_free(&labels);
    return TSR_OK;
}

static tsr_status read_f32(const tsri_job *job, tsr_buffer *buffer, size_t offset, int64_t count,
                           float **out)
{
    TSR_TRY(tsri_alloc((size_t)count, sizeof(float), out));
    if (count == 0) {
        return TSR_OK; /* offset may be anything */
    }
    TSR_TRY(tsri_read(buffer, offset, *out, (size_t)count * sizeof(float),
                      tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

typedef struct look {
    record *r;
    bool compare;
    int step;
    double floor; /* smaller gradients are measured by this */
    double worst_grad;
    char where[96];
} look;

/* The bias of keys has no gradient but rounding without rotary positions. */
static bool is_noise(const tsr_param *p)
{
    return strstr(tsr_param_name(p), ".attn.k.bias") != NULL;
}

/* Largest difference of what this rank owns of p from the whole tensor. */
static double compare_piece(const tsr_param *p, const float *have, const float *whole, double scale)
{
    double worst = 0.0;

    const tsri_block b = p->master.piece.block;
    for (int64_t e = p->master.piece.begin; e < p->master.piece.end; e++) {
        const int64_t row = b.first_row + e / b.cols;
        const int64_t col = b.first_col + e % b.cols;
        const double d = fabs((double)have[e - p->master.piece.begin] -
                              (double)whole[row * b.global_cols + col]);

        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst > 0.0 ? worst / scale : worst;
}

static double largest(const float *values, int64_t count)
{
    double most = 0.0;

    for (int64_t i = 0; values != NULL && i < count; i++) {
        most = fmax(most, fabs((double)values[i]));
    }
    return most;
}

static tsr_status look_at_gradients(void *context, tsri_job *job)
{
    look *l = context;

    for (int i = 0; i < job->param_count && l->step == 0; i++) {
        const tsr_param *p = job->params[i];
        const int64_t count = tsri_param_own_count(p);
        const tsri_rest *grad = NULL;
        float *have = NULL;
        double d = 0.0;

        TSR_TRY(tsri_param_get_grad(p, &grad));
        TSR_TRY(read_f32(job, grad->buffer, grad->offset, count, &have));
        if (!l->compare) {
            l->r->grad[i] = have;
            continue;
        }
        d = compare_piece(p, have, l->r->grad[i],
                          fmax(largest(l->r->grad[i], tsr_param_count(p)), l->floor));
        if (!is_noise(p) && !(d <= l->worst_grad)) {
            l->worst_grad = d;
            (void)snprintf(l->where, sizeof(l->where), "%s", tsr_param_name(p));
        }
        tsri_free(&have);
    }
    return TSR_OK;
}

static tsr_status run_steps(tsri_job *job, look *l, tsri_step_result *results)
{
    const tsri_step_hooks hooks = {.gradients = look_at_gradients, .context = l};

    for (l->step = 0; l->step < STEPS; l->step++) {
        TSR_TRY(write_step(job, l->step));
        TSR_TRY(tsri_job_step(job, l->step, lr, 1.0, &hooks, &results[l->step]));
    }
    return TSR_OK;
}

static tsr_status record_single(tsr_world *world, const tsri_job_options *o, record *r)
{
    look l = {.r = r};
    tsri_job job;

    TSR_TRY(open_single(world, o, &job));
    if (job.param_count > MAX_PARAMS) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "%d parameters", job.param_count);
    }
    TSR_TRY(run_steps(&job, &l, r->result));
    for (int i = 0; i < job.param_count; i++) {
        TSR_TRY(read_f32(&job, job.params[i]->master.buffer, job.params[i]->master.offset,
                         tsr_param_count(job.params[i]), &r->final[i]));
    }
    close_single(&job);
    return TSR_OK;
}

static void check_results(const tsri_step_result *have, const tsri_step_result *want)
{
    for (int i = 0; i < STEPS; i++) {
        CHECK(have[i].tokens == want[i].tokens);
        CHECK_EQ(have[i].skipped, want[i].skipped);
        CHECK_NEAR(have[i].loss, want[i].loss, tolerance * want[i].loss);
        CHECK_NEAR(have[i].grad_norm, want[i].grad_norm, tolerance * want[i].grad_norm);
    }
}

static tsr_status check_layout(tsr_world *world, const tsri_job_options *o, record *r)
{
    look l = {.r = r, .compare = true};
    tsri_step_result results[STEPS];
    tsri_job *job = NULL;

    TSR_TRY(tsri_job_open(world, o, &job));
    for (int i = 0; i < job->param_count; i++) {
        l.floor = fmax(l.floor, largest(r->grad[i], tsr_param_count(job->params[i])) / 64);
    }
    TSR_TRY(run_steps(job, &l, results));
    check_results(results, r->result);
    CHECK_NEAR(l.worst_grad, 0.0, tolerance);
    if (!(l.worst_grad <= tolerance)) {
        CHECK_STR(l.where, "as on one rank");
    }
    for (int i = 0; i < job->param_count; i++) {
        const tsr_param *p = job->params[i];
        const size_t offset = p->master.offset;
        float *have = NULL;

        TSR_TRY(read_f32(job, p->master.buffer, offset, tsri_param_own_count(p), &have));
        if (!is_noise(p)) {
            /* eps 1e-4 lets a gradient's error of tolerance * 1 move an update by a fifth at most
             */
            CHECK_NEAR(compare_piece(p, have, r->final[i], 1.0), 0.0,
                       STEPS * lr * tolerance / 1e-4);
        }
        tsri_free(&have);
    }
    tsri_job_close(&job);
    return TSR_OK;
}

static void free_record(record *r)
{
    for (int i = 0; i < MAX_PARAMS; i++) {
        tsri_free(&r->grad[i]);
        tsri_free(&r->final[i]);
    }
}

static void check_job(tsr_world *world, const tsri_job_options *o)
{
    record r = {0};

    CHECK_OK(record_single(world, o, &r));
    CHECK_OK(check_layout(world, o, &r));
    free_record(&r);
}

static void run_rounds(int first, int count)
{
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    for (int round = first; round < first + count; round++) {
        chance c = {tsri_rng_key(2024, (uint64_t)round, (uint64_t)tsr_test_size(), 0), 0};
        const tsri_job_options o = random_job(&c);

        if (getenv("TSR_TEST_VERBOSE") != NULL) {
            print_job(&o, round);
        }
        check_job(world, &o);
    }
    tsr_world_close(&world);
}

/* Ranks of tp that hold nothing of a weight still own the same part of what tp replicates. */
static void uneven_tp(void)
{
    static const char *const presets[] = {"zero1", "zero2", "hfsdp"};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    for (int i = 0; i < 3; i++) {
        const tsri_job_options o = {.model = {.arch = TSRI_ARCH_GPT2,
                                              .layers = 3,
                                              .heads = 2,
                                              .dim = 24,
                                              .ffn = 1,
                                              .vocab = 5,
                                              .positions = 3,
                                              .init_std = 0.2,
                                              .tied = true},
                                    .axes = {{"tp", 2}, {"data", tsr_test_size() / 2}},
                                    .axis_count = 2,
                                    .preset = presets[i],
                                    .batch = 5,
                                    .seq = 3,
                                    .micro_batches = 2,
                                    .sequence_parallel = true,
                                    .optim = {.eps = 1e-4}};

        check_job(world, &o);
    }
    tsr_world_close(&world);
}

static void plain(void)
{
    run_rounds(0, ROUNDS / tsr_test_size());
}

static void under_race_check(void)
{
    (void)setenv("TSR_RACE_CHECK", "1", 1);
    run_rounds(ROUNDS, ROUNDS / tsr_test_size() / 3);
    (void)unsetenv("TSR_RACE_CHECK");
}

const tsr_test_case tsr_test_cases[] = {
    {"plain", plain},
    {"uneven_tp", uneven_tp},
    {"under_race_check", under_race_check},
    {NULL, NULL},
};
