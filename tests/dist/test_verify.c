/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 3 4 8 */
/* labels: parity */
/**
 * @file test_verify.c
 * The golden trajectories on every kind of layout; and that what is wrong is found.
 *
 * The bounds are those of tests/golden/README.md, in src/verify/verify.c.
 */
#include "base/base.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "comm/comm.h"
#include "support/tsr_test.h"
#include "verify/verify.h"

static const struct {
    int ranks;
    const char *mesh;
} meshes[] = {
    {1, "shard=1"},
    {2, "shard=2"},
    {2, "replicate=2"},
    {2, "tp=2"},
    {3, "shard=3"},
    {3, "replicate=3"},
    {4, "shard=4"},
    {4, "replicate=2,shard=2"},
    {4, "shard=2,replicate=2"},
    {4, "shard=2,tp=2"},
    {4, "tp=2,shard=2"},
    {4, "tp=4"},
    {8, "replicate=2,shard=2,tp=2"},
    {8, "shard=2,tp=4"},
    {8, "replicate=2,shard=4"},
};

static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

enum {
    MESHES = (int)(sizeof(meshes) / sizeof(meshes[0])),
    PRESETS = (int)(sizeof(presets) / sizeof(presets[0]))
};

static tsr_world *open_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    return world;
}

/* Runs the case and says, by its name, what is off although it should not be. */
static void check_verified(tsr_world *world, const tsri_verify_options *o)
{
    tsri_verify_report report;

    REQUIRE_OK(tsri_verify_run(world, o, &report));
    CHECK(report.row_count >= 3);
    CHECK(report.ok);
    for (int i = 0; i < report.row_count; i++) {
        const tsri_verify_row *row = &report.rows[i];

        if (!row->ok && tsr_test_rank() == 0) {
            (void)fprintf(stderr, "%s on %s, %s: %s (%s) is off by %g, bound %g, at %s\n",
                          o->folder, report.mesh, report.preset, row->quantity, row->measure,
                          row->error, row->bound, row->where);
        }
    }
}

/* The golden case on each mesh of this number of ranks, with preset_count presets in turn. */
static void check_case(const char *name, int preset_count)
{
    tsr_world *world = open_world();
    int runs = 0;

    REQUIRE(world != NULL);
    for (int m = 0; m < MESHES; m++) {
        for (int p = 0; meshes[m].ranks == tsr_test_size() && p < preset_count; p++) {
            const tsri_verify_options o = {.folder = tsr_test_golden_path(name),
                                           .mesh = meshes[m].mesh,
                                           .preset = presets[(m + 2 * p) % PRESETS]};

            check_verified(world, &o);
            runs++;
        }
    }
    CHECK(runs > 0);
    tsr_world_close(&world);
}

static void gpt2_tiny(void)
{
    check_case("train/gpt2-tiny", 1);
}

static void llama_accum3(void)
{
    check_case("train/llama-accum3", 1);
}

static void llama_tied(void)
{
    check_case("train/llama-tied", 3);
}

static void llama_sharded_file(void)
{
    check_case("train/llama-sharded-file", 1);
}

/* What tests/golden/files/README.md lists. */
static void files(void)
{
    tsri_verify_options differs = {0};

    check_case("files/extra-f8e4m3", 1);
    check_case("files/gpt2-mask-bool", 1);
    check_case("files/gpt2-tied-only-head", 1);
    check_case("files/index-dot", 1);
    check_case("files/single-beside-old-shards", 1);
    differs.folder = tsr_test_golden_path("files/tied-head-differs");
    CHECK_EQ(tsri_verify_check(&differs, tsr_test_size()), TSR_ERR_FORMAT);
    CHECK(strstr(tsr_error_message(), "model.embed_tokens.weight and lm_head.weight differ") !=
          NULL);
    tsr_error_clear();
}

/* What tests/golden/extra/README.md lists. */
static void extra(void)
{
    check_case("extra/llama-bias", 2);
    check_case("extra/llama-one-token-rows", 2);
    check_case("extra/llama-first-tokens", 2);
    check_case("extra/gpt2-untied", 2);
}

/* Gradients of norms are Partial on tp, and levels 1 and 2 cut through them at other places on each
 * rank; sizes that tp does not divide make its ranks' units unequal. */
