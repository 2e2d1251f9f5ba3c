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
    bool llama, gpt2; /* who has it */
} size_key;

static const size_key size_keys[] = {
    {"model.layers", true, true},
    {"model.dim", true, true},
    {"model.heads", true, true},
    {"model.kv_heads", true, false},
    {"model.ffn", true, true},
    {"model.vocab", true, true},
    {"model.positions", false, true},
    {"model.head_dim", true, false},
    {"model.rope_theta", true, false},
    {"model.norm_eps", true, true},
    {"model.dropout", false, true},
    {"model.tied", true, true},
    {"model.attention_bias", true, false},
    {"model.mlp_bias", true, false},
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
    const bool gpt2 = spec->arch == TSRI_ARCH_GPT2;

    for (size_t i = 0; i < sizeof(size_keys) / sizeof(size_keys[0]); i++) {
        const size_key *key = &size_keys[i];

        if (!config->is_set[tsri_option_find(key->path)]) {
            continue;
        }
        if (fixed && strcmp(key->path, "model.tied") != 0) {
            return raise_size(config, key->path, "cannot be set beside model.hf");
        }
        if (!(gpt2 ? key->gpt2 : key->llama)) {
            return raise_size(config, key->path,
                              gpt2 ? "is not a size of gpt2" : "is not a size of llama");
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

static bool tied(const tsri_config_model *m, bool otherwise)
{
    return m->tied == 0 ? otherwise : m->tied == 1;
}

static void apply_llama(const tsri_config_model *m, tsr_llama_config *c)
{
    c->layers = (int)given(m->layers, c->layers);
    c->heads = (int)given(m->heads, c->heads);
    c->kv_heads = (int)given(m->kv_heads, c->kv_heads);
    c->dim = given(m->dim, c->dim);
    c->ffn = given(m->ffn, c->ffn);
    c->vocab = given(m->vocab, c->vocab);
    c->head_dim = given(m->head_dim, c->head_dim);
    c->rope_theta = given_number(m->rope_theta, c->rope_theta);
    c->norm_eps = given_number(m->norm_eps, c->norm_eps);
    c->attention_bias = c->attention_bias || m->attention_bias;
    c->mlp_bias = c->mlp_bias || m->mlp_bias;
    c->tied = tied(m, c->tied);
}

static void apply_gpt2(const tsri_config *config, tsr_gpt2_config *c)
{
    const tsri_config_model *m = &config->model;

    c->layers = (int)given(m->layers, c->layers);
    c->heads = (int)given(m->heads, c->heads);
    c->dim = given(m->dim, c->dim);
    c->ffn = given(m->ffn, c->ffn);
    c->vocab = given(m->vocab, c->vocab);
    c->positions = given(m->positions, given(c->positions, config->train.seq));
    c->norm_eps = given_number(m->norm_eps, c->norm_eps);
    c->dropout = given_number(m->dropout, c->dropout);
    c->untied = !tied(m, !c->untied);
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
        spec->arch = strcmp(m->arch, "gpt2") == 0 ? TSRI_ARCH_GPT2 : TSRI_ARCH_LLAMA;
        TSR_TRY(check_sizes(config));
    }
    TSR_TRY(check_keys(config, spec, source == 1));
    if (source == 1 && m->tied != 0) {
        tsri_hf_note(config->model_notice, "model.tied decides whether the head is the embedding");
    }
    if (spec->arch == TSRI_ARCH_GPT2) {
        apply_gpt2(config, &spec->gpt2);
    } else {
        apply_llama(m, &spec->llama);
    }
    return TSR_OK;
}
