/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Configurations: what is read, what is refused in which words, and that writing one and reading
 * it again changes nothing. */
#include "base/base.h"
#include "base/file.h"

#include <string.h>

#include "config/config.h"
#include "job/from_config.h"
#include "plan/fit.h"
#include "support/tsr_test.h"

static const char tiny[] = "model: {preset: llama-tiny}\n";

static const char *write_config(const char *text)
{
    const char *path = tsr_test_scratch_path("run.yaml");

    CHECK_OK(tsri_file_write(path, text, strlen(text)));
    return path;
}

static tsri_config *load_words(const char *text, const char *const *words, int count)
{
    tsri_config *config = NULL;

    CHECK_OK(tsri_config_load(write_config(text), words, count, &config));
    return config;
}

/* The message begins with place ("run.yaml:3", or "command line") and holds words. */
static void check_message(const char *place, const char *words)
{
    const char *message = tsr_error_message();
    const char *found = strstr(message, place);

    if (found == NULL || strstr(found, words) == NULL) {
        CHECK_STR(message, words);
    }
    tsr_error_clear();
}

static void refuse(const char *text, tsr_status status, const char *place, const char *words)
{
    tsri_config *config = NULL;

    CHECK_EQ(tsri_config_load(write_config(text), NULL, 0, &config), status);
    CHECK(config == NULL);
    check_message(place, words);
    tsri_config_free(&config);
}

static void refuse_at(const char *place, const char *word, tsr_status status, const char *words)
{
    tsri_config *config = NULL;

    CHECK_EQ(tsri_config_load(write_config(tiny), &word, 1, &config), status);
    CHECK(config == NULL);
    check_message(place, words);
    tsri_config_free(&config);
}

static void refuse_word(const char *word, tsr_status status, const char *words)
{
    refuse_at("command line: ", word, status, words);
}

static void every_key_of_the_design(void)
{
    static const char text[] =
        "model: {arch: llama, layers: 8, dim: 512, heads: 8, kv_heads: 4, ffn: 1408, vocab: 256}\n"
        "mesh: {replicate: 2, shard: 2, tp: 2}      # -1 once = what is left\n"
        "parallel: {preset: hfsdp, sequence_parallel: false, reshard_after_forward: never,\n"
        "           prefetch: 2, units: model, param_dtype: bf16, reduce_dtype: bf16,\n"
        "           activation_checkpointing: none, offload: [optimizer, gradients], tp_plan: "
        "default,\n"
        "           data_axes: [replicate, shard], backward_prefetch: post, reshard_group: 2,\n"
        "           shard_dims: [\"layers.*.mlp.down.weight\"], ignored: [\"embed.*\", "
        "head.weight]}\n"
        "train: {steps: 200, batch: 8, micro_batches: 2, seq: 256, lr: 3e-4, schedule: wsd,\n"
        "        warmup: 20, clip_norm: 1.0, seed: 7}\n"
        "optim: {kind: adamw, betas: [0.8, 0.99], eps: 1e-8, weight_decay: 0.1,\n"
        "        groups: [{match: \"layers.*.mlp.**\", lr_scale: 0.5, weight_decay: 0}]}\n"
        "data: {kind: text, path: data/*.txt}\n"
        "checkpoint: {every: 0, keep: 3, async: true, resume: auto}\n"
        "eval: {every: 0, batches: 8}\n"
        "log: {every: 1, tensorboard: false}\n"
        "run: {dir: runs/demo, backend: auto, timeout_s: 600}\n";
    tsri_config *config = load_words(text, NULL, 0);
    tsri_job_options job;

    REQUIRE(config != NULL);
    REQUIRE_OK(tsri_config_fit(config, 8, 1, NULL));
    tsri_job_from_config(config, false, &job);
    CHECK_EQ(job.model.layers, 8);
    CHECK_EQ(job.model.kv_heads, 4);
    CHECK_EQ(job.axis_count, 3);
    CHECK_STR(job.axes[2].name, "tp");
    CHECK_STR(job.preset, "hfsdp");
    CHECK_EQ(job.fsdp.param_dtype, TSR_BF16);
    CHECK_EQ(job.fsdp.reduce_dtype, TSR_BF16);
    CHECK_EQ(job.fsdp.reshard_after_forward, TSR_RESHARD_NEVER);
    CHECK_EQ(job.fsdp.prefetch_depth, 3);
    CHECK_EQ(job.fsdp.backward_prefetch, TSR_PREFETCH_POST);
    CHECK_EQ(job.fsdp.reshard_group, 2);
    REQUIRE_EQ(job.split_cols.count, 1);
    CHECK_STR(job.split_cols.at[0], "layers.*.mlp.down.weight");
    REQUIRE_EQ(job.ignored.count, 2);
    CHECK_STR(job.ignored.at[1], "head.weight");
    CHECK(job.one_unit);
    CHECK(job.optim.offload && job.fsdp.offload_grads && !job.fsdp.offload_params);
    CHECK(!job.scale_loss);
    CHECK_EQ(job.data_axis_count, 2);
    CHECK_STR(job.data_axes[1], "shard");
    CHECK_EQ(job.batch, 4);
    CHECK_EQ(job.micro_batches, 2);
    CHECK_EQ(job.seed, 7);
    CHECK(job.optim.beta1 == 0.8 && job.optim.beta2 == 0.99);
    REQUIRE_EQ(job.optim.group_count, 1);
    CHECK_STR(job.optim.groups[0].match, "layers.*.mlp.**");
    CHECK(job.optim.groups[0].set_weight_decay && job.optim.groups[0].weight_decay == 0.0);
    CHECK_EQ(tsri_schedule_from_config(config).kind, TSR_SCHEDULE_WSD);
    tsri_config_free(&config);
}

