/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A Hugging Face config.json as a model. Every key that changes what the model computes is either
 * understood or refused; keys about generation and training (cache, token ids, dropout) are not
 * looked at. null is a value: it is taken where transformers gives it a meaning of its own, and
 * refused elsewhere. */
#include "base/base.h"
#include "base/bounds.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/hf.h"

enum {
    PATH_BYTES = 4096
};

typedef struct reader {
    const json_t *config;
    const char *file;
} reader;

static bool has(const json_t *object, const char *key)
{
    return json_object_get(object, key) != NULL;
}

static tsr_status check_bound(const char *file, const char *key, tsri_bound bound, double value)
{
    double least = 0.0;
    double most = 0.0;

    if (!tsri_bound_allows(bound, value)) {
        tsri_bound_get(bound, &least, &most);
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s is %.15g, wants %.15g to %.15g", file, key, value,
                         least, most);
    }
    return TSR_OK;
}

static tsr_status read_size(const reader *r, const char *key, tsri_bound bound, int64_t *out)
{
    TSR_TRY(tsri_json_int(r->config, key, r->file, out));
    TSR_TRY(check_bound(r->file, key, bound, (double)*out));
    return TSR_OK;
}

/* As read_size; absent or null: *out stays. */
static tsr_status read_size_or(const reader *r, const char *key, tsri_bound bound, int64_t *out)
{
    if (has(r->config, key) && !json_is_null(json_object_get(r->config, key))) {
        TSR_TRY(read_size(r, key, bound, out));
    }
    return TSR_OK;
}

/* A size that goes by two names, of which either may be given. */
static tsr_status read_named(const reader *r, const char *key, const char *generic,
                             tsri_bound bound, int64_t *out)
{
    int64_t other = 0;

    if (!has(r->config, generic)) {
        TSR_TRY(read_size(r, key, bound, out));
        return TSR_OK;
    }
    TSR_TRY(read_size(r, generic, bound, out));
    if (has(r->config, key)) {
        TSR_TRY(read_size(r, key, bound, &other));
        if (other != *out) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s is %lld and %s is %lld, which mean the same",
                             r->file, key, (long long)other, generic, (long long)*out);
        }
    }
    return TSR_OK;
}

static tsr_status read_real(const json_t *object, const char *key, const char *file,
                            tsri_bound bound, double fallback, double *out)
{
    *out = fallback;
    if (has(object, key)) {
        TSR_TRY(tsri_json_number(object, key, file, out));
        TSR_TRY(check_bound(file, key, bound, *out));
    }
    return TSR_OK;
}

/* In Python null is as good as false, which nobody means where the default is true. */
static tsr_status read_flag(const reader *r, const char *key, bool fallback, bool *out)
{
    *out = fallback;
    if (has(r->config, key) && (fallback || !json_is_null(json_object_get(r->config, key)))) {
        TSR_TRY(tsri_json_bool(r->config, key, r->file, out));
    }
    return TSR_OK;
}

static tsr_status require_flag(const reader *r, const char *key, bool wanted)
{
    bool value = wanted;

    TSR_TRY(read_flag(r, key, wanted, &value));
    if (value != wanted) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: %s is %s, only %s is computed", r->file, key,
                         value ? "true" : "false", wanted ? "true" : "false");
    }
    return TSR_OK;
}

/* The function called by key must be one of names, which ends with NULL: all the same one. */
static tsr_status require_function(const reader *r, const char *key, const char *const *names)
{
    const char *name = names[0];

    if (has(r->config, key)) {
        TSR_TRY(tsri_json_string(r->config, key, r->file, &name));
    }
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            return TSR_OK;
        }
    }
    return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: %s is \"%s\", only \"%s\" (or \"%s\") is computed",
                     r->file, key, name, names[0], names[1]);
}

/* ---- rotary positions ---- */

/* Scaled rotary embeddings ("linear", "dynamic", "yarn", "llama3") change every angle; the first
 * and the last by a factor, which may be 1. */
static tsr_status check_rope_type(const json_t *rope, const char *key, const char *file)
{
    const char *type = "default";
    double factor = 0.0;

    if (has(rope, "rope_type")) {
        TSR_TRY(tsri_json_string(rope, "rope_type", file, &type));
    } else if (has(rope, "type")) {
        TSR_TRY(tsri_json_string(rope, "type", file, &type));
    }
    if (strcmp(type, "linear") == 0 || strcmp(type, "llama3") == 0) {
        TSR_TRY(tsri_json_number(rope, "factor", file, &factor));
    }
    if (strcmp(type, "default") != 0 && factor != 1.0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s: %s has rope_type \"%s\", only \"default\" is computed", file, key,
                         type);
    }
    return TSR_OK;
}

