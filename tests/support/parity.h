/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file parity.h
 * A model trained for some steps in any layout, compared with the same on one rank.
 *
 * Compared are loss, gradient norm, every gradient of the first step and every updated parameter.
 *
 * Bound: both runs sum the same f32 terms in other orders. Relative to the largest entry of a
 * tensor that is some 2^-24 * sqrt(terms) with at most thousands of terms: 2^-24 * 64 < 4e-6, taken
 * twice and with room: 2e-5. An Adam step turns a relative error of a gradient that is large
 * against eps into one of the update, at most lr; of smaller ones into lr * error / eps.
 */
#pragma once

#include "fsdp/fsdp_priv.h"

#include "job/job.h"

enum {
    PARITY_STEPS = 2,
    PARITY_MAX_PARAMS = 64
};

typedef struct parity_case {
    const char *name, *preset;
    int replicate, shard, tp;
    bool has_reductions; /* of gradients */
    bool sequence;       /* sequence parallel */
} parity_case;

/** Of the one-rank run: whole tensors. */
typedef struct parity_record {
    tsri_step_result result[PARITY_STEPS];
    float *grad[PARITY_MAX_PARAMS], *final[PARITY_MAX_PARAMS];
} parity_record;

/** One run: what it deviates from the record r by, in units of the bound, and its bits. */
typedef struct parity_run {
    parity_record *r;
    bool records;
    int step;
    double worst;
    char where[96];
    uint64_t bits;                                       /* of what this rank owns */
    bool keeps_digest;                                   /* replicas are not compared */
    tsr_status (*opened)(tsri_job *job, void *context);  /* before the first step; may be NULL */
    tsr_status (*closing)(tsri_job *job, void *context); /* after the last */
    void *context;
} parity_run;

tsri_job_options parity_options(const parity_case *c, int micro_batches, bool overlap);
/** This rank's rows of the batches of a step. */
tsr_status parity_write_step(tsri_job *job, int step);
/** Every rank for itself. */
tsr_status parity_record_single(tsr_world *world, const tsri_job_options *o, parity_record *r);
void parity_record_free(parity_record *r);
/** The nth point of sabotage kind is struck if *struck. */
tsr_status parity_run_layout(tsr_world *world, const parity_case *c, const tsri_job_options *o,
                             tsri_sabotage_kind kind, int nth, parity_run *l, bool *struck);
