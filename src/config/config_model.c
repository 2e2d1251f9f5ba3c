/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What model a configuration means. */
#include "base/base.h"

#include <string.h>

#include "checkpoint/hf.h"
#include "config/config.h"

enum {
    SOURCES = 3
};

static const char *const source_paths[SOURCES] = {"model.preset", "model.hf", "model.arch"};

/* ---- which of preset, hf and arch ---- */

static bool names_source(const tsri_config *config, int source)
{
    const tsri_config_model *m = &config->model;
    const char *const values[SOURCES] = {m->preset, m->hf, m->arch};

    return values[source][0] != '\0';
}

static bool is_from_words(const tsri_config *config, const char *path)
{
    const int row = tsri_option_find(path);

    return config->is_set[row] && config->place[row].file == NULL;
}

/* The command line's choice replaces the file's. */
static void prefer_words(tsri_config *config)
{
    char **const values[SOURCES] = {&config->model.preset, &config->model.hf, &config->model.arch};
    bool chosen = false;

    for (int i = 0; i < SOURCES; i++) {
        chosen = chosen || (names_source(config, i) && is_from_words(config, source_paths[i]));
    }
    for (int i = 0; i < SOURCES && chosen; i++) {
        if (!is_from_words(config, source_paths[i])) {
            (*values[i])[0] = '\0';
            config->is_set[tsri_option_find(source_paths[i])] = false;
        }
    }
}

static tsr_status find_source(const tsri_config *config, int *out)
{
    *out = -1;
    for (int i = 0; i < SOURCES; i++) {
        if (!names_source(config, i)) {
            continue;
        }
        if (*out >= 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: both %s and %s say what the model is",
                             config->file != NULL ? config->file : "command line",
                             source_paths[*out], source_paths[i]);
        }
        *out = i;
    }
    if (*out < 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s: nothing says what the model is: give model.preset, model.hf or "
                         "model.arch",
                         config->file != NULL ? config->file : "command line");
    }
    return TSR_OK;
}

/* ---- sizes ---- */

typedef struct size_key {
    const char *path;
    unsigned sizes; /* of tsri_model_size, of which an architecture has one; 0: all have it */
} size_key;

static const size_key size_keys[] = {
    {"model.layers", 0},
    {"model.dim", 0},
    {"model.heads", 0},
    {"model.kv_heads", TSRI_SIZE_KV_HEADS},
    {"model.ffn", 0},
    {"model.vocab", 0},
    {"model.positions", TSRI_SIZE_POSITIONS},
    {"model.head_dim", TSRI_SIZE_HEAD_DIM},
    {"model.rope_theta", TSRI_SIZE_ROPE},
    {"model.norm_eps", 0},
    {"model.dropout", TSRI_SIZE_DROPOUT},
    {"model.tied", 0},
    {"model.attention_bias", TSRI_SIZE_BIASES},
    {"model.mlp_bias", TSRI_SIZE_BIASES},
};

static tsr_status raise_size(const tsri_config *config, const char *path, const char *text)
{
    const tsri_option_place *place = &config->place[tsri_option_find(path)];

    if (place->file == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "command line: %s %s", path, text);
    }
    return TSR_RAISE(TSR_ERR_INVALID, "%s:%d: %s %s", place->file, place->line, path, text);
}

static tsr_status check_keys(const tsri_config *config, const tsri_model_spec *spec, bool fixed)
{
    const tsri_arch_info *arch = tsri_arch_get(spec->arch);
    char text[64];

    for (size_t i = 0; i < sizeof(size_keys) / sizeof(size_keys[0]); i++) {
        const size_key *key = &size_keys[i];

        if (!config->is_set[tsri_option_find(key->path)]) {
            continue;
        }
        if (fixed && strcmp(key->path, "model.tied") != 0) {
            return raise_size(config, key->path, "cannot be set beside model.hf");
        }
        if (key->sizes != 0 && (arch->sizes & key->sizes) == 0) {
            (void)snprintf(text, sizeof(text), "is not a size of %s", arch->name);
            return raise_size(config, key->path, text);
        }
    }
    return TSR_OK;
}

static int64_t given(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static double given_number(double value, double otherwise)
{
    return value > 0.0 ? value : otherwise;
}

/* What is given in place of what spec has; keys that its architecture has not were refused. */
static void apply_sizes(const tsri_config *config, tsri_model_spec *spec)
{
    const tsri_config_model *m = &config->model;

    spec->layers = (int)given(m->layers, spec->layers);
    spec->heads = (int)given(m->heads, spec->heads);
    spec->kv_heads = (int)given(m->kv_heads, spec->kv_heads);
    spec->dim = given(m->dim, spec->dim);
    spec->ffn = given(m->ffn, spec->ffn);
    spec->vocab = given(m->vocab, spec->vocab);
    spec->head_dim = given(m->head_dim, spec->head_dim);
    if (tsri_model_has(spec, TSRI_SIZE_POSITIONS)) {
        spec->positions = given(m->positions, given(spec->positions, config->train.seq));
    }
    spec->rope_theta = given_number(m->rope_theta, spec->rope_theta);
    spec->norm_eps = given_number(m->norm_eps, spec->norm_eps);
    spec->dropout = given_number(m->dropout, spec->dropout);
    spec->attention_bias = spec->attention_bias || m->attention_bias;
    spec->mlp_bias = spec->mlp_bias || m->mlp_bias;
    spec->tied = m->tied == 0 ? spec->tied : m->tied == 1;
}

static void find_arch(const char *name, tsri_model_spec *out)
{
    for (int i = 0; i < TSRI_ARCH_COUNT; i++) {
        const tsri_arch_info *arch = tsri_arch_get((tsri_arch)i);

        if (strcmp(arch->name, name) == 0) {
            *out = arch->defaults;
        }
    }
}

static tsr_status check_sizes(const tsri_config *config)
{
    const tsri_config_model *m = &config->model;
    const int64_t values[] = {m->layers, m->dim, m->heads, m->ffn, m->vocab};
    static const char *const names[] = {"layers", "dim", "heads", "ffn", "vocab"};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (values[i] == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: model.arch %s wants model.%s as well",
                             config->file != NULL ? config->file : "command line", m->arch,
                             names[i]);
        }
    }
    return TSR_OK;
}

tsr_status tsri_config_read_model(tsri_config *config)
{
    const tsri_config_model *m = &config->model;
    tsri_model_spec *spec = &config->spec;
    int source = -1;

    prefer_words(config);
    TSR_TRY(find_source(config, &source));
    memset(spec, 0, sizeof(*spec));
    config->model_notice[0] = '\0';
    if (source == 0) {
        TSR_TRY(tsri_model_preset(m->preset, spec));
    } else if (source == 1) {
        TSR_TRY(tsri_hf_read_config(m->hf, spec, config->model_notice));
    } else {
        find_arch(m->arch, spec); /* one of the key's choices */
        TSR_TRY(check_sizes(config));
    }
    TSR_TRY(check_keys(config, spec, source == 1));
    if (source == 1 && m->tied != 0) {
        tsri_hf_note(config->model_notice, "model.tied decides whether the head is the embedding");
    }
    apply_sizes(config, spec);
    return TSR_OK;
}
