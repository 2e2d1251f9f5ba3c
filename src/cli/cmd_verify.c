/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_verify.c
 * `tessera verify`: a reference trajectory replayed on a layout.
 */
#include "base/base.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "comm/comm.h"
#include "verify/verify.h"

static const tsri_cli_option options[] = {
    {"--mesh", "SPEC", "axes, such as replicate=2,shard=2,tp=2; default: all ranks on shard"},
    {"--preset", "NAME", TSRI_PRESET_NAMES "; default: " TSRI_PRESET_DEFAULT},
    {"--sequence-parallel", NULL, "shard activations between blocks along the sequence over tp"},
    {"--checkpointing", "N", "run every N-th block again in backward; default: 0, none"},
    {"--reshard", "WHEN", "default, always or never: when gathered parameters go after forward"},
    {"--prefetch", "N", "units gathered ahead; default: 1"},
    {"--random", "SEED", "draw ranks (where -n is not given), mesh, preset and options"},
    {"--json", NULL, "print the report as JSON"},
    {NULL, NULL, NULL},
};

/* A number from 0 to most, or fallback where the option was not given. */
static tsr_status read_count(const tsri_cli *cli, const char *name, int fallback, int most,
                             int *out)
{
    const char *text = tsri_cli_value(cli, name);
    char *end = NULL;
    long value = 0;

    *out = fallback;
    if (text == NULL) {
        return TSR_OK;
    }
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > most) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s %s: wants a number from 0 to %d", name, text, most);
    }
    *out = (int)value;
    return TSR_OK;
}

static tsr_status read_reshard(const tsri_cli *cli, tsr_reshard *out)
{
    static const char *const names[] = {"default", "always", "never"};
    const char *text = tsri_cli_value(cli, "--reshard");

    *out = TSR_RESHARD_DEFAULT;
    for (int i = 0; text != NULL && i < 3; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (tsr_reshard)i;
            return TSR_OK;
        }
    }
    if (text != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "--reshard %s: wants default, always or never", text);
    }
    return TSR_OK;
}

enum {
    MESH_BYTES = 96,
    MAX_SEED = 1000000000
};

static int random_ranks(const tsri_cli *cli)
{
    int seed = 0;

    if (!tsri_cli_has(cli, "--random") ||
        read_count(cli, "--random", 0, MAX_SEED, &seed) != TSR_OK) {
        return 0; /* what is wrong with it check_verify() says */
    }
    return tsri_verify_draw_ranks((uint64_t)seed);
}

static tsr_status read_verify_options(const tsri_cli *cli, int ranks, tsri_verify_options *out,
                                      char *mesh)
{
    int ahead = 0;
    int seed = 0;

    *out = (tsri_verify_options){
        .folder = cli->words[0],
        .mesh = tsri_cli_value(cli, "--mesh"),
        .preset = tsri_cli_value(cli, "--preset"),
        .sequence_parallel = tsri_cli_has(cli, "--sequence-parallel"),
    };
    TSR_TRY(read_count(cli, "--checkpointing", 0, 1000, &out->recompute_every));
    TSR_TRY(read_count(cli, "--prefetch", 1, 1000, &ahead));
    TSR_TRY(read_reshard(cli, &out->reshard));
    out->prefetch_depth = ahead + 1;
    if (tsri_cli_has(cli, "--random")) {
        TSR_TRY(read_count(cli, "--random", 0, MAX_SEED, &seed));
        TSR_TRY(tsri_verify_draw((uint64_t)seed, ranks, out, mesh, MESH_BYTES));
    }
    return TSR_OK;
}

static tsr_status check_verify(const tsri_cli *cli)
{
    const int ranks = cli->ranks > 0 ? cli->ranks : 1;
    char mesh[MESH_BYTES];
    tsri_verify_options o;

    TSR_TRY(read_verify_options(cli, ranks, &o, mesh));
    TSR_TRY(tsri_verify_check(&o, ranks));
    return TSR_OK;
}

static void print_table(const tsri_verify_report *report, const char *folder)
{
    (void)printf("%s: %s of %lld parameters, %d steps of %d x %lld x %lld tokens\n", folder,
                 report->arch, (long long)report->params, report->steps, report->micro_batches,
                 (long long)report->batch, (long long)report->seq);
    (void)printf("weights: %s\n", report->weights);
    (void)printf("mesh %s, preset %s, f32\n\n", report->mesh, report->preset);
    (void)printf("%-13s %-18s %13s %9s       %s\n", "quantity", "measure", "largest error", "bound",
                 "where");
    for (int i = 0; i < report->row_count; i++) {
        const tsri_verify_row *row = &report->rows[i];

        (void)printf("%-13s %-18s %13.3g %9.3g %s  %s\n", row->quantity, row->measure, row->error,
                     row->bound, row->ok ? "  ok" : "FAIL", row->where);
    }
    (void)printf("\n%s\n", report->ok ? "verified" : "FAILED: an error is above its bound");
}