static void defaults_hold(void)
{
    tsri_config *config = load_words(tiny, NULL, 0);
    tsri_job_options job;

    REQUIRE(config != NULL);
    REQUIRE_OK(tsri_config_fit(config, 4, 1, NULL));
    tsri_job_from_config(config, false, &job);
    CHECK_EQ(job.axis_count, 1);
    CHECK_STR(job.axes[0].name, "shard");
    CHECK_EQ(job.axes[0].size, 4);
    CHECK_STR(job.preset, "hsdp");
    CHECK_EQ(job.fsdp.param_dtype, TSR_F32);
    CHECK_EQ(job.fsdp.prefetch_depth, 2);
    CHECK_EQ(job.fsdp.backward_prefetch, TSR_PREFETCH_PRE);
    CHECK_EQ(job.fsdp.reshard_group, 0);
    CHECK_EQ(job.split_cols.count + job.ignored.count, 0);
    CHECK_EQ(job.optim.kind, TSR_ADAMW);
    CHECK_EQ(job.data_axis_count, 0);
    CHECK_EQ(config->train.steps, 200);
    CHECK(config->train.lr == 3e-4);
    tsri_job_from_config(config, true, &job); /* a device that computes in bf16 */
    CHECK_EQ(job.fsdp.param_dtype, TSR_BF16);
    tsri_config_free(&config);
}

static void types_and_places(void)
{
    static const char *const words[] = {"parallel.param_dtype=f16",
                                        "parallel.reduce_dtype=f16",
                                        "parallel.offload=[gradients, optimizer, activations]",
                                        "parallel.activation_checkpointing=selective",
                                        "parallel.activation_keep=[linear, attention]",
                                        "train.loss_scale_init=1024"};
    tsri_config *config = load_words(tiny, words, 6);
    tsri_job_options job;

    REQUIRE(config != NULL);
    REQUIRE_OK(tsri_config_fit(config, 4, 1, NULL));
    tsri_job_from_config(config, false, &job);
    CHECK_EQ(job.fsdp.param_dtype, TSR_F16);
    CHECK_EQ(job.fsdp.reduce_dtype, TSR_F16);
    CHECK(!job.fsdp.offload_params && job.fsdp.offload_grads && job.optim.offload);
    CHECK(job.recompute.offload);
    REQUIRE_EQ(job.recompute.keep.count, 2);
    CHECK_STR(job.recompute.keep.at[1], "attention");
    CHECK_EQ(job.recompute.every, 2);
    CHECK(job.scale_loss); /* by itself, for f16 */
    CHECK(job.loss_scale.init == 1024.0);
    CHECK_EQ(job.loss_scale.interval, 2000);
    tsri_config_free(&config);
    config = load_words(tiny, NULL, 0);
    REQUIRE(config != NULL);
    REQUIRE_OK(tsri_config_fit(config, 4, 1, NULL));
    tsri_job_from_config(config, false, &job);
    CHECK(!job.scale_loss && !job.fsdp.offload_params && !job.optim.offload);
    tsri_config_free(&config);
}

