/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of verify: the case as read, and the comparison under way. */
#pragma once

#include "checkpoint/hf.h"
#include "config/mesh_text.h"
#include "verify/verify.h"

typedef struct verify_step {
    double lr, loss, grad_norm, tokens;
} verify_step;

typedef struct verify_case {
    tsri_model_spec spec;
    char notice[TSRI_HF_NOTICE_BYTES]; /* of the weights, see hf.h */
    int64_t batch, seq;                /* batch is that of a micro-batch */
    int step_count, micro_batches;
    bool forward_only;
    double clip_norm; /* 0: none */
    tsr_optimizer_options optim;
    verify_step *steps;
    tsri_safetensors *weights, *tokens, *expect;
    const tsri_safetensors_tensor *inputs, *labels; /* [steps, micro_batches, batch, seq] */
    const tsri_safetensors_tensor *logits;          /* [batch, seq, vocab] */
    tsri_mesh_text mesh;
} verify_case;

/** Read the case's files and fit the mesh to ranks. Close also after a failure. */
tsr_status tsri_verify_open_case(verify_case *c, const tsri_verify_options *options, int ranks);
void tsri_verify_close_case(verify_case *c);
/** The job that replays c; borrows names from c and options. */
void tsri_verify_job_options(const verify_case *c, const tsri_verify_options *options,
                             tsri_job_options *out);
/** Every tensor that will be compared is there in its shape. */
tsr_status tsri_verify_check_expect(const verify_case *c, const tsri_job *job);

/** What is compared by parameter; in the order of the report. */
typedef enum verify_kind {
    VERIFY_GRAD,
    VERIFY_ADAM_M,
    VERIFY_ADAM_V,
    VERIFY_FINAL,
    VERIFY_KINDS
} verify_kind;
/** "grad." */
const char *tsri_verify_prefix(verify_kind kind);

/* Largest values are this rank's until tsri_verify_reduce. */
typedef struct verify_compare {
    const verify_case *c;
    tsri_job *job;
    int param_count;
    double *worst; /* [VERIFY_KINDS, param_count] largest absolute difference */
    double *scale; /* [VERIFY_KINDS, param_count] largest magnitude of the expected tensor */
    double logits; /* largest absolute difference */
    double final_count, final_far; /* entries compared; those beyond verify_final_near */
} verify_compare;

/** Final weights are judged by how many lie farther off than this. */
extern const double tsri_verify_final_near;

tsr_status tsri_verify_compare_logits(verify_compare *v, tsr_dtensor *logits);
tsr_status tsri_verify_compare_gradients(verify_compare *v);
tsr_status tsri_verify_compare_final(verify_compare *v);
/** Collective over the mesh: every number becomes that of all ranks. */
tsr_status tsri_verify_reduce(verify_compare *v);
/** True for what an exact run leaves untouched and a rounded one moves at random: the bias of keys
 *  that are not turned by their position, which softmax does not see. */
bool tsri_verify_is_undetermined(const verify_case *c, const tsr_param *param);
