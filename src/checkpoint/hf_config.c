/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A Hugging Face config.json as a model. Every key that changes what the model computes is either
 * understood or refused; keys about generation and training (cache, token ids, dropout) are not
 * looked at. */
#include "base/base.h"
#include "base/json.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/hf.h"

enum {
    PATH_BYTES = 4096
};

/* A positive size, small enough that products of two are exact; fallback 0: the key is required. */
static tsr_status read_size(const json_t *config, const char *key, const char *file,
                            int64_t fallback, int64_t *out)
{
    if (fallback > 0) {
        TSR_TRY(tsri_json_int_or(config, key, file, fallback, out));
    } else {
        TSR_TRY(tsri_json_int(config, key, file, out));
    }
    if (*out < 1 || *out > INT_MAX) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s is %lld, wants 1 to %d", file, key,
                         (long long)*out, INT_MAX);
    }
    return TSR_OK;
}

static tsr_status read_count(const json_t *config, const char *key, const char *file,
                             int64_t fallback, int *out)
{
    int64_t value = 0;

    TSR_TRY(read_size(config, key, file, fallback, &value));
    TSR_TRY(tsri_to_int(value, key, out));
    return TSR_OK;
}

static tsr_status read_positive(const json_t *config, const char *key, const char *file,
                                double fallback, double *out)
{
    TSR_TRY(tsri_json_number_or(config, key, file, fallback, out));
    if (!(*out > 0.0)) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s is %g, wants more than 0", file, key, *out);
    }
    return TSR_OK;
}

/* key must be wanted, or absent if wanted is what its absence means. */
static tsr_status require_flag(const json_t *config, const char *key, const char *file, bool wanted)
{
    bool value = wanted;

    TSR_TRY(tsri_json_bool_or(config, key, file, wanted, &value));
    if (value != wanted) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: %s is %s, only %s is computed", file, key,
                         value ? "true" : "false", wanted ? "true" : "false");
    }
    return TSR_OK;
}

/* Scaled rotary embeddings ("linear", "dynamic", "yarn", "llama3") change every angle. */
static tsr_status check_rope_type(const json_t *rope, const char *key, const char *file)
{
    const char *type = NULL;
    const char *old_type = NULL;

    TSR_TRY(tsri_json_string_or(rope, "type", file, "default", &old_type));
    TSR_TRY(tsri_json_string_or(rope, "rope_type", file, old_type, &type));
    if (strcmp(type, "default") != 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s: %s has rope_type \"%s\", only \"default\" is computed", file, key,
                         type);
    }
    return TSR_OK;
}

static tsr_status read_rope(const json_t *config, const char *file, double *theta)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};

    TSR_TRY(read_positive(config, "rope_theta", file, 10000.0, theta));
    for (int i = 0; i < 2; i++) {
        const json_t *rope = json_object_get(config, keys[i]);

        if (rope == NULL || json_is_null(rope)) {
            continue;
        }
        if (!json_is_object(rope)) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s wants an object or null", file, keys[i]);
        }
        TSR_TRY(check_rope_type(rope, keys[i], file));
        TSR_TRY(read_positive(rope, "rope_theta", file, *theta, theta));
    }
    return TSR_OK;
}

static tsr_status read_head_dim(const json_t *config, const char *file, tsr_llama_config *out)
{
    TSR_TRY(tsri_json_int_or(config, "head_dim", file, 0, &out->head_dim));
    if (out->head_dim == 0 && out->dim % out->heads == 0) {
        out->head_dim = out->dim / out->heads;
    }
    if (out->head_dim < 1 || out->head_dim > INT_MAX) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: head_dim %lld with hidden_size %lld over %d heads: wants a head_dim "
                         "of 1 or more, or heads that divide hidden_size",
                         file, (long long)out->head_dim, (long long)out->dim, out->heads);
    }
    if (out->head_dim % 2 != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: head_dim %lld is odd, rotary positions want pairs",
                         file, (long long)out->head_dim);
    }
    return TSR_OK;
}

static tsr_status read_llama_sizes(const json_t *config, const char *file, tsr_llama_config *out)
{
    TSR_TRY(read_count(config, "num_hidden_layers", file, 0, &out->layers));
    TSR_TRY(read_count(config, "num_attention_heads", file, 0, &out->heads));
    TSR_TRY(read_count(config, "num_key_value_heads", file, out->heads, &out->kv_heads));
    if (out->heads % out->kv_heads != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: num_key_value_heads %d does not divide num_attention_heads %d", file,
                         out->kv_heads, out->heads);
    }
    TSR_TRY(read_size(config, "hidden_size", file, 0, &out->dim));
    TSR_TRY(read_size(config, "intermediate_size", file, 0, &out->ffn));
    TSR_TRY(read_size(config, "vocab_size", file, 0, &out->vocab));
    TSR_TRY(read_head_dim(config, file, out));
    return TSR_OK;
}