static void unknown_keys(void)
{
    refuse("train:\n  stpes: 3\n", TSR_ERR_INVALID,
           "run.yaml:2: ", "unknown key \"train.stpes\"; the nearest is \"train.steps\"");
    refuse("\n\ntrian: {steps: 3}\n", TSR_ERR_INVALID,
           "run.yaml:3: ", "unknown key \"trian\"; the nearest is \"train\"");
    refuse("paralel: {preset: fsdp}\n", TSR_ERR_INVALID,
           "run.yaml:1: ", "unknown key \"paralel\"; the nearest is \"parallel\"");
    refuse("\"a\\n\\e[31mb\": 1\n", TSR_ERR_INVALID, "run.yaml:1: ", "key \"a??[31mb\"");
    refuse_word("paralel={preset: fsdp}", TSR_ERR_INVALID, "the nearest is \"parallel\"");
    refuse_word("msh=shard=2", TSR_ERR_INVALID, "the nearest is \"mesh\"");
    refuse("optim:\n  kind: sgd\n  lr: 0.1\n", TSR_ERR_INVALID,
           "run.yaml:3: ", "unknown key \"optim.lr\"; the nearest is \"train.lr\"");
    refuse("seq: 3\n", TSR_ERR_INVALID, "run.yaml:1: ", "the nearest is \"train.seq\"");
    refuse("wholly-unlike: 3\n", TSR_ERR_INVALID, "run.yaml:1: ", "`tessera config` lists all");
    refuse_word("train.stpes=3", TSR_ERR_INVALID, "the nearest is \"train.steps\"");
    refuse("optim: {groups: [{match: a, lr_scal: 2}]}", TSR_ERR_INVALID, "run.yaml:1: ",
           "unknown key \"lr_scal\" in optim.groups, which has match, lr_scale and weight_decay; "
           "the nearest is lr_scale");
}