static void extra_sequence_parallel(void)
{
    static const char *const names[] = {"extra/llama-bias", "extra/llama-first-tokens",
                                        "extra/gpt2-untied"};
    tsr_world *world = open_world();
    int runs = 0;

    REQUIRE(world != NULL);
    for (int m = 0; m < MESHES; m++) {
        for (int i = 0; i < 9 && meshes[m].ranks == tsr_test_size(); i++) {
            const tsri_verify_options o = {.folder = tsr_test_golden_path(names[i / 3]),
                                           .mesh = meshes[m].mesh,
                                           .preset = presets[i % 3 == 2 ? 5 : i % 3 + 1],
                                           .sequence_parallel = true};

            if (strstr(meshes[m].mesh, "tp=") != NULL) {
                check_verified(world, &o);
                runs++;
            }
        }
    }
    CHECK(runs > 0 || tsr_test_size() % 2 == 1);
    tsr_world_close(&world);
}

static void under_race_check(void)
{
    (void)setenv("TSR_RACE_CHECK", "1", 1);
    check_case("train/llama-tied", 1);
    (void)unsetenv("TSR_RACE_CHECK");
}

/* Levels and accumulation together. */
static void all_presets(void)
{
    static const char *const mesh_of[] = {[1] = "shard=1",
                                          [2] = "shard=2",
                                          [3] = "shard=3",
                                          [4] = "replicate=2,shard=2",
                                          [8] = "replicate=2,shard=2,tp=2"};
    tsr_world *world = open_world();

    REQUIRE(world != NULL);
    for (int p = 0; p < PRESETS; p++) {
        const tsri_verify_options o = {.folder = tsr_test_golden_path("train/llama-accum3"),
                                       .mesh = mesh_of[tsr_test_size()],
                                       .preset = presets[p]};

        check_verified(world, &o);
    }
    tsr_world_close(&world);
}

/* ---- twins that must fail ---- */

typedef enum damage_kind {
    DROPPED, /* as if a reduction had not happened */
    DOUBLED, /* as if it had happened twice */
    SHIFTED, /* as if a shard were off by one */
    DAMAGES
} damage_kind;

typedef struct damage {
    damage_kind kind;
    int rank; /* the only one that does it */
    int64_t step;
} damage;

static bool is_matrix_of_block(const tsr_param *param)
{
    return strncmp(tsr_param_name(param), "layers.", 7) == 0 &&
           tsr_param_get_spec(param)->ndim == 2;
}

static void harm(damage_kind kind, float *values, int64_t count)
{
    const float first = values[0];

    for (int64_t i = 0; i < count; i++) {
        if (kind == SHIFTED) {
            values[i] = i + 1 < count ? values[i + 1] : first;
        } else {
            values[i] = kind == DROPPED ? 0.0F : 2.0F * values[i];
        }
    }
}

/* Spoils what one rank owns of one weight's gradient. */
static tsr_status disturb(void *context, tsri_job *job, int64_t step)
{
    const damage *d = context;
    tsr_stream *stream = tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE);

    for (int i = 0; i < job->param_count; i++) {
        const tsr_param *p = job->params[i];
        const int64_t count = tsri_param_own_count(p);
        const tsri_rest *grad = NULL;
        float *values = NULL;

        if (step == d->step && tsr_comm_rank(job->comm) == d->rank && is_matrix_of_block(p) &&
            count > 2) {
            TSR_TRY(tsri_alloc((size_t)count, sizeof(*values), &values));
            TSR_TRY(tsri_param_get_grad(p, &grad));
            TSR_TRY(tsri_rest_get(grad, grad->piece.begin, grad->piece.end, values, stream));
            harm(d->kind, values, count);
            TSR_TRY(tsri_rest_put(grad, grad->piece.begin, grad->piece.end, values, stream));
            tsri_free(&values);
            return TSR_OK;
        }
    }
    return TSR_OK;
}

static const tsri_verify_row *find_row(const tsri_verify_report *report, const char *quantity)
{
    for (int i = 0; i < report->row_count; i++) {
        if (strcmp(report->rows[i].quantity, quantity) == 0) {
            return &report->rows[i];
        }
    }
    return NULL;
}

static void check_damage(tsr_world *world, const char *mesh, const char *preset, damage d)
{
    const tsri_verify_options o = {.folder = tsr_test_golden_path("train/llama-tied"),
                                   .mesh = mesh,
                                   .preset = preset,
                                   .disturb = disturb,
                                   .disturb_context = &d};
    tsri_verify_report report;

    REQUIRE_OK(tsri_verify_run(world, &o, &report));
    CHECK(!report.ok);
    REQUIRE(find_row(&report, "grad") != NULL && find_row(&report, "adam_m") != NULL);
    CHECK_EQ(find_row(&report, "grad")->ok, d.step != 0);
    CHECK(!find_row(&report, "adam_m")->ok);
    CHECK(find_row(&report, "step0_logits")->ok);
}