/* Numbers that JSON has no word for become text. */
static json_t *number_or_text(double value)
{
    json_t *real = json_real(value);

    return real != NULL ? real : json_string("not finite");
}

static json_t *row_json(const tsri_verify_row *row)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:b}", "quantity", row->quantity, "measure",
                     row->measure, "error", number_or_text(row->error), "bound",
                     number_or_text(row->bound), "where", row->where, "ok", (int)row->ok);
}

static tsr_status print_verify_json(const tsri_verify_report *report, const char *folder)
{
    json_t *rows = json_array();
    json_t *all = NULL;

    for (int i = 0; i < report->row_count; i++) {
        (void)json_array_append_new(rows, row_json(&report->rows[i]));
    }
    all =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:o, s:b}", "case", folder,
                  "arch", report->arch, "weights", report->weights, "mesh", report->mesh, "preset",
                  report->preset, "parameters", (json_int_t)report->params, "steps", report->steps,
                  "micro_batches", report->micro_batches, "batch", (json_int_t)report->batch, "seq",
                  (json_int_t)report->seq, "quantities", rows, "ok", (int)report->ok);
    if (all == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the report");
    }
    (void)json_dumpf(all, stdout, JSON_INDENT(2));
    (void)printf("\n");
    json_decref(all);
    return TSR_OK;
}

static tsr_status verify(const tsri_cli *cli, tsr_world *world, bool *ok)
{
    char mesh[MESH_BYTES];
    tsri_verify_options o;
    tsri_verify_report report;

    TSR_TRY(read_verify_options(cli, tsr_world_size(world), &o, mesh));
    if (tsri_cli_has(cli, "--random") && tsr_world_is_speaker(world) &&
        !tsri_cli_has(cli, "--json")) {
        static const char *const reshard[] = {"default", "always", "never"};

        (void)printf("drawn: -n %d --mesh %s --preset %s --checkpointing %d --reshard %s "
                     "--prefetch %d%s\n",
                     tsr_world_size(world), o.mesh, o.preset, o.recompute_every, reshard[o.reshard],
                     o.prefetch_depth - 1, o.sequence_parallel ? " --sequence-parallel" : "");
    }
    TSR_TRY(tsri_verify_run(world, &o, &report));
    *ok = report.ok;
    if (!tsr_world_is_speaker(world)) {
        return TSR_OK;
    }
    if (tsri_cli_has(cli, "--json")) {
        TSR_TRY(print_verify_json(&report, o.folder));
    } else {
        print_table(&report, o.folder);
    }
    return TSR_OK;
}

static int run_verify(const tsri_cli *cli)
{
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;
    bool ok = false;

    TSR_TRY_GOTO(status, tsr_world_open(NULL, NULL, NULL, &world), finish);
    TSR_TRY_GOTO(status, verify(cli, world, &ok), close_world);
close_world:
    tsr_world_close(&world);
finish:
    return status == TSR_OK && !ok ? EXIT_FAILURE : tsri_cli_finish(status);
}

const tsri_cli_command tsri_command_verify = {
    .name = "verify",
    .summary = "replay a reference trajectory on a layout and compare",
    .usage = "CASE [-n N] [--mesh SPEC] [--preset NAME] [--json]",
    .help = "Trains the model of the folder CASE on its tokens, in f32, and compares loss,\n"
            "gradient norm, logits, gradients, Adam's moments and final weights with what the\n"
            "folder expects. Prints the largest error of each beside its bound, and fails if one\n"
            "is above. CASE holds config.json, weights, train.json, tokens.safetensors,\n"
            "expect.json and expect.safetensors.\n"
            "\n"
            "  tessera verify tests/golden/train/gpt2-tiny\n"
            "  tessera verify tests/golden/train/llama-accum3 -n 8 --mesh "
            "replicate=2,shard=2,tp=2\n",
    .options = options,
    .words_min = 1,
    .words_max = 1,
    .launches = true,
    .check = check_verify,
    .ranks = random_ranks,
    .run = run_verify,
};
