/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_precision.c
 * Types and places of parameters, gradients and optimizer state: half types keep close to f32,
 * a loss scale that overflows skips the step on every rank, and offloading changes no bit.
 */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 2,
    STEPS = 3,
    VOCAB = 67,
    SEQ = 12,
    BATCH = 4,
    MICRO = 2
};

static tsri_job_options small_job(const char *preset)
{
    const int ranks = tsr_test_size();
    const int inner = ranks > 1 ? 2 : 1;

    return (tsri_job_options){
        .model = {.arch = TSRI_ARCH_LLAMA,
                  .layers = LAYERS,
                  .dim = 24,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn = 44,
                  .vocab = VOCAB},
        .axes = {{"replicate", ranks / inner}, {"shard", inner}},
        .axis_count = 2,
        .preset = preset,
        .batch = BATCH,
        .seq = SEQ,
        .micro_batches = MICRO,
        .seed = 7,
        .comm = {.record = true, .race_check = true},
    };
}

/* What a run left: its curve, and the elements that this rank owns. */
typedef struct curve {
    double loss[STEPS], norm[STEPS], scale[STEPS];
    bool skipped[STEPS];
    float *owned; /* of all parameters, one after the other */
    int64_t owned_count;
    size_t device[TSRI_MEM_COUNT], host[TSRI_MEM_COUNT];
    size_t shards, gradients; /* of its units, as they say */
} curve;

static tsr_status write_batches(tsri_job *job)
{
    int32_t ids[BATCH * SEQ];
    int32_t labels[BATCH * SEQ];

    for (int m = 0; m < job->options.micro_batches; m++) {
        for (int64_t r = 0; r < job->row_count; r++) {
            for (int64_t t = 0; t < SEQ; t++) {
                const int64_t at = ((m * BATCH + job->row_begin + r) * SEQ) + t;

                ids[(r * SEQ) + t] = (int32_t)((at * at + 5 * at) % VOCAB);
                labels[(r * SEQ) + t] = (int32_t)((at * 3 + 1) % VOCAB);
            }
        }
        TSR_TRY(tsri_job_write_batch(job, m, ids, labels));
    }
    return TSR_OK;
}

static tsr_status read_owned(const tsri_job *job, curve *out)
{
    tsr_stream *stream = tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE);
    int64_t at = 0;

    for (int i = 0; i < job->param_count; i++) {
        out->owned_count += tsri_param_own_count(job->params[i]);
    }
    TSR_TRY(tsri_alloc((size_t)out->owned_count, sizeof(float), &out->owned));
    for (int i = 0; i < job->param_count; i++) {
        const tsr_param *p = job->params[i];
        const int64_t n = tsri_param_own_count(p);

        TSR_TRY(tsri_rest_get(&p->master, p->master.piece.begin, p->master.piece.end,
                              out->owned + at, stream));
        at += n;
    }
    return TSR_OK;
}

/* What rests where, and of gradients, which do not rest on the device, what a rank keeps. */
static void read_places(const tsri_job *job, curve *out)
{
    tsr_unit_info units[2 * LAYERS + 3] = {{0}};

    CHECK(tsr_fsdp_units(job->model, units, 2 * LAYERS + 3) <= 2 * LAYERS + 3);
    for (int k = 0; k < TSRI_MEM_COUNT; k++) {
        out->device[k] = tsri_comm_device(job->comm)->bytes_kind[k];
        out->host[k] = tsri_comm_device(job->comm)->host_kind[k];
    }
    for (int i = 0; i < 2 * LAYERS + 3; i++) {
        out->shards += units[i].shard_bytes;
        out->gradients += units[i].grad_bytes;
    }
}

static tsr_status run_steps(tsr_world *world, const tsri_job_options *options, curve *out)
{
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_job_open(world, options, &job));
    TSR_TRY_GOTO(status, write_batches(job), close);
    for (int i = 0; i < STEPS; i++) {
        tsri_step_result result;

        TSR_TRY_GOTO(status, tsri_job_step(job, i, 1e-2, 1.0, NULL, &result), close);
        out->loss[i] = result.loss;
        out->norm[i] = result.grad_norm;
        out->scale[i] = result.loss_scale;
        out->skipped[i] = result.skipped;
    }
    TSR_TRY_GOTO(status, read_owned(job, out), close);
    CHECK_EQ(tsri_recorder_race_count(tsri_comm_device(job->comm)), 0);
    read_places(job, out);