static tsr_status read_rope(const reader *r, double *theta)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    double partial = 1.0;

    TSR_TRY(read_real(r->config, "rope_theta", r->file, TSRI_BOUND_ROPE_THETA, 10000.0, theta));
    for (int i = 0; i < 2; i++) {
        const json_t *rope = json_object_get(r->config, keys[i]);

        if (rope == NULL || json_is_null(rope)) {
            continue;
        }
        if (!json_is_object(rope)) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s wants an object or null", r->file, keys[i]);
        }
        TSR_TRY(check_rope_type(rope, keys[i], r->file));
        TSR_TRY(read_real(rope, "rope_theta", r->file, TSRI_BOUND_ROPE_THETA, *theta, theta));
        TSR_TRY(
            read_real(rope, "partial_rotary_factor", r->file, TSRI_BOUND_NONE, partial, &partial));
    }
    TSR_TRY(
        read_real(r->config, "partial_rotary_factor", r->file, TSRI_BOUND_NONE, partial, &partial));
    if (partial != 1.0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s: partial_rotary_factor is %g, only whole heads are turned", r->file,
                         partial);
    }
    return TSR_OK;
}

/* ---- llama ---- */

static tsr_status read_head_dim(const reader *r, tsri_model_spec *out)
{
    TSR_TRY(read_size_or(r, "head_dim", TSRI_BOUND_HEAD_DIM, &out->head_dim));
    if (out->head_dim == 0 && out->dim % out->heads == 0) {
        out->head_dim = out->dim / out->heads;
    }
    if (out->head_dim == 0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: hidden_size %lld over %d heads leaves a rest, and head_dim is not "
                         "given",
                         r->file, (long long)out->dim, out->heads);
    }
    if (out->head_dim % 2 != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: head_dim %lld is odd, rotary positions want pairs",
                         r->file, (long long)out->head_dim);
    }
    return TSR_OK;
}

static tsr_status read_llama_sizes(const reader *r, tsri_model_spec *out)
{
    int64_t layers = 0;
    int64_t heads = 0;
    int64_t kv_heads = 0;

    TSR_TRY(read_size(r, "num_hidden_layers", TSRI_BOUND_LAYERS, &layers));
    TSR_TRY(read_size(r, "num_attention_heads", TSRI_BOUND_HEADS, &heads));
    kv_heads = heads;
    TSR_TRY(read_size_or(r, "num_key_value_heads", TSRI_BOUND_HEADS, &kv_heads));
    if (heads % kv_heads != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: num_key_value_heads %lld does not divide num_attention_heads %lld",
                         r->file, (long long)kv_heads, (long long)heads);
    }
    out->layers = (int)layers;
    out->heads = (int)heads;
    out->kv_heads = (int)kv_heads;
    TSR_TRY(read_size(r, "hidden_size", TSRI_BOUND_DIM, &out->dim));
    TSR_TRY(read_size(r, "intermediate_size", TSRI_BOUND_FFN, &out->ffn));
    TSR_TRY(read_size(r, "vocab_size", TSRI_BOUND_VOCAB, &out->vocab));
    TSR_TRY(read_head_dim(r, out));
    return TSR_OK;
}

/* initializer_range 0 is our 0.02: what it would draw is read from the weights. */
static tsr_status read_llama(const reader *r, tsri_model_spec *out)
{
    static const char *const functions[] = {"silu", "swish", NULL};

    TSR_TRY(require_function(r, "hidden_act", functions));
    TSR_TRY(read_llama_sizes(r, out));
    TSR_TRY(read_rope(r, &out->rope_theta));
    TSR_TRY(
        read_real(r->config, "rms_norm_eps", r->file, TSRI_BOUND_NORM_EPS, 1e-6, &out->norm_eps));
    TSR_TRY(read_real(r->config, "initializer_range", r->file, TSRI_BOUND_INIT_STD, 0.02,
                      &out->init_std));
    TSR_TRY(read_flag(r, "attention_bias", false, &out->attention_bias));
    TSR_TRY(read_flag(r, "mlp_bias", false, &out->mlp_bias));
    TSR_TRY(read_flag(r, "tie_word_embeddings", false, &out->tied));
    return TSR_OK;
}

/* ---- gpt2 ---- */

static tsr_status check_gpt2(const reader *r)
{
    /* Names of the approximation by tanh; "gelu" is the exact one. */
    static const char *const functions[] = {"gelu_new",      "gelu_pytorch_tanh", "gelu_fast",
                                            "gelu_accurate", "gelu_python_tanh",  NULL};

    TSR_TRY(require_function(r, "activation_function", functions));
    TSR_TRY(require_flag(r, "scale_attn_weights", true));
    TSR_TRY(require_flag(r, "scale_attn_by_inverse_layer_idx", false));
    TSR_TRY(require_flag(r, "add_cross_attention", false));
    return TSR_OK;
}

