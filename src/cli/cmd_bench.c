/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_bench.c
 * `tessera bench`: matrix products, collectives and the training step, beside what bounds them.
 */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_print.h"
#include "cli/commands.h"
#include "comm/comm.h"

static const tsri_cli_option options[] = {
    {"--preset", "NAME", "gemm, step, probe: sizes of this model; default: llama-25m"},
    {"--tokens", "N", "gemm: rows of the activations; default: 2048"},
    {"--threads", "N", "gemm, step, probe: threads of a rank; default: cores / local ranks"},
    {"--bytes", "LIST", "collectives: sizes of the whole tensor; default: 1k,64k,1M,16M"},
    {"--mesh", "SPEC",
     "step, probe: axes, such as replicate=2,shard=2; default: all ranks on shard"},
    {"--parallel", "NAME", "step: " TSRI_PRESET_NAMES "; default: " TSRI_PRESET_DEFAULT},
    {"--dtype", "NAME", "step, probe: f32 or bf16, what parameters are computed in; default: f32"},
    {"--batch", "N", "step, probe: sequences of a step over the whole job; default: 8"},
    {"--seq", "N", "step, probe: tokens of a sequence; default: 256"},
    {"--steps", "N", "step: measured steps, after 2 others; default: 10"},
    {"--rounds", "N", "gemm, collectives: measurements of each, medians are shown"},
    {"--seconds", "S", "probe: about how long it may take; default: 4"},
    {"--out", "FILE", "probe: write what was found as a cluster file"},
    {"--json", NULL, "print the figures as JSON"},
    {NULL, NULL, NULL},
};

typedef enum bench_kind {
    BENCH_GEMM = 0,
    BENCH_COLLECTIVES,
    BENCH_STEP,
    BENCH_PROBE,
    BENCH_KINDS
} bench_kind;

typedef struct bench_options {
    bench_kind kind;
    int threads;
    tsri_bench_gemm_options gemm;
    tsri_bench_coll_options coll;
    tsri_bench_step_options step; /* of the probe too */
    double seconds;
    const char *out; /* NULL: no file */
} bench_options;

static const char *const kind_names[BENCH_KINDS] = {"gemm", "collectives", "step", "probe"};

static tsr_status find_kind(const char *word, bench_kind *out)
{
    for (int i = 0; i < BENCH_KINDS; i++) {
        if (strcmp(word, kind_names[i]) == 0) {
            *out = (bench_kind)i;
            return TSR_OK;
        }
    }
    const char *near = tsri_nearest(word, kind_names, BENCH_KINDS);

    return TSR_RAISE(TSR_ERR_INVALID, "bench \"%s\": wants gemm, collectives, step or probe%s%s",
                     word, near != NULL ? "; nearest: " : "", near != NULL ? near : "");
}

/* The help of an option begins with the benchmarks that it is for, or is for all. */
static tsr_status check_meant(const tsri_cli *cli, bench_kind kind)
{
    for (int i = 0; i < cli->option_count; i++) {
        const char *help = cli->options[i]->help;
        const char *end = strchr(help, ':');
        const char *name = strstr(help, kind_names[kind]);

        if (end != NULL && (name == NULL || name > end)) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s is not for bench %s, but for %.*s",
                             cli->options[i]->name, kind_names[kind], (int)(end - help), help);
        }
    }
    return TSR_OK;
}

static tsr_status read_count(const tsri_cli *cli, const char *name, int64_t most, int64_t *out)
{
    const char *text = tsri_cli_value(cli, name);
    char *end = NULL;

    if (text == NULL) {
        *out = 0;
        return TSR_OK;
    }
    errno = 0;
    const long long value = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > most) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s %s: wants a number from 1 to %lld", name, text,
                         (long long)most);
    }
    *out = value;
    return TSR_OK;
}

static tsr_status read_int(const tsri_cli *cli, const char *name, int most, int *out)
{
    int64_t value = 0;

    TSR_TRY(read_count(cli, name, most, &value));
    *out = (int)value;
    return TSR_OK;
}

static tsr_status read_bytes(const char *text, size_t length, size_t *out)
{
    static const char units[] = "kMG";
    char *end = NULL;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *unit = end < text + length && *end != '\0' ? strchr(units, *end) : NULL;
    const int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;

    end += unit != NULL ? 1 : 0;
    if (text[0] < '0' || text[0] > '9' || end != text + length || value < 1 ||
        value > (1ULL << 36) >> shift) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "--bytes %.*s: wants sizes such as 1k,64k,1M,16M, at most 64G",
                         (int)length, text);
    }
    *out = (size_t)value << shift;
    return TSR_OK;
}