close:
    tsri_job_close(&job);
    return status;
}

static tsr_world *open_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(
        tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu", .threads = 1}, &world));
    return world;
}

static curve run(tsr_world *world, const tsri_job_options *options)
{
    curve out = {0};

    CHECK_OK(run_steps(world, options, &out));
    return out;
}

/* ---- types ---- */

/* bits: of the type's mantissa. On the way to a logit some 12 values a block and 4 more are rounded
 * to half a unit; they add up as the root of their number, within 4 deviations, and a logit of size
 * 1 moves the loss by at most twice its error. The norm is off by as large a part of itself. */
static void check_near(const curve *got, const curve *want, int bits)
{
    const double tolerance = 4.0 * 2.0 * ldexp(1.0, -bits - 1) * sqrt(12.0 * LAYERS + 4.0);

    for (int i = 0; i < STEPS; i++) {
        CHECK_NEAR(got->loss[i], want->loss[i], tolerance);
        CHECK_NEAR(got->norm[i], want->norm[i], tolerance * want->norm[i]);
        CHECK(!got->skipped[i]);
    }
    CHECK(got->loss[STEPS - 1] < got->loss[0]);
    CHECK(got->norm[0] != want->norm[0]); /* it was not f32 */
}

static void half_types_keep_close(void)
{
    static const char *const presets[] = {"ddp", "zero2", "hsdp", "hfsdp"};
    tsr_world *world = open_world();

    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        tsri_job_options o = small_job(presets[i]);
        curve wide = run(world, &o);

        o.fsdp.param_dtype = TSR_BF16;
        o.fsdp.reduce_dtype = i % 2 == 0 ? TSR_F32 : TSR_BF16;
        curve bf16 = run(world, &o);

        o.fsdp.param_dtype = TSR_F16;
        o.fsdp.reduce_dtype = i % 2 == 0 ? TSR_F32 : TSR_F16;
        o.scale_loss = true;
        o.loss_scale.init = 0x1p10;
        curve f16 = run(world, &o);

        check_near(&bf16, &wide, 8);
        check_near(&f16, &wide, 11);
        CHECK(f16.scale[STEPS - 1] == 0x1p10);
        tsri_free(&wide.owned);
        tsri_free(&bf16.owned);
        tsri_free(&f16.owned);
    }
    tsr_world_close(&world);
}

/* Norms in f32 between blocks in bf16, and a head in f32: casts at the units' borders let them
 * compose, forward and backward. */
static tsr_status shard_mixed(tsr_module *model, const tsr_comm *comm)
{
    tsr_fsdp_options wide = {0};
    tsr_fsdp_options narrow = {.param_dtype = TSR_BF16};
    tsr_fsdp_options norm = {.output_dtype = TSR_BF16};
    char path[32];

    TSR_TRY(tsr_fsdp_preset(comm, "hsdp", &wide));
    memcpy(narrow.levels, wide.levels, sizeof(wide.levels));
    memcpy(norm.levels, wide.levels, sizeof(wide.levels));
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 1; k <= 2; k++) {
            (void)snprintf(path, sizeof(path), "layers.%d.norm%d", i, k);
            TSR_TRY(tsr_fully_shard(tsr_module_find(model, path), &norm));
        }
        TSR_TRY(tsr_fully_shard(tsr_llama_layer(model, i), &narrow));
    }
    TSR_TRY(tsr_fully_shard(tsr_module_find(model, "norm"), &wide));
    TSR_TRY(tsr_fully_shard(model, &wide));
    TSR_TRY(tsr_module_materialize(model, 7));
    return TSR_OK;
}

