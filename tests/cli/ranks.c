/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file ranks.c
 * A program with the frame of `tessera` and commands whose ranks misbehave, one way each.
 *
 * test_launch.sh starts it and looks at what comes out, with which status and how soon.
 */
#include "backend/boot/boot.h"
#include "base/base.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "comm/comm.h"

enum {
    LONG_S = 120, /* far above what a test waits */
    SHORT_S = 1   /* the limit of jobs in which a rank stops */
};

static int victim(const tsri_cli *cli)
{
    return cli->word_count > 0 ? (int)strtol(cli->words[0], NULL, 10) : 0;
}

/* Open a world, do the deed, settle, close. */
static int run_with(const tsri_cli *cli, tsr_status (*deed)(const tsri_cli *cli, tsr_world *world))
{
    tsr_world *world = NULL;
    tsr_status status = tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world);

    if (status == TSR_OK) {
        status = tsri_world_settle(world, deed(cli, world));
    }
    tsr_world_close(&world);
    return tsri_cli_finish(status);
}

static tsr_status do_hello(const tsri_cli *cli, tsr_world *world)
{
    (void)printf("hello %d/%d %s\n", tsr_world_rank(world), tsr_world_size(world),
                 cli->word_count > 0 ? cli->words[0] : "-");
    (void)fflush(stdout);
    (void)fprintf(stderr, "note %d\n", tsr_world_rank(world));
    return TSR_OK;
}

static tsr_status do_fail(const tsri_cli *cli, tsr_world *world)
{
    if (tsr_world_rank(world) == victim(cli)) {
        return TSR_RAISE(TSR_ERR_IO, "rank %d has no disk", victim(cli));
    }
    return TSR_OK;
}

static tsr_status do_fail_all(const tsri_cli *cli, tsr_world *world)
{
    (void)cli;
    (void)world;
    return TSR_RAISE(TSR_ERR_SHAPE, "nothing fits");
}

/* One fails, the others are in something that never ends without it. */
static tsr_status do_fail_alone(const tsri_cli *cli, tsr_world *world)
{
    if (tsr_world_rank(world) == victim(cli)) {
        return TSR_RAISE(TSR_ERR_NOMEM, "rank %d is full", victim(cli));
    }
    (void)sleep(LONG_S);
    return TSR_OK;
}

static tsr_status do_differ(const tsri_cli *cli, tsr_world *world)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "lr: %d", tsr_world_rank(world) == victim(cli) ? 5 : 4);
    TSR_TRY(tsr_world_check_same(world, "the config", text, strlen(text)));
    return TSR_OK;
}

static tsr_status do_die(const tsri_cli *cli, tsr_world *world)
{
    if (tsr_world_rank(world) == victim(cli)) {
        (void)raise(SIGKILL);
    }
    (void)sleep(LONG_S);
    return TSR_OK;
}

static tsr_status do_exit(const tsri_cli *cli, tsr_world *world)
{
    if (tsr_world_rank(world) == victim(cli)) {
        _exit(2);
    }
    (void)sleep(LONG_S);
    return TSR_OK;
}

static tsr_status do_wait(const tsri_cli *cli, tsr_world *world)
{
    (void)cli;
    (void)fprintf(stderr, "waiting %d",
                  tsr_world_rank(world)); /* no line end: shown all the same */
    (void)sleep(LONG_S);
    return TSR_OK;
}

/* ---- a rank that stops, where others wait for it ---- */

static void stop_here(int rank, const tsri_cli *cli)
{
    if (rank == victim(cli)) {
        (void)raise(SIGSTOP);
    }
}

static int run_stopping(const tsri_cli *cli, const char *where)
{
    const tsr_world_options options = {.backend = "cpu", .timeout_s = SHORT_S};
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;
    int rank = 0;
    int size = 1;

    tsri_boot_told(&rank, &size);
    if (strcmp(where, "start") == 0) {
        stop_here(rank, cli);
    }
    status = tsr_world_open(NULL, NULL, &options, &world);
    if (status == TSR_OK && strcmp(where, "work") == 0) {
        (void)fprintf(stderr, "working %d\n", rank);
        stop_here(rank, cli);
        status =
            tsri_world_settle(world, tsri_team_barrier(tsri_boot_job(), "measuring the weather"));
    }
    if (strcmp(where, "end") == 0) {
        stop_here(rank, cli);
    }
    tsr_world_close(&world);
    return tsri_cli_finish(status);
}

static int run_stop_start(const tsri_cli *cli)
{
    return run_stopping(cli, "start");
}

