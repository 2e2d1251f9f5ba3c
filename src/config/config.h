/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file config.h
 * A training run's configuration: read from YAML and key=value words, checked, written back.
 *
 * Files of a run: the configuration as it was read has open ends (a mesh of what is left), and is
 * fitted to a number of ranks before it is used.
 *
 * Threads: one thread at a time per configuration.
 */
#pragma once

#include "base/growing_text.h"

#include "tessera/optim.h"

#include "checkpoint/hf.h"
#include "config/mesh_text.h"
#include "config/options.h"
#include "nn/model.h"

enum {
    TSRI_CONFIG_MAX_OPTIONS = 96
};

typedef struct tsri_config_model {
    char *preset, *hf, *arch;
    int64_t layers, dim, heads, kv_heads, ffn, vocab, positions, head_dim; /* 0: not given */
    double rope_theta, norm_eps, dropout;
    int tied; /* auto, true, false */
    bool attention_bias, mlp_bias;
} tsri_config_model;

typedef struct tsri_config_parallel {
    int preset;
    bool sequence_parallel;
    int reshard_after_forward; /* of tsr_reshard */
    int64_t prefetch;
    int units;        /* block, model */
    int param_dtype;  /* auto, f32, bf16, f16 */
    int reduce_dtype; /* f32, bf16, f16 */
    int activation_checkpointing;
    int tp_plan;           /* default, none */
    int backward_prefetch; /* of tsr_prefetch, minus one */
    int64_t reshard_group;
    tsri_option_names offload, data_axes, activation_keep, shard_dims, ignored;
} tsri_config_parallel;

typedef struct tsri_config_train {
    int64_t steps, batch, micro_batches, seq, warmup, seed;
    double lr, min_lr, clip_norm;
    int loss_scale; /* auto, none, dynamic */
    double loss_scale_init;
    int64_t loss_scale_interval;
    int schedule; /* of tsr_schedule_kind, minus one */
} tsri_config_train;

typedef struct tsri_config_optim {
    int kind; /* of tsr_optimizer_kind, minus one */
    double betas[2];
    double eps, weight_decay, momentum;
    bool nesterov;
    tsri_option_groups groups;
} tsri_config_optim;

typedef struct tsri_config {
    tsri_config_model model;
    tsri_mesh_text mesh; /* no axes: auto */
    tsri_config_parallel parallel;
    tsri_config_train train;
    tsri_config_optim optim;
    struct {
        int kind;
        char *path;
    } data;
    struct {
        int64_t every, keep;
        bool async;
        char *resume;
    } checkpoint;
    struct {
        int64_t every, batches;
    } eval;
    struct {
        int64_t every;
        bool tensorboard, trace;
    } log;
    struct {
        char *dir;
        int backend;    /* auto, cpu */
        int bind;       /* auto, none */
        int rank_order; /* host, launcher */
        double timeout_s;
        int64_t threads;
        bool probe;    /* with more than one rank */
        char *cluster; /* "": none */
    } run;

    /* Beyond the keys. */
    char *file;                                       /* NULL: none was read */
    tsri_option_place place[TSRI_CONFIG_MAX_OPTIONS]; /* by row of the table */
    bool is_set[TSRI_CONFIG_MAX_OPTIONS];
    char mesh_reason[192];                              /* of a mesh that auto chose, or "" */
    tsri_model_spec spec;                               /* what model says */
    char model_notice[TSRI_HF_NOTICE_BYTES];            /* of model.hf, see hf.h */
    tsr_optimizer_group groups[TSRI_OPTION_MAX_GROUPS]; /* what optim.groups says */
} tsri_config;

/**
 * Read file (NULL: only defaults), then words[count] of the form key=value over it, and check what
 * can be checked without knowing the number of ranks; the model's folder is looked at.
 *
 * TSR_ERR_IO, TSR_ERR_FORMAT, TSR_ERR_INVALID, TSR_ERR_UNSUPPORTED: the message begins with
 * "FILE:LINE: " or "command line: " where a place can be named.
 */
tsr_status tsri_config_load(const char *file, const char *const *words, int count,
                            tsri_config **out);
void tsri_config_free(tsri_config **pointer);

/** Find out what the model is; tsri_config_load does. */
tsr_status tsri_config_read_model(tsri_config *config);

/** Every key with its value, as YAML. */
void tsri_config_print(const tsri_config *config, tsri_text *text);

/** Whether parallel.offload names what. */
bool tsri_config_offloads(const tsri_config_parallel *parallel, const char *what);

/** Whether parallel.offload names what. */
bool tsri_config_offloads(const tsri_config_parallel *parallel, const char *what);