static tsr_status read_sizes(const char *text, tsri_bench_coll_options *out)
{
    for (;;) {
        const size_t length = strcspn(text, ",");

        if (out->size_count == TSRI_BENCH_MAX_SIZES) {
            return TSR_RAISE(TSR_ERR_INVALID, "--bytes has more than %d sizes",
                             TSRI_BENCH_MAX_SIZES);
        }
        TSR_TRY(read_bytes(text, length, &out->bytes[out->size_count]));
        out->size_count++;
        if (text[length] == '\0') {
            return TSR_OK;
        }
        text += length + 1;
    }
}

static tsr_status read_dtype(const char *text, tsr_dtype *out)
{
    if (text == NULL || strcmp(text, "f32") == 0) {
        *out = TSR_F32;
    } else if (strcmp(text, "bf16") == 0) {
        *out = TSR_BF16;
    } else {
        return TSR_RAISE(TSR_ERR_INVALID, "--dtype %s: wants f32 or bf16", text);
    }
    return TSR_OK;
}

static tsr_status read_step(const tsri_cli *cli, tsri_bench_step_options *out)
{
    *out = (tsri_bench_step_options){.model = tsri_cli_value(cli, "--preset"),
                                     .mesh = tsri_cli_value(cli, "--mesh"),
                                     .preset = tsri_cli_value(cli, "--parallel")};
    TSR_TRY(read_dtype(tsri_cli_value(cli, "--dtype"), &out->dtype));
    TSR_TRY(read_count(cli, "--batch", 1 << 24, &out->batch));
    TSR_TRY(read_count(cli, "--seq", 1 << 24, &out->seq));
    TSR_TRY(read_int(cli, "--steps", TSRI_BENCH_MAX_STEPS, &out->steps));
    return TSR_OK;
}

static tsr_status read_seconds(const tsri_cli *cli, double *out)
{
    const char *text = tsri_cli_value(cli, "--seconds");
    char *end = NULL;

    *out = 4.0;
    if (text != NULL) {
        *out = strtod(text, &end);
        if (end == text || *end != '\0' || !(*out > 0.0) || *out > 3600.0) {
            return TSR_RAISE(TSR_ERR_INVALID, "--seconds %s: wants a number above 0, at most 3600",
                             text);
        }
    }
    return TSR_OK;
}

static tsr_status read_bench_options(const tsri_cli *cli, bench_options *out)
{
    const char *sizes = tsri_cli_value(cli, "--bytes");
    int rounds = 0;

    *out = (bench_options){.gemm = {.model = tsri_cli_value(cli, "--preset")}};
    TSR_TRY(find_kind(cli->words[0], &out->kind));
    TSR_TRY(check_meant(cli, out->kind));
    TSR_TRY(read_int(cli, "--threads", 1024, &out->threads));
    TSR_TRY(read_int(cli, "--rounds", TSRI_BENCH_MAX_ROUNDS, &rounds));
    TSR_TRY(read_count(cli, "--tokens", 1 << 24, &out->gemm.tokens));
    TSR_TRY(read_sizes(sizes != NULL ? sizes : "1k,64k,1M,16M", &out->coll));
    TSR_TRY(read_step(cli, &out->step));
    TSR_TRY(read_seconds(cli, &out->seconds));
    out->out = tsri_cli_value(cli, "--out");
    out->gemm.rounds = rounds;
    out->coll.rounds = rounds;
    return TSR_OK;
}

static tsr_status check_ranks(bench_kind kind, int ranks)
{
    if (kind == BENCH_GEMM && ranks > 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "bench gemm measures one rank, not %d", ranks);
    }
    if (kind == BENCH_COLLECTIVES && ranks < 2) {
        return TSR_RAISE(TSR_ERR_INVALID, "bench collectives wants at least 2 ranks: -n 2");
    }
    return TSR_OK;
}

static tsr_status check_bench(const tsri_cli *cli)
{
    const int ranks = cli->ranks > 0 ? cli->ranks : 1;
    bench_options o;
    tsri_model_spec spec;

    TSR_TRY(read_bench_options(cli, &o));
    TSR_TRY(check_ranks(o.kind, ranks));
    if (o.kind == BENCH_GEMM && o.gemm.model != NULL) {
        TSR_TRY(tsri_model_preset(o.gemm.model, &spec));
    }
    if (o.kind == BENCH_STEP || o.kind == BENCH_PROBE) {
        TSR_TRY(tsri_bench_step_check(&o.step, ranks));
    }
    return TSR_OK;
}