static tsr_status read_gpt2_sizes(const reader *r, tsri_model_spec *out)
{
    int64_t layers = 0;
    int64_t heads = 0;

    TSR_TRY(read_named(r, "n_layer", "num_hidden_layers", TSRI_BOUND_LAYERS, &layers));
    TSR_TRY(read_named(r, "n_head", "num_attention_heads", TSRI_BOUND_HEADS, &heads));
    TSR_TRY(read_named(r, "n_embd", "hidden_size", TSRI_BOUND_DIM, &out->dim));
    out->layers = (int)layers;
    out->heads = (int)heads;
    if (out->dim % out->heads != 0) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: n_head %d does not divide n_embd %lld", r->file,
                         out->heads, (long long)out->dim);
    }
    out->ffn = 4 * out->dim;
    TSR_TRY(read_size_or(r, "n_inner", TSRI_BOUND_FFN, &out->ffn));
    TSR_TRY(read_named(r, "n_positions", "max_position_embeddings", TSRI_BOUND_POSITIONS,
                       &out->positions));
    TSR_TRY(read_size(r, "vocab_size", TSRI_BOUND_VOCAB, &out->vocab));
    return TSR_OK;
}

static tsr_status read_gpt2(const reader *r, tsri_model_spec *out)
{
    TSR_TRY(check_gpt2(r));
    TSR_TRY(read_gpt2_sizes(r, out));
    TSR_TRY(read_real(r->config, "layer_norm_epsilon", r->file, TSRI_BOUND_NORM_EPS, 1e-5,
                      &out->norm_eps));
    TSR_TRY(read_real(r->config, "initializer_range", r->file, TSRI_BOUND_INIT_STD, 0.02,
                      &out->init_std));
    TSR_TRY(read_flag(r, "tie_word_embeddings", true, &out->tied));
    return TSR_OK;
}

/* ---- which ---- */

typedef tsr_status (*read_fn)(const reader *r, tsri_model_spec *out);

static tsr_status read_model(const reader *r, tsri_model_spec *out)
{
    static const read_fn readers[TSRI_ARCH_COUNT] = {
        [TSRI_ARCH_LLAMA] = read_llama,
        [TSRI_ARCH_GPT2] = read_gpt2,
    };
    const char *type = NULL;
    char known[64] = "";
    size_t used = 0;

    TSR_TRY(tsri_json_string(r->config, "model_type", r->file, &type));
    for (int i = 0; i < TSRI_ARCH_COUNT; i++) {
        const tsri_arch_info *arch = tsri_arch_get((tsri_arch)i);

        if (strcmp(type, arch->name) == 0) {
            tsri_model_spec spec = arch->defaults;

            TSR_TRY(readers[i](r, &spec));
            *out = spec;
            return TSR_OK;
        }
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s\"%s\"",
                                 i > 0 ? " and " : "", arch->name);
    }
    return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: model_type is \"%s\", known are %s", r->file, type,
                     known);
}

static tsr_status raise_no_config(const char *folder)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof(path), "%s/snapshots", folder);
    const bool hub = n > 0 && n < (int)sizeof(path) && access(path, F_OK) == 0;

    return TSR_RAISE(TSR_ERR_IO, "%s holds no config.json%s", folder,
                     hub ? "; in a hub's cache a model is one of snapshots/*" : "");
}

tsr_status tsri_hf_read_config(const char *path, tsri_model_spec *out, char *notice)
{
    char file[PATH_BYTES];
    char twice[TSRI_JSON_TWICE_BYTES];
    struct stat info;
    const bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const int n = snprintf(file, sizeof(file), "%s%s", path, folder ? "/config.json" : "");
    json_t *config = NULL;
    tsr_status status = TSR_OK;

    if (n < 0 || n >= (int)sizeof(file)) {
        return TSR_RAISE(TSR_ERR_INVALID, "path %s is longer than %d", path, (int)sizeof(file) - 1);
    }
    if (folder && access(file, F_OK) != 0) {
        return raise_no_config(path);
    }
    TSR_TRY(tsri_json_load_loose(file, &config, twice));
    const reader r = {.config = config, .file = file};

    TSR_TRY_GOTO(status, read_model(&r, out), free_config);
    if (twice[0] != '\0') {
        tsri_hf_note(notice, "config.json: %s, the last one counts", twice);
    }
free_config:
    json_decref(config);
    return status;
}