static void wrong_types(void)
{
    static const struct {
        const char *word, *text;
    } cases[] = {
        {"train.steps=many", "train.steps is \"many\", wants a whole number"},
        {"train.steps=1.5", "train.steps is \"1.5\", wants a whole number"},
        {"train.steps=1e3", "wants a whole number"},
        {"train.steps=0x10", "wants a whole number"},
        {"train.steps='12'", "wants a whole number"},
        {"train.steps=", "train.steps is empty, wants a whole number"},
        {"train.steps=[1]", "train.steps is a list, wants a whole number"},
        {"train.steps={a: 1}", "train.steps is a map, wants a whole number"},
        {"train.steps=99999999999999999999", "wants a whole number, 1 to 2000000000"},
        {"train.lr=fast", "train.lr is \"fast\", wants a number"},
        {"train.lr=nan", "wants a number"},
        {"train.lr=0x1p3", "wants a number"},
        {"train.lr=1e999", "wants a number"},
        {"log.trace=1", "log.trace is \"1\", wants true or false"},
        {"log.trace='true'", "wants true or false"},
        {"optim.betas=0.9", "wants a list of two numbers above 0 and below 1"},
        {"optim.betas=[0.9]", "wants a list of two numbers"},
        {"optim.betas=[0.9, 1]", "optim.betas is \"1\""},
        {"optim.groups={match: a}", "wants a list of {match"},
        {"optim.groups=[{lr_scale: 2}]", "wants a match"},
        {"optim.groups=[{match: a, lr_scale: 0}]", "optim.groups[].lr_scale is \"0\""},
        {"parallel.data_axes=shard", "wants auto, or a list of names"},
        {"parallel.data_axes=[]", "wants auto, or a list of names"},
        {"parallel.data_axes=[a, a]", "parallel.data_axes is \"a\", wants each name once"},
        {"parallel.offload=[optimiser]", "the nearest is optimizer"},
        {"parallel.offload=[]", "wants none, or a list of parameters, gradients, optimizer, "
                                "activations"},
        {"parallel.offload=[activations]",
         "names activations, but parallel.activation_checkpointing is none"},
        {"parallel.activation_keep=[attention]",
         "names operations, but parallel.activation_checkpointing is none"},
        {"parallel.activation_keep=[atention]", "the nearest is attention"},
        {"mesh=8", "wants auto, or axes with sizes"},
        {"mesh={}", "wants auto, or axes with sizes"},
        {"mesh={tp: two}", "mesh axis \"tp\" is \"two\", wants a whole number"},
        {"mesh={tp: 0}", "mesh axis \"tp\" has size 0"},
        {"mesh={a: -1, b: -1}", "leaves both"},
        {"mesh=tp=x", "\"tp=x\" is not axis=size"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refuse_word(cases[i].word, TSR_ERR_INVALID, cases[i].text);
    }
    refuse("train: 3\n", TSR_ERR_INVALID, "run.yaml:1: ", "train is a value, wants keys");
    refuse("- train\n", TSR_ERR_FORMAT, "run.yaml:1: ", "wants sections");
    refuse("mesh:\n  shard: 2\n  tp: x\n", TSR_ERR_INVALID, "run.yaml:3: ", "mesh axis \"tp\"");
}

static void values_out_of_range(void)
{
    refuse_word("train.steps=0", TSR_ERR_INVALID, "train.steps is \"0\"");
    refuse_word("train.batch=-4", TSR_ERR_INVALID, "train.batch is \"-4\"");
    refuse_word("train.lr=-1e-3", TSR_ERR_INVALID, "train.lr is \"-1e-3\"");
    refuse_word("train.lr=inf", TSR_ERR_INVALID, "wants a number, 0 to 1000000");
    refuse_word("train.lr=.nan", TSR_ERR_INVALID, "wants a number, 0 to 1000000");
    refuse_word("optim.eps=0", TSR_ERR_INVALID, "1e-30 to 1");
    refuse_word("optim.eps=1e-320", TSR_ERR_INVALID, "1e-30 to 1");
    refuse_word("optim.eps=-1e-8", TSR_ERR_INVALID, "1e-30 to 1");
    refuse_word("model.norm_eps=1e308", TSR_ERR_INVALID, "1e-30 to 1");
    refuse_word("model.norm_eps=1e-320", TSR_ERR_INVALID, "1e-30 to 1");
    refuse_word("model.rope_theta=-1", TSR_ERR_INVALID, "a number, 1 to 1000000000000");
    refuse_word("model.rope_theta=0.5", TSR_ERR_INVALID, "a number, 1 to 1000000000000");
    refuse_word("model.layers=100000", TSR_ERR_INVALID, "a whole number, 1 to 1024");
    refuse_word("model.layers=-1", TSR_ERR_INVALID, "a whole number, 1 to 1024");
    refuse_word("run.dir=\"a\\nb\"", TSR_ERR_INVALID, "wants text without line ends");
    refuse_word("data.path=\"a\\e[2J\"", TSR_ERR_INVALID, "wants text without line ends");
    refuse_word("train.micro_batches=3", TSR_ERR_INVALID,
                "train.batch is 8, which 3 micro-batches do not divide");
    refuse_at("train.min_lr", "train.min_lr=1", TSR_ERR_INVALID, "above train.lr");
    refuse_at("optim.momentum", "optim.momentum=0.9", TSR_ERR_INVALID, "adamw has none");
    refuse_at("run.dir", "run.dir=", TSR_ERR_INVALID, "run.dir is empty");
    refuse("model: {preset: llama-tiny}\ntrain:\n  batch: 6\n  micro_batches: 4\n", TSR_ERR_INVALID,
           "run.yaml:4: ", "train.batch is 6");
}

static void wrong_choices(void)
{
    refuse_word("parallel.preset=hspd", TSR_ERR_INVALID,
                "wants one of ddp, zero1, zero2, fsdp, hsdp, hfsdp; the nearest is hsdp");
    refuse_word("train.schedule=cosin", TSR_ERR_INVALID, "the nearest is cosine");
    refuse_word("model.preset=llama-tinny", TSR_ERR_INVALID, "the nearest is llama-tiny");
    refuse_word("run.backend=gpu", TSR_ERR_INVALID, "wants one of auto, cpu; the nearest is cpu");
}

static void what_is_not_there_is_refused(void)
{
    static const char *const words[] = {
        "checkpoint.every=10", "eval.every=5",      "log.tensorboard=true",     "data.kind=tokens",
        "data.kind=megatron",  "data.kind=tensors", "checkpoint.resume=runs/a",
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        refuse_word(words[i], TSR_ERR_UNSUPPORTED, "is not available in this version");
    }
}

static void duplicates(void)
{
    static const char *const words[] = {"train.lr=1", "train.steps=2", "train.lr=2"};
    tsri_config *config = NULL;

    refuse("train:\n  lr: 1\n  lr: 2\n", TSR_ERR_FORMAT, "run.yaml:3: ", "already on line 2");
    CHECK_EQ(tsri_config_load(write_config(tiny), words, 3, &config), TSR_ERR_INVALID);
    check_message("command line: ", "train.lr is given twice");
}

static void words_replace_the_file(void)
{
    static const char *const words[] = {"train.lr=0.5",           "mesh.tp=2",
                                        "mesh.shard=4",           "model={dim: 128}",
                                        "optim.betas=[0.5, 0.6]", "data.path=a b*.txt"};
    tsri_config *config = load_words(
        "model: {preset: llama-tiny}\nmesh: {shard: 2}\ntrain: {lr: 0.1, steps: 3}\n", words, 6);

    REQUIRE(config != NULL);
    CHECK(config->train.lr == 0.5);
    CHECK_EQ(config->train.steps, 3);
    REQUIRE_EQ(config->mesh.count, 2);
    CHECK_EQ(config->mesh.axes[0].size, 4);
    CHECK_STR(config->mesh.axes[1].name, "tp");
    CHECK_EQ(config->spec.dim, 128);
    CHECK_EQ(config->spec.layers, 4);
    CHECK(config->optim.betas[1] == 0.6);
    CHECK_STR(config->data.path, "a b*.txt");
    tsri_config_free(&config);
    refuse_word("train.lr", TSR_ERR_INVALID, "\"train.lr\" is not key=value");
    refuse_word("=3", TSR_ERR_INVALID, "\"=3\" is not key=value");
    refuse_word("train=3", TSR_ERR_INVALID, "train is a section, wants train.KEY=value");
}

static void what_the_model_is(void)
{
    static const char *const words[] = {"model.preset=gpt2-124m"};
    tsri_config *config = load_words(tiny, words, 1);

    REQUIRE(config != NULL);
    CHECK_EQ(config->spec.arch, TSRI_ARCH_GPT2);
    tsri_config_free(&config);
    config = load_words("model: {arch: gpt2, layers: 2, dim: 32, heads: 2, ffn: 64, vocab: 256, "
                        "dropout: 0.1, tied: false}",
                        NULL, 0);
    REQUIRE(config != NULL);
    CHECK_EQ(config->spec.positions, 256); /* train.seq */
    CHECK(!config->spec.tied);
    tsri_config_free(&config);
    refuse("train: {steps: 1}", TSR_ERR_INVALID, "run.yaml: ", "nothing says what the model is");
    refuse("model: {preset: llama-tiny, arch: gpt2}", TSR_ERR_INVALID,
           "run.yaml: ", "both model.preset and model.arch");
    refuse("model: {arch: llama, layers: 2, dim: 8, heads: 2, vocab: 256}", TSR_ERR_INVALID,
           "run.yaml: ", "wants model.ffn");
    refuse("model: {preset: llama-tiny,\n  positions: 8}", TSR_ERR_INVALID,
           "run.yaml:2: ", "model.positions is not a size of llama");
    refuse("model: {preset: gpt2-124m, kv_heads: 2}", TSR_ERR_INVALID,
           "run.yaml:1: ", "is not a size of gpt2");
    refuse("model: {hf: no/such/folder}", TSR_ERR_IO, "no/such/folder", "No such file");
    refuse_word("model.arch=lama", TSR_ERR_INVALID, "the nearest is llama");
}

static void lists_have_limits(void)
{
    char word[2048] = "parallel.ignored=[p0";
    size_t used = strlen(word);
    const char *const words[] = {word};
    tsri_config *config = NULL;
    tsri_job_options job;

    for (int i = 1; i < TSRI_OPTION_MAX_NAMES; i++) {
        used += (size_t)snprintf(word + used, sizeof(word) - used, ", p%d", i);
    }
    (void)snprintf(word + used, sizeof(word) - used, "]");
    config = load_words(tiny, words, 1);
    REQUIRE(config != NULL);
    REQUIRE_OK(tsri_config_fit(config, 2, 1, NULL));
    tsri_job_from_config(config, false, &job);
    CHECK_EQ(job.ignored.count, TSRI_OPTION_MAX_NAMES);
    tsri_config_free(&config);
    (void)snprintf(word + used, sizeof(word) - used, ", more]");
    refuse_word(word, TSR_ERR_INVALID, "parallel.ignored has 65 entries, at most 64 are possible");
    refuse_word("parallel.data_axes=[a, b, c, d, e, f, g, h, i]", TSR_ERR_INVALID,
                "parallel.data_axes has 9 entries, at most 8");
}

/* model.tied is for who knows better than config.json; nothing else stands beside model.hf. */
static void tied_beside_a_folder(void)
{
    char text[4096];
    const char *const words[] = {"model.tied=false"};
    tsri_config *config = NULL;

    (void)snprintf(text, sizeof(text), "model: {hf: %s}\n",
                   tsr_test_golden_path("train/llama-tied"));
    config = load_words(text, NULL, 0);
    REQUIRE(config != NULL);
    CHECK(config->spec.tied);
    CHECK_STR(config->model_notice, "");
    tsri_config_free(&config);
    config = load_words(text, words, 1);
    REQUIRE(config != NULL);
    CHECK(!config->spec.tied);
    CHECK(strstr(config->model_notice, "model.tied decides") != NULL);
    tsri_config_free(&config);
    (void)snprintf(text, sizeof(text), "model: {hf: %s, layers: 2}\n",
                   tsr_test_golden_path("train/llama-tied"));
    refuse(text, TSR_ERR_INVALID, "run.yaml:1: ", "model.layers cannot be set beside model.hf");
}

/* Written out and read again: the same text, whatever was set. */
static void written_and_read_again(void)
{
    static const char *const cases[] = {
        "model: {preset: llama-tiny}",
        "model: {arch: gpt2, layers: 2, dim: 32, heads: 2, ffn: 64, vocab: 300, positions: 9000, "
        "dropout: 0.1, tied: false, norm_eps: 1e-6}\n"
        "mesh: {a_1: 3, tp: 2}\n"
        "optim: {kind: sgd, momentum: 0.9, nesterov: true, eps: 1.5e-7, betas: [0.1, "
        "0.123456789],\n"
        "  groups: [{match: '*.b\"ias', lr_scale: 3}, {match: \"{a,b}.**\", weight_decay: 0.25}]}\n"
        "parallel: {data_axes: [a_1], param_dtype: bf16, reshard_after_forward: always,\n"
        "  backward_prefetch: none, shard_dims: ['layers.{0,1}.*'], ignored: ['*.\"x: y', b]}\n"
        "data: {path: \"odd: name #1\\\\ \\\"x\\\".txt\"}\n"
        "run: {dir: '-x y'}\n",
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tsri_config *first = load_words(cases[i], NULL, 0);
        tsri_config *second = NULL;
        tsri_text a = {0};
        tsri_text b = {0};

        REQUIRE(first != NULL);
        CHECK_OK(tsri_config_fit(first, 6, 1, NULL));
        tsri_config_print(first, &a);
        second = load_words(a.data, NULL, 0);
        REQUIRE(second != NULL);
        tsri_config_print(second, &b);
        CHECK_STR(a.data, b.data);
        CHECK_STR(first->run.dir, second->run.dir);
        CHECK(strstr(a.data, "steps: 200\n") != NULL);
        tsri_text_free(&a);
        tsri_text_free(&b);
        tsri_config_free(&first);
        tsri_config_free(&second);
    }
}

static void meshes_fit_ranks(void)
{
    static const char *const words[] = {"mesh={shard: -1, tp: 2}"};
    tsri_config *config = load_words(tiny, words, 1);

    REQUIRE(config != NULL);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_config_fit(config, 7, 1, NULL));
    CHECK_OK(tsri_config_fit(config, 8, 1, NULL));
    CHECK_EQ(config->mesh.axes[0].size, 4);
    tsri_config_free(&config);
}

