/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cli.c
 * From argv to a running command, in the process that was started and in each rank.
 *
 * Only the process that the user started checks beforehand and exits with 2. A rank of a job (of
 * ours or of somebody's mpirun) exits with 0 or 1, and of several that fail one speaks.
 */
#include "cli_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include "tessera/version.h"
#include "tessera/world.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double patience_s = 5.0;

/* Before it ends, a rank that has nothing to say lets the one speak that has. */
static void let_speak(void)
{
    (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

/* A mistake that ranks saw before they met. As a rule all did, in somebody's own mpirun perhaps
 * one: so they meet, and the first of those that did speaks. Does not return. */
static void complain_together(const char *text)
{
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;
    int teller = -1;

    if (tsr_world_open(NULL, NULL, NULL, &world) != TSR_OK) {
        (void)fprintf(stderr, "tessera: %s\n", text);
        exit(TSRI_EXIT_FAILED);
    }
    status = TSR_RAISE(TSR_ERR_INVALID, "%s", text);
    status =
        tsri_team_agree_within(tsri_boot_job(), "reading the command line", status, patience_s);
    teller = tsri_error_teller(status);
    if (teller < 0 || teller == tsr_world_rank(world)) {
        (void)fprintf(stderr, "tessera: %s (rank %d on host %s)\n", text, tsr_world_rank(world),
                      tsr_world_host(world, tsr_world_rank(world)));
    } else {
        let_speak();
    }
    tsr_world_abort(world, TSRI_EXIT_FAILED);
}

/* A mistake in what was asked for; the message only, since its place in our code explains nothing.
 */
static int complain(bool is_rank)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "%s", tsr_error_message());
    tsr_error_clear();
    if (is_rank) {
        complain_together(text);
    }
    (void)fprintf(stderr, "tessera: %s\n", text);
    return TSRI_EXIT_USAGE;
}

int tsri_cli_finish(tsr_status status)
{
    int rank = 0;
    int size = 1;
    const int teller = tsri_error_teller(status);

    if (status == TSR_OK) {
        return TSRI_EXIT_OK;
    }
    tsri_boot_told(&rank, &size);
    if (teller >= 0 ? teller == rank
                    : status != TSR_ERR_REMOTE && (status != TSR_ERR_DISAGREE || rank == 0)) {
        tsr_error_print(stderr);
    } else {
        let_speak();
    }
    return TSRI_EXIT_FAILED;
}

static const tsri_cli_command *find_command(const tsri_cli_command *const *commands,
                                            const char *name)
{
    for (int i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static tsr_status raise_unknown_command(const tsri_cli_command *const *commands, const char *name)
{
    const char *names[64] = {"help"};
    const char *near = NULL;
    int count = 1;

    for (int i = 0; commands[i] != NULL && count < 64; i++) {
        names[count++] = commands[i]->name;
    }
    near = tsri_nearest(name, names, count);
    return TSR_RAISE(TSR_ERR_INVALID, "no command \"%s\"%s%s; `tessera --help` lists them", name,
                     near != NULL ? "; nearest: " : "", near != NULL ? near : "");
}

static int run_help(const tsri_cli_command *const *commands, int argc, char **argv, bool is_rank)
{
    const tsri_cli_command *command = NULL;

    if (argc < 3) {
        tsri_cli_print_help(commands, stdout);
        return TSRI_EXIT_OK;
    }
    command = find_command(commands, argv[2]);
    if (command == NULL) {
        (void)raise_unknown_command(commands, argv[2]);
        return complain(is_rank);
    }
    tsri_cli_print_command_help(command, stdout);
    return TSRI_EXIT_OK;
}

/* In the process that the user started. */
static int start(tsri_cli *cli, int argc, char **argv)
{
    if (cli->ranks == 0 && cli->command->ranks != NULL) {
        cli->ranks = cli->command->ranks(cli);
    }
    if (cli->command->check != NULL && cli->command->check(cli) != TSR_OK) {
        return complain(false);
    }
    if (cli->ranks > 1 || cli->hosts != NULL) {
        return tsri_cli_forward_output(tsri_cli_launch, cli, argc, argv);
    }
    return cli->command->run(cli) == TSRI_EXIT_OK ? TSRI_EXIT_OK : TSRI_EXIT_FAILED;
}

static int run_rank(const tsri_cli *cli)
{
    if (cli->ranks > 0) {
        (void)TSR_RAISE(TSR_ERR_INVALID,
                        "-n and --hosts start a job, but this process is a rank of one already");
        return complain(true);
    }
    return cli->command->run(cli) == TSRI_EXIT_OK ? TSRI_EXIT_OK : TSRI_EXIT_FAILED;
}

static int run_command(const tsri_cli_command *command, int argc, char **argv, bool is_rank)
{
    tsri_cli cli = {0};
    int result = TSRI_EXIT_OK;

    if (tsri_cli_parse(command, argc, argv, &cli) != TSR_OK) {
        result = complain(is_rank);
    } else if (cli.help) {
        tsri_cli_print_command_help(command, stdout);
    } else {
        result = is_rank ? run_rank(&cli) : start(&cli, argc, argv);
    }
    tsri_cli_free(&cli);
    return result;
}

static int run_program(const tsri_cli_command *const *commands, int argc, char **argv)
{
    const bool is_rank = tsri_boot_launched();
    const tsri_cli_command *command = NULL;

    if (argc < 2) {
        tsri_cli_print_help(commands, stderr);
        return is_rank ? TSRI_EXIT_FAILED : TSRI_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("tessera %s\n", tsr_version());
        return TSRI_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        return run_help(commands, argc, argv, is_rank);
    }
    command = find_command(commands, argv[1]);
    if (command == NULL) {
        (void)raise_unknown_command(commands, argv[1]);
        return complain(is_rank);
    }
    return run_command(command, argc - 1, argv + 1, is_rank);
}

int tsri_cli_main(const tsri_cli_command *const *commands, int argc, char **argv)
{
    tsri_cli_hold_streams();
    /* Before anything is done. Ranks that we start inherit it. */
    tsri_cli_calm_openmp(argv);
    return tsri_cli_check_output(run_program(commands, argc, argv));
}