static tsr_status read_llama(const json_t *config, const char *file, tsr_llama_config *out)
{
    const char *act = NULL;

    TSR_TRY(tsri_json_string_or(config, "hidden_act", file, "silu", &act));
    if (strcmp(act, "silu") != 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: hidden_act is \"%s\", only \"silu\" is computed",
                         file, act);
    }
    TSR_TRY(read_llama_sizes(config, file, out));
    TSR_TRY(read_rope(config, file, &out->rope_theta));
    TSR_TRY(read_positive(config, "rms_norm_eps", file, 1e-6, &out->norm_eps));
    TSR_TRY(read_positive(config, "initializer_range", file, 0.02, &out->init_std));
    TSR_TRY(tsri_json_bool_or(config, "attention_bias", file, false, &out->attention_bias));
    TSR_TRY(tsri_json_bool_or(config, "mlp_bias", file, false, &out->mlp_bias));
    TSR_TRY(tsri_json_bool_or(config, "tie_word_embeddings", file, false, &out->tied));
    return TSR_OK;
}

static tsr_status check_gpt2(const json_t *config, const char *file)
{
    const char *act = NULL;

    TSR_TRY(tsri_json_string_or(config, "activation_function", file, "gelu_new", &act));
    if (strcmp(act, "gelu_new") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s: activation_function is \"%s\", only \"gelu_new\" and "
                         "\"gelu_pytorch_tanh\" are computed",
                         file, act);
    }
    TSR_TRY(require_flag(config, "scale_attn_weights", file, true));
    TSR_TRY(require_flag(config, "scale_attn_by_inverse_layer_idx", file, false));
    TSR_TRY(require_flag(config, "add_cross_attention", file, false));
    return TSR_OK;
}

static tsr_status read_gpt2_sizes(const json_t *config, const char *file, tsr_gpt2_config *out)
{
    TSR_TRY(read_count(config, "n_layer", file, 0, &out->layers));
    TSR_TRY(read_count(config, "n_head", file, 0, &out->heads));
    TSR_TRY(read_size(config, "n_embd", file, 0, &out->dim));
    if (out->dim % out->heads != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: n_head %d does not divide n_embd %lld", file,
                         out->heads, (long long)out->dim);
    }
    TSR_TRY(read_size(config, "n_inner", file, 4 * out->dim, &out->ffn));
    TSR_TRY(read_size(config, "n_positions", file, 0, &out->positions));
    TSR_TRY(read_size(config, "vocab_size", file, 0, &out->vocab));
    return TSR_OK;
}

static tsr_status read_gpt2(const json_t *config, const char *file, tsr_gpt2_config *out)
{
    bool tied = true;

    TSR_TRY(check_gpt2(config, file));
    TSR_TRY(read_gpt2_sizes(config, file, out));
    TSR_TRY(read_positive(config, "layer_norm_epsilon", file, 1e-5, &out->norm_eps));
    TSR_TRY(read_positive(config, "initializer_range", file, 0.02, &out->init_std));
    TSR_TRY(tsri_json_bool_or(config, "tie_word_embeddings", file, true, &tied));
    out->untied = !tied;
    return TSR_OK;
}

static tsr_status read_model(const json_t *config, const char *file, tsri_model_spec *out)
{
    tsri_model_spec spec = {.arch = TSRI_ARCH_LLAMA};
    const char *type = NULL;

    TSR_TRY(tsri_json_string(config, "model_type", file, &type));
    if (strcmp(type, "llama") == 0) {
        TSR_TRY(read_llama(config, file, &spec.llama));
    } else if (strcmp(type, "gpt2") == 0) {
        spec.arch = TSRI_ARCH_GPT2;
        TSR_TRY(read_gpt2(config, file, &spec.gpt2));
    } else {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s: model_type is \"%s\", known are \"llama\" and \"gpt2\"", file, type);
    }
    *out = spec;
    return TSR_OK;
}

tsr_status tsri_hf_read_config(const char *path, tsri_model_spec *out)
{
    char file[PATH_BYTES];
    struct stat info;
    const bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const int n = snprintf(file, sizeof(file), "%s%s", path, folder ? "/config.json" : "");
    json_t *config = NULL;
    tsr_status status = TSR_OK;

    if (n < 0 || n >= (int)sizeof(file)) {
        return TSR_RAISE(TSR_ERR_INVALID, "path %s is longer than %d", path, (int)sizeof(file) - 1);
    }
    TSR_TRY(tsri_json_load_file(file, &config));
    TSR_TRY_GOTO(status, read_model(config, file, out), free_config);
free_config:
    json_decref(config);
    return status;
}
