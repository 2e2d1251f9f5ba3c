/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_hf_files.c
 * Weight files that hold something else than a model's tensors under their names: what is taken,
 * what is refused, and what is said.
 */
#include "base/base.h"

#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/hf.h"
#include "support/tsr_test.h"

enum {
    MOST_TENSORS = 64,
    HEADER_BYTES = 16384
};

/* ---- a file, tensor by tensor ---- */

typedef struct file_tensor {
    char name[96];
    const char *type;
    int64_t rows, cols; /* cols 0: one dim */
    float value;        /* of each element but the last, which is 1 more */
} file_tensor;

static file_tensor g_tensors[MOST_TENSORS];
static int g_count;

static file_tensor *find(const char *name)
{
    for (int i = 0; i < g_count; i++) {
        if (strcmp(g_tensors[i].name, name) == 0) {
            return &g_tensors[i];
        }
    }
    return NULL;
}

static file_tensor *add(const char *name, const char *type, int64_t rows, int64_t cols, float value)
{
    file_tensor *t = &g_tensors[g_count++];

    *t = (file_tensor){.type = type, .rows = rows, .cols = cols, .value = value};
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    return t;
}

static size_t type_bytes(const char *type)
{
    return strcmp(type, "F32") == 0 ? 4 : strcmp(type, "BF16") == 0 ? 2 : 1;
}

static void write_data(const file_tensor *t, FILE *file)
{
    const int64_t count = t->rows * (t->cols > 0 ? t->cols : 1);

    for (int64_t i = 0; i < count; i++) {
        const float value = t->value + (i == count - 1 ? 1.0F : 0.0F);
        unsigned char bytes[4];

        memcpy(bytes, &value, 4);
        (void)fwrite(bytes + 4 - type_bytes(t->type), 1, type_bytes(t->type), file);
    }
}

static const char *write_tensors(const char *name)
{
    static char header[HEADER_BYTES];
    const char *path = tsr_test_scratch_path(name);
    unsigned char prefix[8] = {0};
    FILE *file = fopen(path, "wb");
    size_t used = 0;
    size_t at = 0;

    for (int i = 0; i < g_count; i++) {
        const file_tensor *t = &g_tensors[i];
        const size_t bytes = (size_t)(t->rows * (t->cols > 0 ? t->cols : 1)) * type_bytes(t->type);
        char cols[32] = "";

        if (t->cols > 0) {
            (void)snprintf(cols, sizeof(cols), ",%lld", (long long)t->cols);
        }
        used += (size_t)snprintf(
            header + used, HEADER_BYTES - used,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld%s],\"data_offsets\":[%zu,%zu]}",
            i == 0 ? "{" : ",", t->name, t->type, (long long)t->rows, cols, at, at + bytes);
        at += bytes;
    }
    used += (size_t)snprintf(header + used, HEADER_BYTES - used, "}");
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)(used >> 8 * i);
    }
    CHECK(file != NULL && used < HEADER_BYTES);
    if (file != NULL) {
        (void)fwrite(prefix, 1, 8, file);
        (void)fwrite(header, 1, used, file);
        for (int i = 0; i < g_count; i++) {
            write_data(&g_tensors[i], file);
        }
        CHECK_EQ(fclose(file), 0);
    }
    return path;
}

/* ---- a model and its file ---- */

static const tsri_model_spec tied_llama = {
    .arch = TSRI_ARCH_LLAMA, .layers = 1, .dim = 8, .heads = 2, .ffn = 8, .vocab = 6, .tied = true};
static const tsri_model_spec tied_gpt2 = {.arch = TSRI_ARCH_GPT2,
                                          .layers = 1,
                                          .heads = 2,
                                          .dim = 8,
                                          .ffn = 8,
                                          .vocab = 6,
                                          .positions = 4,
                                          .tied = true};

typedef struct model {
    const tsri_model_spec *spec;
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *module;
    tsr_param *const *params;
    int count;
} model;

/* The model on one simulated rank, and its own tensors as the file's. */
static bool open_model(const tsri_model_spec *spec, model *m)
{
    const tsr_mesh_axis axis = {"shard", 1};

    memset(m, 0, sizeof(*m));
    m->spec = spec;
    g_count = 0;
    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "sim"}, &m->world));
    CHECK_OK(tsr_mesh_create(1, &axis, 1, NULL, &m->mesh));
    CHECK_OK(tsr_comm_open(m->world, m->mesh, NULL, &m->comm));
    CHECK_OK(tsri_model_create(m->comm, spec, &m->module));
    CHECK_OK(tsr_module_params(m->module, &m->params, &m->count));
    for (int i = 0; i < m->count; i++) {
        int64_t shape[TSR_MAX_DIMS];
        tsri_hf_place place;
        int ndim = 0;

        CHECK_OK(tsri_hf_locate(spec, tsr_param_name(m->params[i]), &place));
        ndim = tsri_hf_tensor_shape(&place, tsr_param_get_spec(m->params[i]), shape);
        if (find(place.name) == NULL) {
            (void)add(place.name, "F32", shape[0], ndim > 1 ? shape[1] : 0, (float)i);
        }
    }
    return m->count > 0;
}