/* A report has some tens of KiB, too much for the stack. */
typedef union bench_report {
    tsri_bench_gemm_report gemm;
    tsri_bench_coll_report coll;
    tsri_bench_step_report step;
    tsri_bench_probe_report probe;
} bench_report;

static tsr_status print_report(bench_kind kind, const bench_report *report, bool json)
{
    if (kind == BENCH_GEMM) {
        TSR_TRY(json ? tsri_bench_json_gemm(&report->gemm) : tsri_bench_print_gemm(&report->gemm));
    } else if (kind == BENCH_COLLECTIVES) {
        TSR_TRY(json ? tsri_bench_json_coll(&report->coll) : tsri_bench_print_coll(&report->coll));
    } else if (kind == BENCH_STEP) {
        TSR_TRY(json ? tsri_bench_json_step(&report->step) : tsri_bench_print_step(&report->step));
    } else {
        TSR_TRY(json ? tsri_bench_json_probe(&report->probe)
                     : tsri_bench_print_probe(&report->probe));
    }
    return TSR_OK;
}

static tsr_status bench(const tsri_cli *cli, const bench_options *o, tsr_world *world)
{
    bench_report *report = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_ranks(o->kind, tsr_world_size(world)));
    TSR_TRY(tsri_alloc(1, sizeof(*report), &report));
    if (o->kind == BENCH_GEMM) {
        TSR_TRY_GOTO(status, tsri_bench_gemm(world, &o->gemm, &report->gemm), out);
    } else if (o->kind == BENCH_COLLECTIVES) {
        TSR_TRY_GOTO(status, tsri_bench_collectives(world, &o->coll, &report->coll), out);
    } else if (o->kind == BENCH_STEP) {
        TSR_TRY_GOTO(status, tsri_bench_step(world, &o->step, &report->step), out);
    } else {
        TSR_TRY_GOTO(
            status,
            tsri_bench_probe(world, &o->step, o->threads, o->seconds, o->out, &report->probe), out);
    }
    if (tsr_world_is_speaker(world)) {
        TSR_TRY_GOTO(status, print_report(o->kind, report, tsri_cli_has(cli, "--json")), out);
    }
out:
    tsri_free(&report);
    return status;
}

static int run_bench(const tsri_cli *cli)
{
    bench_options o;
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, read_bench_options(cli, &o), finish);
    TSR_TRY_GOTO(status,
                 tsr_world_open(NULL, NULL, &(tsr_world_options){.threads = o.threads}, &world),
                 finish);
    TSR_TRY_GOTO(status, bench(cli, &o, world), close_world);
close_world:
    tsr_world_close(&world);
finish:
    return tsri_cli_finish(status);
}

const tsri_cli_command tsri_command_bench = {
    .name = "bench",
    .summary = "measure products, collectives and steps on this machine",
    .usage = "gemm|collectives|step|probe [-n N] [options]",
    .help =
        "gemm         The matrix products of a model's linear layers, forward and backward,\n"
        "             beside the processor's multiply-add rate, a large square product and, in\n"
        "             f32, the same by oneDNN, and by BLIS and OpenBLAS where they are installed.\n"
        "collectives  all_gather, reduce_scatter and all_reduce over N ranks: ours, the same by\n"
        "             messages (MPI), and the copy bandwidth that bounds them.\n"
        "step         A training step on random tokens: tokens/s, share of the ceiling, and\n"
        "             where the time goes.\n"
        "probe        This machine as N ranks find it, all measuring at once: rates of kernels at "
        "a\n"
        "             rank's sizes, links within and between hosts. Twice, and how far the two\n"
        "             are apart; the first is written as a cluster file for plan and compare.\n"
        "Whatever is compared is measured alternately in one run; medians are shown.\n"
        "\n"
        "  tessera bench gemm --threads 1\n"
        "  tessera bench collectives -n 4 --bytes 64k,16M\n"
        "  tessera bench step -n 4 --mesh replicate=2,shard=2\n"
        "  tessera bench step -n 4 --mesh shard=2,tp=2 --json\n"
        "  tessera bench probe -n 4 --preset llama-tiny --out here.yaml\n",
    .options = options,
    .words_min = 1,
    .words_max = 1,
    .launches = true,
    .check = check_bench,
    .run = run_bench,
};