/* The job's units are its own; a model beside them is run on the job's tape and batches. */
static tsr_status run_mixed(tsri_job *job, tsr_dtype *logits_dtype, double *loss, double *norm)
{
    tsr_module *model = NULL;
    tsr_param *const *params = NULL;
    tsr_optimizer *optimizer = NULL;
    tsr_dtensor *logits = NULL;
    tsr_dtensor *value = NULL;
    tsr_status status = TSR_OK;
    int count = 0;

    TSR_TRY(tsri_model_create(job->comm, &job->options.model, &model));
    TSR_TRY_GOTO(status, shard_mixed(model, job->comm), release);
    TSR_TRY_GOTO(status, tsr_module_params(model, &params, &count), release);
    TSR_TRY_GOTO(status, tsr_optimizer_create(job->comm, params, count, NULL, &optimizer), release);
    TSR_TRY_GOTO(status, tsr_step_begin(job->tape, 0, job->labels, MICRO), release);
    for (int m = 0; m < MICRO; m++) {
        TSR_TRY_GOTO(status, tsr_tape_begin(job->tape, m), release);
        TSR_TRY_GOTO(status, tsr_module_call(model, job->tape, &job->ids[m], 1, &logits), release);
        *logits_dtype = tsr_dtensor_dtype(logits);
        TSR_TRY_GOTO(status, tsr_op_cross_entropy(job->tape, logits, job->labels[m], &value),
                     release);
        TSR_TRY_GOTO(status, tsr_backward(job->tape, value), release);
    }
    TSR_TRY_GOTO(status, tsr_clip_grad_norm(optimizer, job->tape, 0.0), release);
    TSR_TRY_GOTO(status, tsr_grad_norm_read(optimizer, norm, NULL), release);
    TSR_TRY_GOTO(status, tsr_step_loss(job->tape, loss), release);
    TSR_TRY_GOTO(status, tsr_step_end(job->tape), release);
release:
    tsr_optimizer_destroy(&optimizer);
    tsr_module_release(&model);
    return status;
}

static void types_compose(void)
{
    const double tolerance = 4.0 * 2.0 * ldexp(1.0, -9) * sqrt(12.0 * LAYERS + 4.0);
    tsr_world *world = open_world();
    tsri_job_options o = small_job("hsdp");
    curve wide = run(world, &o);
    tsri_job *job = NULL;
    tsr_dtype dtype = TSR_DTYPE_DEFAULT;
    double loss = 0.0;
    double norm = 0.0;

    REQUIRE_OK(tsri_job_open(world, &o, &job));
    CHECK_OK(write_batches(job));
    CHECK_OK(run_mixed(job, &dtype, &loss, &norm));
    CHECK_EQ(dtype, TSR_F32);
    CHECK_NEAR(loss, wide.loss[0], tolerance);
    CHECK_NEAR(norm, wide.norm[0], tolerance * wide.norm[0]);
    CHECK(norm != wide.norm[0]); /* it was not all f32 */
    tsri_job_close(&job);
    tsri_free(&wide.owned);
    tsr_world_close(&world);
}

/* Powers of two are exact: with f32 everywhere the scale changes no bit of the update. */
static void a_scale_alone_changes_nothing(void)
{
    tsr_world *world = open_world();
    tsri_job_options o = small_job("hsdp");
    curve plain = run(world, &o);

    o.scale_loss = true;
    o.loss_scale.init = 0x1p20;
    o.loss_scale.interval = 2;
    curve scaled = run(world, &o);

    for (int i = 0; i < STEPS; i++) {
        CHECK(scaled.loss[i] == plain.loss[i]);
        CHECK(scaled.norm[i] == plain.norm[i]);
    }
    CHECK(scaled.scale[0] == 0x1p20 && scaled.scale[1] == 0x1p21);
    for (int64_t i = 0; i < plain.owned_count; i++) {
        CHECK(scaled.owned[i] == plain.owned[i]);
    }
    tsri_free(&plain.owned);
    tsri_free(&scaled.owned);
    tsr_world_close(&world);
}

/* 2^120 overflows any gradient in f16; 2^-118 of it does not. */
static void an_overflow_skips_everywhere(void)
{
    tsr_world *world = open_world();
    tsri_job_options o = small_job("hsdp");

    o.fsdp.param_dtype = TSR_F16;
    o.scale_loss = true;
    o.loss_scale.init = 0x1p120;
    o.loss_scale.max = 0x1p120;
    o.loss_scale.backoff = 0x1p-118;
    curve got = run(world, &o);

    CHECK(got.skipped[0] && !got.skipped[1] && !got.skipped[2]);
    CHECK(!isfinite(got.norm[0]) && isfinite(got.norm[1]));
    CHECK(got.scale[0] == 4.0 && got.scale[STEPS - 1] == 4.0);
    CHECK(got.loss[1] == got.loss[0]); /* nothing had changed */
    CHECK(got.loss[2] < got.loss[1]);
    tsri_free(&got.owned);
    tsr_world_close(&world);
}

