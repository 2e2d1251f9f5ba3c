/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file help.c
 * What --help prints, of the program and of a command: made from the same tables that parse.
 */
#include "cli_priv.h"

#include <string.h>

void tsri_cli_print_help(const tsri_cli_command *const *commands, FILE *to)
{
    (void)fputs("tessera trains language models on many devices, from plain layouts.\n"
                "\n"
                "usage: tessera COMMAND [options] [words]\n"
                "       tessera help COMMAND\n"
                "\n"
                "commands:\n",
                to);
    for (int i = 0; commands[i] != NULL; i++) {
        (void)fprintf(to, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    }
    (void)fputs(
        "  help      this text, or that of a command\n"
        "\n"
        "Ranks. A command that computes runs as one rank, unless you say otherwise:\n"
        "  -n 4               four ranks on this machine (through mpirun)\n"
        "  --hosts a:4,b:4    eight ranks on two machines, reached by ssh\n"
        "  mpirun, srun       a command started by them is one rank of their job\n"
        "\n"
        "A mesh names what the ranks are for. On 8 ranks, replicate=2 shard=2 tp=2 keeps two\n"
        "copies of the model, each sharded over two pairs, each pair sharing every matrix.\n"
        "\n"
        "Exit status: 0 done; 2 a mistake seen before any rank started; 1 anything else.\n"
        "Environment: TSR_LOG=error|warn|info|debug writes a log to standard error;\n"
        "TSR_RACE_CHECK=1 fails calls whose memory accesses nothing orders (slow).\n",
        to);
}

static void print_option(const char *name, const char *value, const char *help, FILE *to)
{
    char left[64];

    (void)snprintf(left, sizeof(left), "%s%s%s", name, value != NULL ? " " : "",
                   value != NULL ? value : "");
    (void)fprintf(to, "  %-22s %s\n", left, help);
}

void tsri_cli_print_command_help(const tsri_cli_command *command, FILE *to)
{
    bool spaced = command->usage[0] != '\0';

    (void)fprintf(to, "usage: tessera %s%s%s\n\n%s: %s\n\n%s", command->name, spaced ? " " : "",
                  command->usage, command->name, command->summary, command->help);
    (void)fputs("\noptions:\n", to);
    for (const tsri_cli_option *o = command->options; o != NULL && o->name != NULL; o++) {
        print_option(o->name, o->value, o->help, to);
    }
    if (command->launches) {
        print_option("-n", "N", "run as N ranks (through mpirun)", to);
        print_option("--hosts", "A:4,B:4", "on these hosts; without -n, as many as they hold", to);
    }
    print_option("--help", NULL, "this text", to);
}