static void damage_is_found(void)
{
    const int size = tsr_test_size();
    tsr_world *world = open_world();

    REQUIRE(world != NULL);
    for (int m = 0; m < MESHES; m++) {
        const damage first = {(damage_kind)(m % DAMAGES), size - 1, 0};
        const damage late = {(damage_kind)((m + 1) % DAMAGES), m % size, 3};

        if (meshes[m].ranks == size) {
            check_damage(world, meshes[m].mesh, presets[m % PRESETS], first);
            check_damage(world, meshes[m].mesh, presets[(m + 3) % PRESETS], late);
        }
    }
    tsr_world_close(&world);
}

/* A golden case whose file name has old replaced by new, in the scratch folder. */
static void make_case(const char *golden, const char *name, const char *old, const char *new)
{
    static const char *const files[] = {"config.json",        "train.json",
                                        "expect.json",        "model.safetensors",
                                        "tokens.safetensors", "expect.safetensors"};
    char path[512];
    char *text = NULL;
    char *at = NULL;
    size_t bytes = 0;
    FILE *file = NULL;

    (void)mkdir(tsr_test_scratch_path("case"), 0777);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/case/%s", tsr_test_scratch_path("."), files[i]);
        (void)unlink(path);
        if (strcmp(files[i], name) != 0) {
            char target[512];

            (void)snprintf(target, sizeof(target), "%s/%s", tsr_test_golden_path(golden), files[i]);
            CHECK_EQ(symlink(target, path), 0);
        }
    }
    (void)snprintf(path, sizeof(path), "%s/%s", tsr_test_golden_path(golden), name);
    REQUIRE_OK(tsri_file_read(path, &text, &bytes));
    at = strstr(text, old);
    (void)snprintf(path, sizeof(path), "%s/case/%s", tsr_test_scratch_path("."), name);
    file = fopen(path, "wb");
    CHECK(at != NULL && file != NULL);
    if (at != NULL && file != NULL) {
        CHECK(fprintf(file, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old)) > 0);
        CHECK_EQ(fclose(file), 0);
    }
    tsri_free(&text);
}

/* What golden/README.md says the bounds notice, and other changes of the run; by quantity. */
static void changes_are_found(void)
{
    static const struct {
        const char *golden, *file, *old, *new, *quantity;
    } changes[] = {
        {"train/gpt2-tiny", "config.json", "\"layer_norm_epsilon\": 1e-05",
         "\"layer_norm_epsilon\": 1.1e-05", "step0_logits"},
        {"train/llama-accum3", "config.json", "\"rms_norm_eps\": 1e-05",
         "\"rms_norm_eps\": 1.1e-05", "step0_logits"},
        {"train/llama-accum3", "config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 10010.0",
         "step0_logits"},
        {"train/llama-accum3", "train.json", "\"weight_decay\": 0.1", "\"weight_decay\": 0.11",
         "final"},
        {"train/llama-accum3", "train.json", "\"clip_norm\": 0.5", "\"clip_norm\": 0.51", "adam_m"},
        {"train/llama-accum3", "train.json", "0.95", "0.951", "adam_v"},
        {"train/llama-tied", "train.json", "\"eps\": 1e-05", "\"eps\": 1.1e-05", "final"},
        {"train/llama-accum3", "train.json", "0.00193149", "0.00194149", "final"},
        {"train/llama-accum3", "expect.json", "\"tokens\": 102", "\"tokens\": 103", "tokens"},
        {"train/llama-accum3", "expect.json", "5.2622476", "5.2622577", "loss"},
        {"train/llama-accum3", "expect.json", "2.2251766", "2.2252766", "grad_norm"},
    };
    tsr_world *world = NULL;

    if (tsr_test_size() > 2) {
        return; /* nothing here depends on the layout */
    }
    world = open_world();
    REQUIRE(world != NULL);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char folder[512];
        const tsri_verify_options o = {.folder = folder};
        const tsri_verify_row *row = NULL;
        tsri_verify_report report;

        (void)snprintf(folder, sizeof(folder), "%s", tsr_test_scratch_path("case"));
        if (tsr_test_rank() == 0) {
            make_case(changes[i].golden, changes[i].file, changes[i].old, changes[i].new);
        }
        CHECK_OK(tsr_world_agree(world, TSR_OK));
        REQUIRE_OK(tsri_verify_run(world, &o, &report));
        row = find_row(&report, changes[i].quantity);
        REQUIRE(row != NULL);
        if (strcmp(changes[i].quantity, "final") == 0) {
            row = row->ok ? row + 1 : row; /* the largest, or how many */
        }
        CHECK(!report.ok);
        if (row->ok) {
            CHECK_STR(changes[i].new, "noticed");
        }
        CHECK_OK(tsr_world_agree(world, TSR_OK));
    }
    tsr_world_close(&world);
}

