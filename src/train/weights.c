/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Weights of a Hugging Face folder, checked and read for a configuration. */
#include "train_priv.h"

#include "base/base.h"

#include <string.h>

#include "checkpoint/hf.h"

/* The weights of model.hf, which names a folder, or the config.json in it. */
static tsr_status open_weights(const tsri_config *config, tsri_safetensors **out)
{
    static const char name[] = "config.json";
    char folder[TSRI_RUN_PATH_BYTES];
    const size_t length = strlen(config->model.hf);
    const size_t end = length - (length < sizeof(name) ? length : sizeof(name) - 1);

    if (strcmp(config->model.hf + end, name) != 0 ||
        (end > 0 && config->model.hf[end - 1] != '/')) {
        TSR_TRY(tsri_safetensors_open(config->model.hf, out));
        return TSR_OK;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s.", (int)end, config->model.hf);
    TSR_TRY(tsri_safetensors_open(folder, out));
    return TSR_OK;
}

tsr_status tsri_weights_check(const tsri_config *config, const tsri_job *job)
{
    tsri_safetensors *weights = NULL;
    tsr_status status = TSR_OK;

    if (config->model.hf[0] == '\0') {
        return TSR_OK;
    }
    TSR_TRY(open_weights(config, &weights));
    TSR_TRY_GOTO(status, tsri_hf_check(weights, &config->spec, job->params, job->param_count, NULL),
                 close);
close:
    tsri_safetensors_close(&weights);
    return status;
}

tsr_status tsri_weights_load(tsri_config *config, const tsri_job *job)
{
    tsri_safetensors *weights = NULL;
    tsr_status status = TSR_OK;

    if (config->model.hf[0] == '\0') {
        return TSR_OK;
    }
    TSR_TRY(open_weights(config, &weights));
    TSR_TRY_GOTO(
        status,
        tsri_hf_load(weights, &config->spec, job->params, job->param_count, config->model_notice),
        close);
close:
    tsri_safetensors_close(&weights);
    return status;
}