/* ---- places ---- */

enum {
    PARAMS = 1,
    GRADS = 2,
    OPTIM = 4
};

static void check_places(const curve *moved, const curve *plain, unsigned what)
{
    static const struct {
        unsigned bit;
        tsri_mem_kind kind;
    } rows[] = {{PARAMS, TSRI_MEM_PARAM}, {GRADS, TSRI_MEM_GRAD}, {OPTIM, TSRI_MEM_OPTIM}};

    CHECK_EQ(plain->device[TSRI_MEM_PARAM], plain->shards);
    for (int i = 0; i < 3; i++) {
        const bool away = (what & rows[i].bit) != 0;
        const tsri_mem_kind kind = rows[i].kind;

        /* What rests of parameters in half types is less where all of it is on the device. */
        const size_t bytes = kind == TSRI_MEM_GRAD    ? plain->gradients
                             : kind == TSRI_MEM_PARAM ? moved->shards
                                                      : plain->device[kind];

        CHECK_EQ(moved->host[kind], away ? bytes : 0);
        CHECK_EQ(moved->device[kind], away || kind == TSRI_MEM_GRAD ? 0 : bytes);
        CHECK(bytes > 0);
    }
}

static void check_offload(tsr_world *world, tsri_job_options o, const curve *plain, unsigned what)
{
    o.fsdp.offload_params = (what & PARAMS) != 0;
    o.fsdp.offload_grads = (what & GRADS) != 0;
    o.optim.offload = (what & OPTIM) != 0;
    curve moved = run(world, &o);

    for (int i = 0; i < STEPS; i++) {
        CHECK(moved.loss[i] == plain->loss[i]);
        CHECK(moved.norm[i] == plain->norm[i]);
    }
    REQUIRE_EQ(moved.owned_count, plain->owned_count);
    for (int64_t i = 0; i < plain->owned_count; i++) {
        CHECK(moved.owned[i] == plain->owned[i]);
    }
    check_places(&moved, plain, what);
    tsri_free(&moved.owned);
}

static void check_all_places(const char *preset, tsr_dtype dtype, int micro_batches)
{
    tsr_world *world = open_world();
    tsri_job_options o = small_job(preset);

    o.fsdp.param_dtype = dtype;
    o.micro_batches = micro_batches;
    curve plain = run(world, &o);
    for (unsigned what = 1; what <= (PARAMS | GRADS | OPTIM); what++) {
        check_offload(world, o, &plain, what);
    }
    tsri_free(&plain.owned);
    tsr_world_close(&world);
}

/* Where gradients are whole they are added up over micro-batches by the kernels that make them,
 * unless they are offloaded; that rounds otherwise, so there is one micro-batch. */
static void offload_changes_no_bit(void)
{
    const int micro = tsr_test_size() > 1 ? MICRO : 1;

    check_all_places("ddp", TSR_F32, 1);
    check_all_places("zero1", TSR_F32, 1);
    check_all_places("zero2", TSR_F32, micro);
    check_all_places("fsdp", TSR_F32, micro);
    check_all_places("hsdp", TSR_F32, micro);
    check_all_places("hfsdp", TSR_F32, micro);
    check_all_places("hfsdp", TSR_BF16, micro);
}

/* All zeros, in pieces of a row: what a rank does not own comes from who does. */
static tsr_status load_zeros(tsri_job *job)
{
    for (int i = 0; i < job->param_count; i++) {
        tsr_param *p = job->params[i];
        const float row[VOCAB + 64] = {0};

        const tsri_block block = p->master.piece.block;
        CHECK(block.cols <= (int64_t)(sizeof(row) / sizeof(row[0])));
        for (int64_t r = 0; r < block.rows; r++) {
            TSR_TRY(tsri_param_put(p, r * block.cols, (r + 1) * block.cols, row));
        }
    }
    return TSR_OK;
}

/* Weights that are loaded into a model that has run are those that it runs with next: without any,
 * every token is as likely as another. */