/* The golden case with one number of tensor name of expect.safetensors replaced. */
static void make_expect(const char *golden, const char *name, float value)
{
    char path[512];
    char *bytes = NULL;
    size_t count = 0;
    tsri_safetensors *st = NULL;
    FILE *file = NULL;

    make_case(golden, "train.json", "adamw", "adamw");
    (void)snprintf(path, sizeof(path), "%s/case/expect.safetensors", tsr_test_scratch_path("."));
    REQUIRE_OK(tsri_file_read(path, &bytes, &count));
    REQUIRE_OK(tsri_safetensors_open(path, &st));
    REQUIRE(tsri_safetensors_find(st, name) != NULL);
    memcpy(bytes + tsri_safetensors_find(st, name)->begin, &value, sizeof(value));
    tsri_safetensors_close(&st);
    (void)unlink(path);
    file = fopen(path, "wb");
    REQUIRE(file != NULL);
    CHECK_EQ(fwrite(bytes, 1, count, file), count);
    CHECK_EQ(fclose(file), 0);
    tsri_free(&bytes);
}

/* An error by the largest entry must not become a number again where that entry is none. */
static void no_number_is_no_match(void)
{
    static const float values[] = {INFINITY, NAN};
    static const char name[] = "model.layers.0.mlp.up_proj.weight";
    tsr_world *world = open_world();

    REQUIRE(world != NULL);
    for (int i = 0; i < 8; i++) {
        char folder[512];
        char tensor[64];
        const tsri_verify_options o = {.folder = folder};
        static const char *const kinds[] = {"grad", "adam_m", "adam_v", "final"};
        tsri_verify_report report;

        (void)snprintf(folder, sizeof(folder), "%s", tsr_test_scratch_path("case"));
        (void)snprintf(tensor, sizeof(tensor), "%s.%s", kinds[i / 2], name);
        if (tsr_test_rank() == 0) {
            make_expect("train/llama-tied", tensor, values[i % 2]);
        }
        CHECK_OK(tsr_world_agree(world, TSR_OK));
        REQUIRE_OK(tsri_verify_run(world, &o, &report));
        REQUIRE(find_row(&report, kinds[i / 2]) != NULL);
        CHECK(!find_row(&report, kinds[i / 2])->ok);
        CHECK(!report.ok);
        CHECK_OK(tsr_world_agree(world, TSR_OK));
    }
    tsr_world_close(&world);
}

/* ---- what the starting process sees ---- */

static void check_refused(const char *golden, int ranks, const char *mesh, const char *preset,
                          const char *words)
{
    const tsri_verify_options o = {
        .folder = tsr_test_golden_path(golden), .mesh = mesh, .preset = preset};

    CHECK(tsri_verify_check(&o, ranks) != TSR_OK);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void check_before_start(void)
{
    const int64_t live = tsri_alloc_live();

    if (tsr_test_size() > 1) {
        return; /* one process, before there are ranks */
    }
    for (int m = 0; m < MESHES; m++) {
        const tsri_verify_options o = {.folder = tsr_test_golden_path("train/llama-accum3"),
                                       .mesh = meshes[m].mesh};

        CHECK_OK(tsri_verify_check(&o, meshes[m].ranks));
    }
    check_refused("train/none", 1, NULL, NULL, "train/none/train.json");
    check_refused("train", 1, NULL, NULL, "train/train.json");
    check_refused("train/gpt2-tiny", 4, "shard=3", NULL, "mesh shard=3 has 3 cells for 4 ranks");
    check_refused("train/gpt2-tiny", 8, "tp=8", NULL, "it has 4 heads; legal sizes are 1, 2, 4");
    check_refused("train/llama-accum3", 3, "tp=3", NULL, "legal sizes are 1, 2, 4");
    check_refused("train/llama-accum3", 2, "shard=2", "fsdpp", "the nearest is fsdp");
    CHECK_EQ(tsri_alloc_live(), live);
}

const tsr_test_case tsr_test_cases[] = {
    {"gpt2_tiny", gpt2_tiny},
    {"llama_accum3", llama_accum3},
    {"llama_tied", llama_tied},
    {"llama_sharded_file", llama_sharded_file},
    {"files", files},
    {"extra", extra},
    {"extra_sequence_parallel", extra_sequence_parallel},
    {"all_presets", all_presets},
    {"under_race_check", under_race_check},
    {"damage_is_found", damage_is_found},
    {"changes_are_found", changes_are_found},
    {"no_number_is_no_match", no_number_is_no_match},
    {"check_before_start", check_before_start},
    {NULL, NULL},
};
