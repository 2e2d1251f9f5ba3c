/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file model.h
 * A model by description: its architecture, and the sizes that config files and checkpoints give.
 *
 * What folders above want to know of an architecture stands in its row of the table
 * (tsri_arch_get), which gpt2.c and llama.c fill: which sizes it has, how its parameters are called
 * in files, how tensor parallelism splits it. Nobody above asks which architecture it is.
 *
 * Threads: pure functions but for tsri_model_create.
 */
#pragma once

#include "tessera/gpt2.h"
#include "tessera/llama.h"

#include "nn/nn.h"

typedef enum tsri_arch {
    TSRI_ARCH_LLAMA = 0,
    TSRI_ARCH_GPT2,
    TSRI_ARCH_COUNT
} tsri_arch;

/** Sizes of a decoder; 0: what the architecture has by default. */
typedef struct tsri_model_spec {
    tsri_arch arch;
    int layers, heads, kv_heads;
    int64_t dim, ffn, vocab, head_dim;
    int64_t positions; /* that are learned */
    double rope_theta, norm_eps, dropout, init_std;
    bool attention_bias, mlp_bias;
    bool tied; /* the head is the embedding */
} tsri_model_spec;

/** What not every decoder has. */
typedef enum tsri_model_size {
    TSRI_SIZE_KV_HEADS = 1 << 0,
    TSRI_SIZE_HEAD_DIM = 1 << 1, /* else dim / heads */
    TSRI_SIZE_POSITIONS = 1 << 2,
    TSRI_SIZE_ROPE = 1 << 3,
    TSRI_SIZE_DROPOUT = 1 << 4,
    TSRI_SIZE_BIASES = 1 << 5 /* may be chosen */
} tsri_model_size;

/** Where the parameters of a module lie in Hugging Face's files. */
typedef struct tsri_file_name {
    const char *ours, *theirs; /* module, within a block or of the root; NULL ends a list */
    bool transposed;           /* the file holds its weight as [in, out] */
    int part, parts;           /* ours is part of parts equal blocks of out rows */
} tsri_file_name;

typedef enum tsri_split {
    TSRI_SPLIT_VOCAB, /* rows of the embedding */
    TSRI_SPLIT_COLUMN,
    TSRI_SPLIT_ROW
} tsri_split;

/** How tensor parallelism splits modules. */
typedef struct tsri_split_rule {
    const char *modules; /* a pattern; NULL ends a list */
    tsri_split split;
    bool begins_stream; /* what comes out is the residual stream */
    bool is_head;       /* not there in a tied model */
} tsri_split_rule;

typedef struct tsri_arch_info {
    const char *name;         /* of model.arch, and model_type in config.json */
    unsigned sizes;           /* of tsri_model_size */
    tsri_model_spec defaults; /* what a description leaves open */
    bool gated;               /* a gate beside up in the mlp */
    bool biased;              /* projections and norms have biases, always */
    const tsri_split_rule *splits;
    const char *block_name; /* "model.layers": blocks' first words in files */
    const tsri_file_name *root_names, *block_names;
    tsr_status (*create)(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out);
} tsri_arch_info;

const tsri_arch_info *tsri_arch_get(tsri_arch arch);
/** "llama", "gpt2" of spec. */
const char *tsri_model_arch_name(const tsri_model_spec *spec);
bool tsri_model_has(const tsri_model_spec *spec, tsri_model_size size);

/** The sizes called name ("llama-tiny", ...); TSR_ERR_INVALID names the nearest. */
tsr_status tsri_model_preset(const char *name, tsri_model_spec *out);
/** "llama-tiny, llama-25m, ...". */
const char *tsri_model_preset_names(void);

tsr_status tsri_model_create(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out);
/** Block index of model, or NULL; borrowed. */
tsr_module *tsri_model_layer(tsr_module *model, int index);
/** The index-th module that is a unit by default: blocks, then embedding and head where they are
 *  two; NULL: there are no more. The root, which is one too, is not among them. */
tsr_module *tsri_model_unit(const tsri_model_spec *spec, tsr_module *model, int index);

int tsri_model_kv_heads(const tsri_model_spec *spec);
int64_t tsri_model_head_dim(const tsri_model_spec *spec);
/** Parameters, by arithmetic. */
int64_t tsri_model_param_count(const tsri_model_spec *spec);
