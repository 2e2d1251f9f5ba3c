/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file model.h
 * A model by description: architecture and sizes, as config files and checkpoints give them.
 */
#pragma once

#include "tessera/gpt2.h"
#include "tessera/llama.h"

#include "nn/nn.h"

typedef enum tsri_arch {
    TSRI_ARCH_LLAMA = 0,
    TSRI_ARCH_GPT2
} tsri_arch;

typedef struct tsri_model_spec {
    tsri_arch arch;
    tsr_llama_config llama; /* of arch llama */
    tsr_gpt2_config gpt2;   /* of arch gpt2 */
} tsri_model_spec;

/** The sizes called name ("llama-tiny", ...); TSR_ERR_INVALID names the nearest. */
tsr_status tsri_model_preset(const char *name, tsri_model_spec *out);
/** "llama-tiny, llama-25m, ...". */
const char *tsri_model_preset_names(void);

tsr_status tsri_model_create(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out);
int tsri_model_layers(const tsri_model_spec *spec);
tsr_module *tsri_model_layer(const tsri_model_spec *spec, tsr_module *model, int index);
int64_t tsri_model_vocab(const tsri_model_spec *spec);
/** Longest sequence that the model takes; 0: any. */
int64_t tsri_model_max_seq(const tsri_model_spec *spec);
/** Parameters, by arithmetic. */
int64_t tsri_model_param_count(const tsri_model_spec *spec);
