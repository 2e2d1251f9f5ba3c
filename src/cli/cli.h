/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cli.h
 * The `tessera` program: commands, their options, and how ranks are started.
 *
 * A command is one file, cmd_<name>.c, with one tsri_cli_command; main.c lists them. Its life:
 * 1. options are parsed against its table; -n and --hosts are understood for it if it launches;
 * 2. check() looks at what can be seen before any rank starts (config, files, mesh arithmetic on a
 *    simulated world); a failure is printed once and the exit status is 2;
 * 3. with -n above 1 or --hosts the program starts itself again through mpirun, and waits;
 *    else, or under mpirun or srun, run() is called: it opens its world and does the work.
 * A run() that works on a world calls tsri_world_settle before it releases anything, so that a
 * failure is told once and ends the job. Exit status: 0, or 1 for whatever goes wrong in run().
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>

typedef struct tsri_cli tsri_cli;

/** A row of a command's option table; a table ends with {NULL}. */
typedef struct tsri_cli_option {
    const char *name;  /* "--mesh" */
    const char *value; /* what it takes, "SPEC"; NULL: nothing, it is a switch */
    const char *help;  /* one line */
} tsri_cli_option;

typedef struct tsri_cli_command {
    const char *name;
    const char *summary; /* one line, for the list of commands */
    const char *usage;   /* what follows the name: "CONFIG.yaml [key=value ...]" */
    const char *help;    /* what it does and examples; lines of 80 columns, ending in \n */
    const tsri_cli_option *options;
    int words_min, words_max; /* words that are no options; words_max -1: any number */
    bool launches;            /* takes -n and --hosts */
    tsr_status (*check)(const tsri_cli *cli); /* NULL: nothing to see beforehand */
    int (*ranks)(const tsri_cli *cli); /* ranks where -n was not given; NULL or 0: this process */
    int (*run)(const tsri_cli *cli);   /* returns the exit status */
} tsri_cli_command;

/** A command line, understood. Strings are argv's. */
struct tsri_cli {
    const tsri_cli_command *command;
    int word_count;
    const char **words; /* [word_count] words that are no options, in order */
    int option_count;
    const tsri_cli_option **options; /* [option_count] in order */
    const char **values;             /* [option_count] NULL for switches */
    bool help;                       /* --help was asked for */
    int ranks;                       /* -n, or the sum of --hosts; 0: neither was given */
    const char *hosts;               /* --hosts, or NULL */
};

/** Value of the option called name, the last one given; NULL if there is none. */
const char *tsri_cli_value(const tsri_cli *cli, const char *name);
/** True if the option called name was given. */
bool tsri_cli_has(const tsri_cli *cli, const char *name);

/** With --hosts: the host (index among those named, first come first) of each of cli->ranks ranks
 *  into node_of[cli->ranks]. */
void tsri_cli_place(const tsri_cli *cli, int *node_of);

/** For run(): print the trail of a failure; returns the exit status. */
int tsri_cli_finish(tsr_status status);

/** Run the command that argv names; commands ends with NULL. Returns the exit status. */
int tsri_cli_main(const tsri_cli_command *const *commands, int argc, char **argv);
