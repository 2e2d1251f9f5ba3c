/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file job.h
 * A training job put together: mesh, comm, model, placements, units, optimizer, tape; and its step.
 *
 * train, verify, bench and the dry run are the same job with other data. On a sim world the same
 * calls make the dry run: sizes, order and memory without bytes.
 */
#pragma once

#include "tessera/fsdp.h"
#include "tessera/world.h"

#include "fsdp/fsdp.h"
#include "nn/model.h"
#include "optim/optim.h"

#define TSRI_JOB_MAX_NAMES 64

/** Words of the configuration, borrowed. */
typedef struct tsri_job_names {
    const char *at[TSRI_JOB_MAX_NAMES];
    int count;
} tsri_job_names;

/** Activation checkpointing: blocks that backward runs again. */
typedef struct tsri_job_recompute {
    int every;           /* n-th block; 0: none */
    tsri_job_names keep; /* operations that those run once, by name */
    bool offload;        /* what those blocks keep waits in host memory */
} tsri_job_recompute;

typedef struct tsri_job_options {
    tsri_model_spec model;
    tsr_mesh_axis axes[TSR_MESH_MAX_AXES];
    int axis_count;
    int data_axis_count;                      /* of data_axes; 0: all but the tp axis */
    const char *data_axes[TSR_MESH_MAX_AXES]; /* axes that carry data, by name */
    const char *tp_axis;       /* axis of the model's tp plan; NULL: "tp" if the mesh has it */
    const char *preset;        /* of tsr_fsdp_preset; NULL: TSRI_PRESET_DEFAULT */
    tsr_fsdp_options fsdp;     /* dtypes, reshard, prefetch; levels and patterns are not read */
    tsri_job_names split_cols; /* patterns: split along dim 1 */
    tsri_job_names ignored;    /* patterns: taken by no unit */
    tsr_optimizer_options optim;
    tsr_loss_scale_options loss_scale;
    uint64_t seed;
    int64_t batch; /* sequences per micro-batch over the whole job */
    int64_t seq;
    int micro_batches; /* 0: 1 */
    tsri_job_recompute recompute;
    bool rough;             /* a dry run plans memory in less time, some percent larger */
    int dry_threads;        /* per rank, that a dry run reckons workspace with; 0: 1 */
    bool no_tp;             /* no tp plan: tp is an axis like the others */
    bool sequence_parallel; /* the residual stream is Shard(sequence) on tp */
    bool one_unit;          /* the whole model is one unit; default: one per block */
    bool scale_loss;        /* dynamic loss scaling by loss_scale */
    bool forward_only;      /* no optimizer */
    tsr_comm_options comm;
} tsri_job_options;

typedef struct tsri_job {
    tsr_world *world; /* borrowed */
    tsri_job_options options;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
    tsr_param *const *params; /* borrowed */
    int param_count;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor **ids, **labels;  /* one per micro-batch, I32 [batch, seq] */
    int64_t row_begin, row_count; /* this rank's rows of each micro-batch */
} tsri_job;

typedef struct tsri_step_result {
    double loss, grad_norm, tokens;
    double loss_scale; /* of the next step; 1 without scaling */
    bool skipped;
} tsri_step_result;

/** Looks into a step; any may be NULL. Failures end the step. */
typedef struct tsri_step_hooks {
    tsr_status (*logits)(void *context, tsri_job *job, int micro_batch, tsr_dtensor *logits);
    tsr_status (*gradients)(void *context, tsri_job *job); /* before clipping */
    void *context;
} tsri_step_hooks;

/** Collective over the world. Everything up to materialised parameters and an optimizer. */
tsr_status tsri_job_open(tsr_world *world, const tsri_job_options *options, tsri_job **out);
void tsri_job_close(tsri_job **pointer);
/** This rank's rows [row_count, seq] of micro-batch micro. */
tsr_status tsri_job_write_batch(tsri_job *job, int micro, const int32_t *ids,
                                const int32_t *labels);
/** Collective. One optimizer step (or forward pass alone); blocks for the result. */
tsr_status tsri_job_step(tsri_job *job, int64_t step, double lr, double clip_norm,
                         const tsri_step_hooks *hooks, tsri_step_result *out);

/** Memory and traffic of one step, as the dry run found them. */
typedef struct tsri_step_memory {
    size_t kind_bytes[TSRI_MEM_COUNT]; /* at the step's peak */
    size_t kind_most[TSRI_MEM_COUNT];  /* most of each kind by itself */
    size_t fixed_bytes;                /* parameters, optimizer, tables */
    size_t arena_bytes;                /* the step arena */
    size_t total_bytes;
    size_t host_bytes; /* what rests in host memory besides; part of none of the above */
    const char *peak_label;
} tsri_step_memory;
void tsri_job_summarize(const tsri_job *job, tsri_step_memory *out);
/** Name of the preset that o asks for. */
const char *tsri_job_preset(const tsri_job_options *o);
/** Local. Whether options are legal on size ranks, as far as placements alone say. */
tsr_status tsri_job_check(const tsri_job_options *options, int size);
/** Dry run on a sim world as rank of size: two steps, of which the second is recorded, because
 *  what a step updated is gathered in the next one. *out is the sim job, for its arena plan, ledger
 *  and summary. *world_out must outlive it. */
tsr_status tsri_job_dry_run(const tsri_job_options *options, int rank, int size,
                            tsr_world **world_out, tsri_job **out);
