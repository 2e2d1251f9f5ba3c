/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file verify.h
 * Replay of a reference trajectory on a layout, compared number by number.
 *
 * A case is a folder: config.json and weights as Hugging Face writes them, train.json (the run),
 * tokens.safetensors, expect.json and expect.safetensors; tests/golden/README.md has the format.
 * The run is in f32. Every rank reads and compares its own pieces; largest errors are then taken
 * over all ranks.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "checkpoint/hf.h"
#include "job/job.h"

enum {
    TSRI_VERIFY_MAX_ROWS = 10,
    TSRI_VERIFY_WHERE_BYTES = 96
};

typedef struct tsri_verify_options {
    const char *folder;
    const char *mesh;   /* "replicate=2,shard=2,tp=2"; NULL: every rank on "shard" */
    const char *preset; /* of tsr_fsdp_preset; NULL: hsdp */
    bool sequence_parallel;
    int recompute_every; /* activation checkpointing of every n-th block; 0: none */
    tsr_reshard reshard;
    int prefetch_depth; /* as tsr_fsdp_options: units ahead plus one; 0: default */
    /* For tests of the comparison itself: called where a step's gradients are final, before they
     * are looked at. NULL: nothing. */
    tsr_status (*disturb)(void *context, tsri_job *job, int64_t step);
    void *disturb_context;
} tsri_verify_options;

/** A quantity and how far it is off. */
typedef struct tsri_verify_row {
    const char *quantity; /* "loss" */
    const char *measure;  /* "relative" */
    double error, bound;
    char where[TSRI_VERIFY_WHERE_BYTES]; /* the step or parameter of the largest error */
    bool ok;                             /* error <= bound; never for NaN */
} tsri_verify_row;

typedef struct tsri_verify_report {
    const char *arch; /* "llama" */
    char mesh[192];
    char weights[TSRI_HF_NOTICE_BYTES]; /* which files were read, and how */
    const char *preset;
    int64_t params, batch, seq;
    int steps, micro_batches;
    int row_count;
    tsri_verify_row rows[TSRI_VERIFY_MAX_ROWS];
    bool ok; /* every row is */
} tsri_verify_report;

/** Local. Number of ranks, 1..8, that belongs to seed. */
int tsri_verify_draw_ranks(uint64_t seed);

/**
 * Local. Draw mesh, preset and options for ranks ranks from seed, the same on every rank.
 * options->folder is given; mesh[size] receives the mesh's text, to which options->mesh then
 * points.
 */
tsr_status tsri_verify_draw(uint64_t seed, int ranks, tsri_verify_options *options, char *mesh,
                            size_t size);

/**
 * Local. Everything that can be seen before ranks start: the case's files, shapes and tokens, the
 * mesh, and the whole job in a dry run as one of ranks ranks.
 */
tsr_status tsri_verify_check(const tsri_verify_options *options, int ranks);

/**
 * Replay and compare. Collective over the world. Blocks. Every rank gets the same report. A failure
 * ends the job, see tsri_world_settle.
 */
tsr_status tsri_verify_run(tsr_world *world, const tsri_verify_options *options,
                           tsri_verify_report *out);