static void close_model(model *m)
{
    tsr_module_release(&m->module);
    tsr_comm_release(&m->comm);
    tsr_mesh_release(&m->mesh);
    tsr_world_close(&m->world);
}

/* Does the file fit? words stand in the notice, or in the message. */
static void check(const model *m, tsr_status status, const char *words)
{
    char notice[TSRI_HF_NOTICE_BYTES] = "";
    tsri_safetensors *st = NULL;
    const char *text = notice;

    REQUIRE_OK(tsri_safetensors_open(write_tensors("tied.safetensors"), &st));
    CHECK_EQ(tsri_hf_check(st, m->spec, m->params, m->count, notice), status);
    if (status != TSR_OK) {
        text = tsr_error_message();
    }
    if (strstr(text, words) == NULL) {
        CHECK_STR(text, words);
    }
    tsr_error_clear();
    tsri_safetensors_close(&st);
}

/* ---- cases ---- */

static void head_beside_embedding(void)
{
    const tsri_model_spec *const specs[] = {&tied_llama, &tied_gpt2};
    const char *const embeds[] = {"model.embed_tokens.weight", "transformer.wte.weight"};

    for (int i = 0; i < 2; i++) {
        model m;
        char words[160];
        file_tensor *head = NULL;

        REQUIRE(open_model(specs[i], &m));
        find(embeds[i])->value = 0.1F; /* which bf16 has not */
        head = add("lm_head.weight", "F32", 6, 8, 0.1F);
        (void)snprintf(words, sizeof(words), "lm_head.weight is %s, and equal to it", embeds[i]);
        check(&m, TSR_OK, words);
        (void)snprintf(words, sizeof(words), "%s and lm_head.weight differ", embeds[i]);
        head->type = "BF16";
        check(&m, TSR_ERR_FORMAT, words);
        check(&m, TSR_ERR_FORMAT, "model.tied=false keeps both");
        head->type = "F32";
        head->value = 0.5F;
        check(&m, TSR_ERR_FORMAT, words);
        check(&m, TSR_ERR_FORMAT, "entry 0 is 0.100000001 and 0.5");
        head->value = 0.1F;
        head->rows = 7;
        check(&m, TSR_ERR_FORMAT, "they have shapes [6, 8] and [7, 8]");
        head->rows = 6;
        head->type = "I8";
        check(&m, TSR_ERR_FORMAT, "one is F32 and the other I8");
        close_model(&m);
    }
}

static void head_alone(void)
{
    tsri_model_spec untied = tied_llama;
    model m;

    REQUIRE(open_model(&tied_llama, &m));
    (void)strcpy(find("model.embed_tokens.weight")->name, "lm_head.weight");
    check(&m, TSR_OK, "lm_head.weight is read for model.embed_tokens.weight");
    close_model(&m);
    untied.tied = false;
    REQUIRE(open_model(&untied, &m));
    (void)strcpy(find("lm_head.weight")->name, "other");
    check(&m, TSR_ERR_FORMAT, "model.tied=true takes the embedding for it");
    close_model(&m);
}

static void names_of_wrappers(void)
{
    static const char *const prefixes[] = {"module.", "module._orig_mod.", "module._", ""};
    model m;

    for (int p = 0; p < 4; p++) {
        REQUIRE(open_model(&tied_gpt2, &m));
        for (int i = 0; i < g_count; i++) {
            char name[96];

            (void)snprintf(name, sizeof(name), "%s%.80s", prefixes[p],
                           g_tensors[i].name + (p == 3 ? strlen("transformer.") : 0));
            (void)memcpy(g_tensors[i].name, name, sizeof(name));
        }
        check(&m, p == 2 ? TSR_ERR_FORMAT : TSR_OK, p == 2 ? "no tensor" : "tensors, F32");
        close_model(&m);
    }
}

static void left_over(void)
{
    model m;

    REQUIRE(open_model(&tied_gpt2, &m));
    find("transformer.wpe.weight")->type = "BF16";
    check(&m, TSR_OK, "tensors, F32 and BF16 as f32");
    (void)add("transformer.h.0.attn.bias", "BOOL", 4, 4, 0.0F);
    check(&m, TSR_OK, "1 computed instead of read: transformer.h.0.attn.bias");
    (void)add("transformer.h.1.ln_1.weight", "F32", 8, 0, 0.0F);
    (void)add("x\\u001b[31m", "I8", 4, 4, 0.0F);
    check(&m, TSR_OK, "2 not used: transformer.h.1.ln_1.weight, x?[31m");
    find("transformer.wpe.weight")->type = "U8";
    check(&m, TSR_ERR_FORMAT, "transformer.wpe.weight is U8, wants F32");
    close_model(&m);
}

const tsr_test_case tsr_test_cases[] = {
    {"head_beside_embedding", head_beside_embedding},
    {"head_alone", head_alone},
    {"names_of_wrappers", names_of_wrappers},
    {"left_over", left_over},
    {NULL, NULL},
};