static int run_stop_work(const tsri_cli *cli)
{
    return run_stopping(cli, "work");
}

static int run_stop_end(const tsri_cli *cli)
{
    return run_stopping(cli, "end");
}

/* MPI is the library's here, and the first world to close must not end it under the other. */
static int run_worlds(const tsri_cli *cli)
{
    tsr_world *first = NULL;
    tsr_world *second = NULL;
    tsr_world *late = NULL;
    tsr_status status = tsr_world_open(NULL, NULL, NULL, &first);

    (void)cli;
    if (status == TSR_OK) {
        status = tsr_world_open(NULL, NULL, NULL, &second);
    }
    tsr_world_close(&first);
    if (status == TSR_OK) {
        status = tsr_world_agree(second, TSR_OK);
    }
    tsr_world_close(&second);
    if (status == TSR_OK && tsr_world_open(NULL, NULL, NULL, &late) != TSR_ERR_STATE) {
        status = TSR_RAISE(TSR_ERR_INTERNAL, "a world opened after the end of MPI");
    }
    return tsri_cli_finish(status);
}

static tsr_status do_threads(const tsri_cli *cli, tsr_world *world)
{
    (void)cli;
    const char *spin = getenv("GOMP_SPINCOUNT");

    (void)printf("omp %s\n", getenv("OMP_NUM_THREADS") != NULL ? "set" : "unset");
    (void)printf("spin %s\n", spin != NULL ? spin : "unset");
    return tsr_world_agree(world, TSR_OK);
}

static int run_hello(const tsri_cli *cli)
{
    return run_with(cli, do_hello);
}

static int run_fail(const tsri_cli *cli)
{
    return run_with(cli, do_fail);
}

static int run_fail_all(const tsri_cli *cli)
{
    return run_with(cli, do_fail_all);
}

static int run_fail_alone(const tsri_cli *cli)
{
    return run_with(cli, do_fail_alone);
}

static int run_differ(const tsri_cli *cli)
{
    return run_with(cli, do_differ);
}

static int run_die(const tsri_cli *cli)
{
    return run_with(cli, do_die);
}

static int run_exit_two(const tsri_cli *cli)
{
    return run_with(cli, do_exit);
}

static int run_wait_long(const tsri_cli *cli)
{
    return run_with(cli, do_wait);
}

static int run_threads(const tsri_cli *cli)
{
    return run_with(cli, do_threads);
}

/* A rank that returns 2, which the user must see as 1. */
static int run_two(const tsri_cli *cli)
{
    tsr_world *world = NULL;

    if (tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world) != TSR_OK) {
        return 1;
    }
    tsr_world_close(&world);
    return victim(cli);
}

static tsr_status check_word(const tsri_cli *cli)
{
    if (strcmp(cli->words[0], "good") != 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "word \"%s\", wants \"good\"; %d ranks", cli->words[0],
                         cli->ranks);
    }
    return TSR_OK;
}

#define COMMAND(id) \
    static const tsri_cli_command id = {.name = #id, \
                                        .summary = "a test", \
                                        .usage = "[RANK]", \
                                        .help = "", \
                                        .words_max = 1, \
                                        .launches = true, \
                                        .run = run_##id}
COMMAND(hello);
COMMAND(fail);
COMMAND(fail_all);
COMMAND(fail_alone);
COMMAND(differ);
COMMAND(die);
COMMAND(exit_two);
COMMAND(wait_long);
COMMAND(threads);
COMMAND(two);
COMMAND(worlds);
COMMAND(stop_start);
COMMAND(stop_work);
COMMAND(stop_end);

static const tsri_cli_option checked_options[] = {
    {"--mesh", "SPEC", "a mesh"},
    {"--json", NULL, "for machines"},
    {NULL, NULL, NULL},
};

static const tsri_cli_command checked = {
    .name = "checked",
    .summary = "looks at its word beforehand",
    .usage = "WORD",
    .help = "Does nothing with the word \"good\".\n",
    .options = checked_options,
    .words_min = 1,
    .words_max = 1,
    .launches = true,
    .check = check_word,
    .run = run_hello,
};

static const tsri_cli_command *const commands[] = {
    &hello,   &fail, &fail_all, &fail_alone, &differ,     &die,       &exit_two, &wait_long,
    &threads, &two,  &worlds,   &checked,    &stop_start, &stop_work, &stop_end, NULL,
};

int main(int argc, char **argv)
{
    return tsri_cli_main(commands, argc, argv);
}
