/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hf.h
 * Hugging Face folders: config.json as a model, and where each parameter lies in the weight files.
 *
 * Config files come in two styles: transformers 5 writes rope_parameters, versions before it
 * rope_theta and rope_scaling. Names follow transformers' LlamaForCausalLM and GPT2LMHeadModel; the
 * first component ("model.", "transformer.") may be missing in a file.
 *
 * Weights are read by exact ranges: each rank its own block and nothing else.
 *
 * What is read, and what is done with it that somebody might not expect (a conversion, a tensor
 * that is shared or left over), is told in a notice: a text of TSRI_HF_NOTICE_BYTES that begins as
 * "" and to which these functions add; NULL where nobody asks.
 *
 * Threads: one thread at a time per tsri_safetensors.
 */
#pragma once

#include "checkpoint/safetensors.h"
#include "nn/model.h"

enum {
    TSRI_HF_NAME_BYTES = 160,
    TSRI_HF_NOTICE_BYTES = 1024
};

/**
 * Read the model that path, a config.json or a folder that holds one, describes.
 *
 * TSR_ERR_UNSUPPORTED: an architecture or a variant that Tessera does not compute; the message
 * names key and value. TSR_ERR_IO, TSR_ERR_FORMAT.
 */
tsr_status tsri_hf_read_config(const char *path, tsri_model_spec *out, char *notice);

/** Add a clause to notice, behind "; " if it is not the first. */
void tsri_hf_note(char *notice, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Where a parameter lies among a checkpoint's tensors. */
typedef struct tsri_hf_place {
    char name[TSRI_HF_NAME_BYTES]; /* tensor, with its first component */
    const char *twin;              /* the tensor's other name in a tied model; NULL: none */
    bool transposed;               /* the file holds [in, out] */
    int part, parts; /* the parameter is part of parts equal blocks of out rows of the tensor */
} tsri_hf_place;

/** TSR_ERR_INVALID: spec has no parameter of that name. */
tsr_status tsri_hf_locate(const tsri_model_spec *spec, const char *param, tsri_hf_place *out);

/** The shape that place's tensor has for a parameter of shape spec; returns its dims. */
int tsri_hf_tensor_shape(const tsri_hf_place *place, const tsr_param_spec *spec, int64_t *shape);

/** The tensor that st calls prefix + name, with the liberties that tsri_hf_find takes; or NULL. */
const tsri_safetensors_tensor *tsri_hf_look_up(const tsri_safetensors *st, const char *prefix,
                                               const char *name);

/**
 * The tensor prefix + place->name of st, whose shape must fit param, and whose type is a
 * floating-point one. prefix "" is the weight itself. The name's first component may be missing,
 * and one that wrappers add may stand before it ("module.", "_orig_mod."); of a tied pair either
 * may be there.
 *
 * TSR_ERR_FORMAT: missing, or of another shape or type; the message says what was wanted.
 */
tsr_status tsri_hf_find(const tsri_safetensors *st, const char *prefix, const tsri_hf_place *place,
                        const tsr_param *param, const tsri_safetensors_tensor **out);

/** Read block of the parameter at place in tensor into out, [rows, cols] row-major, f32. */
tsr_status tsri_hf_read_block(tsri_safetensors *st, const tsri_safetensors_tensor *tensor,
                              const tsri_hf_place *place, const tsri_block *block, float *out);

/**
 * Local. Check that st holds every one of params[count] in its shape. Reads no data, but where a
 * tied model's head is stored beside its embedding: both, which must be equal.
 *
 * TSR_ERR_FORMAT: as tsri_hf_find, or head and embedding differ.
 */
tsr_status tsri_hf_check(tsri_safetensors *st, const tsri_model_spec *spec,
                         tsr_param *const *params, int count, char *notice);

/** Local. As tsri_hf_check; then this rank's piece of each parameter is read into its memory. */
tsr_status tsri_hf_load(tsri_safetensors *st, const tsri_model_spec *spec, tsr_param *const *params,
                        int count, char *notice);