static void the_table_explains_itself(void)
{
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    REQUIRE(count > 40);
    for (int i = 0; i < count; i++) {
        char text[256];

        CHECK(table[i].help != NULL && table[i].help[0] != '\0');
        CHECK(table[i].fallback != NULL);
        CHECK(tsri_option_type_text(&table[i], text, sizeof(text))[0] != '\0');
        CHECK_EQ(tsri_option_find(table[i].path), i); /* no path twice */
    }
    CHECK_EQ(tsri_option_find("train"), -1);
}

/* Whichever allocation fails, the failure is reported and nothing is lost. */
static void no_memory(void)
{
    static const char *const words[] = {"optim.groups=[{match: a.*}]", "mesh={tp: 2}"};
    const char *path = write_config("model: {preset: llama-tiny}\ndata: {path: x}\n");
    tsr_status status = TSR_ERR_NOMEM;
    int failures = 0;

    for (int n = 1; status != TSR_OK && n < 2000; n++) {
        const int64_t before = tsri_alloc_live();
        tsri_config *config = NULL;

        tsri_alloc_fail_at(n);
        status = tsri_config_load(path, words, 2, &config);
        tsri_alloc_fail_at(0);
        CHECK(status == TSR_OK || status == TSR_ERR_NOMEM);
        failures += status != TSR_OK ? 1 : 0;
        tsr_error_clear();
        tsri_config_free(&config);
        CHECK_EQ(tsri_alloc_live(), before);
    }
    CHECK_EQ(status, TSR_OK);
    CHECK(failures > 20);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_key_of_the_design", every_key_of_the_design},
    {"defaults_hold", defaults_hold},
    {"types_and_places", types_and_places},
    {"unknown_keys", unknown_keys},
    {"wrong_types", wrong_types},
    {"values_out_of_range", values_out_of_range},
    {"wrong_choices", wrong_choices},
    {"what_is_not_there_is_refused", what_is_not_there_is_refused},
    {"duplicates", duplicates},
    {"words_replace_the_file", words_replace_the_file},
    {"what_the_model_is", what_the_model_is},
    {"lists_have_limits", lists_have_limits},
    {"tied_beside_a_folder", tied_beside_a_folder},
    {"written_and_read_again", written_and_read_again},
    {"meshes_fit_ranks", meshes_fit_ranks},
    {"the_table_explains_itself", the_table_explains_itself},
    {"no_memory", no_memory},
    {NULL, NULL},
};
