/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cli.c
 * From argv to a running command, in the process that was started and in each rank.
 *
 * Only the process that the user started checks beforehand and exits with 2. A rank of a job (of
 * ours or of somebody's mpirun) exits with 0 or 1; of what every rank would say alike before its
 * world is open, such as a wrong option, rank 0 alone speaks.
 */
#include "cli_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include "tessera/version.h"

#include <stdlib.h>
#include <string.h>

/* This rank as the launcher told it, before MPI is up. */
static bool is_first_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *rank = getenv(names[i]);

        if (rank != NULL) {
            return strcmp(rank, "0") == 0;
        }
    }
    return true;
}

/* A mistake in what was asked for; the message only, since its place in our code explains nothing.
 */
static int complain(bool is_rank)
{
    if (!is_rank || is_first_rank()) {
        (void)fprintf(stderr, "tessera: %s\n", tsr_error_message());
    }
    tsr_error_clear();
    return is_rank ? TSRI_EXIT_FAILED : TSRI_EXIT_USAGE;
}

int tsri_cli_finish(tsr_status status)
{
    if (status == TSR_OK) {
        return TSRI_EXIT_OK;
    }
    /* Ranks that only heard of a failure are silent; of one that all ranks see alike, one speaks.
     */
    if (status != TSR_ERR_REMOTE && (status != TSR_ERR_DISAGREE || is_first_rank())) {
        tsr_error_print(stderr);
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

static tsr_status raise_unknown(const tsri_cli_command *const *commands, const char *name)
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
        (void)raise_unknown(commands, argv[2]);
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
        (void)raise_unknown(commands, argv[1]);
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