static void what_is_loaded_counts(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};
    const double tolerance = 4.0 * (double)FLT_EPSILON * log(VOCAB); /* a few roundings of it */
    tsr_world *world = open_world();

    for (int i = 0; i < 12; i++) {
        tsri_job_options o = small_job(presets[i / 2]);
        tsri_step_result before = {0};
        tsri_step_result after = {0};
        tsri_job *job = NULL;

        o.fsdp.param_dtype = i % 2 == 0 ? TSR_F32 : TSR_BF16;
        o.forward_only = true;
        REQUIRE_OK(tsri_job_open(world, &o, &job));
        CHECK_OK(write_batches(job));
        CHECK_OK(tsri_job_step(job, 0, 0.0, 1.0, NULL, &before));
        CHECK_OK(load_zeros(job));
        CHECK_OK(tsri_job_step(job, 1, 0.0, 1.0, NULL, &after));
        CHECK(fabs(before.loss - log(VOCAB)) > tolerance);
        CHECK_NEAR(after.loss, log(VOCAB), tolerance);
        tsri_job_close(&job);
    }
    tsr_world_close(&world);
}

static void check_activations(tsri_job_options o, int every)
{
    tsr_world *world = open_world();

    o.model.layers = 2 * LAYERS;
    o.recompute.every = every;
    curve plain = run(world, &o);
    o.recompute.offload = true;
    curve moved = run(world, &o);

    for (int i = 0; i < STEPS; i++) {
        CHECK(moved.loss[i] == plain.loss[i]);
        CHECK(moved.norm[i] == plain.norm[i]);
    }
    REQUIRE_EQ(moved.owned_count, plain.owned_count);
    for (int64_t i = 0; i < plain.owned_count; i++) {
        CHECK(moved.owned[i] == plain.owned[i]);
    }
    CHECK_EQ(plain.host[TSRI_MEM_ACTIVATION], 0);
    CHECK(moved.host[TSRI_MEM_ACTIVATION] > 0);
    tsri_free(&plain.owned);
    tsri_free(&moved.owned);
    tsr_world_close(&world);
}

/* Every block, every second, in bf16, with all else offloaded too, and the residual stream split
 * over tp. */
static void offloaded_activations_change_no_bit(void)
{
    tsri_job_options o = small_job("hsdp");

    check_activations(o, 1);
    check_activations(o, 2);
    o.recompute.keep.at[o.recompute.keep.count++] = "attention";
    o.recompute.keep.at[o.recompute.keep.count++] = "linear";
    check_activations(o, 1);
    o.fsdp.param_dtype = TSR_BF16;
    o.fsdp.offload_params = true;
    o.fsdp.offload_grads = true;
    check_activations(o, 1);
    o = small_job("hsdp");
    o.axes[0].name = "shard";
    o.axes[1].name = "tp";
    o.sequence_parallel = true;
    check_activations(o, 1);
}

/* What is kept instead of computed again is the same, and is less than all. */
static void kept_results_change_no_bit(void)
{
    static const char *const names[] = {"attention", "linear",   "rmsnorm",
                                        "rope",      "silu_mul", "add"};
    tsr_world *world = open_world();
    tsri_job_options o = small_job("hsdp");

    o.axes[0].name = "shard";
    o.axes[1].name = "tp";
    for (int sequence = 0; sequence <= 1; sequence++) {
        o.sequence_parallel = sequence != 0;
        o.recompute.every = 1;
        o.recompute.keep.count = 0;
        curve plain = run(world, &o);

        for (int n = 1; n <= 6; n++) {
            o.recompute.keep.at[n - 1] = names[n - 1];
            o.recompute.keep.count = n;
            curve kept = run(world, &o);

            for (int i = 0; i < STEPS; i++) {
                CHECK(kept.loss[i] == plain.loss[i]);
                CHECK(kept.norm[i] == plain.norm[i]);
            }
            CHECK_EQ(kept.owned_count, plain.owned_count);
            for (int64_t i = 0; plain.owned != NULL && kept.owned != NULL && i < kept.owned_count;
                 i++) {
                CHECK(kept.owned[i] == plain.owned[i]);
            }
            tsri_free(&kept.owned);
        }
        tsri_free(&plain.owned);
    }
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"what is loaded counts", what_is_loaded_counts},
    {"half types keep close", half_types_keep_close},
    {"types compose", types_compose},
    {"a scale alone changes nothing", a_scale_alone_changes_nothing},
    {"an overflow skips everywhere", an_overflow_skips_everywhere},
    {"offload changes no bit", offload_changes_no_bit},
    {"offloaded activations change no bit", offloaded_activations_change_no_bit},
    {"kept results change no bit", kept_results_change_no_bit},
    {NULL, NULL},
};
