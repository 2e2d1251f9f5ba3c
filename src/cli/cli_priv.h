/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cli_priv.h
 * Between the files of the program's frame: parsing, help, starting ranks.
 */
#pragma once

#include "base/proc.h"

#include <stddef.h>

#include "cli/cli.h"

enum {
    TSRI_EXIT_OK = 0,
    TSRI_EXIT_FAILED = 1,
    TSRI_EXIT_USAGE = 2 /* seen before any rank started */
};

/** Understand argv[1 ..] (argv[0] is the command). Freed by tsri_cli_free in any case. */
tsr_status tsri_cli_parse(const tsri_cli_command *command, int argc, char **argv, tsri_cli *out);
void tsri_cli_free(tsri_cli *cli);
/** argv without -n and --hosts, which the ranks must not see; returns the new count. */
int tsri_cli_strip_launch(int argc, char **argv, char **out);

void tsri_cli_print_help(const tsri_cli_command *const *commands, FILE *to);
void tsri_cli_print_command_help(const tsri_cli_command *command, FILE *to);

/** Let OpenMP's threads spin briefly, unless the environment says how long: starts this program
 *  again with argv, once. */
void tsri_cli_calm_openmp(char **argv);

/** Before anything is opened: a standard stream that is closed must not become another file's. */
void tsri_cli_hold_streams(void);
/** At the end: result, or TSRI_EXIT_FAILED, and why on standard error, where not all of standard
 * output was written. A reader that has gone away is no failure. */
int tsri_cli_check_output(int result);
/**
 * Let standard output of the processes that call() starts go through this one, so that their writes
 * are known to arrive; call's result, judged as by tsri_cli_check_output.
 */
int tsri_cli_forward_output(int (*call)(const tsri_cli *cli, int argc, char **argv),
                            const tsri_cli *cli, int argc, char **argv);

/** Start ranks ranks of `program words` through mpirun and wait; returns the exit status. */
int tsri_cli_launch(const tsri_cli *cli, int argc, char **argv);

/** In the process that the user started: run mpirun's words under a keeper, and leave nothing of
 *  the job behind. Returns the exit status, or ends by the signal that ended the job. folder: what
 *  the job keeps in shared memory, removed at the end; may be "". */
int tsri_cli_start(char **argv, bool one_host, const char *folder);
/** In the keeper. one_host: mpirun's children are the ranks. */
int tsri_cli_keep(char **argv, bool one_host, const char *folder);

/** From now on the processes below this one stay below when those in between end. */
void tsri_tree_adopt(void);
/** Processes below root, ended ones that nobody has waited for included; *procs grows. */
int tsri_tree_list(pid_t root, tsri_proc **procs, int *capacity);
/** Kill everything below this process and wait for it. */
void tsri_tree_kill(void);
void tsri_tree_remove_folder(const char *path);

/**
 * Passes what ranks and mpirun write to standard error on to out, without Open MPI's own notices.
 * Text of ranks goes through at once and unchanged.
 */
typedef struct tsri_filter {
    int out;
    bool passing;  /* within a line that goes through */
    bool in_block; /* within a notice: between two lines of dashes */
    int dashes;    /* held back at the end of a passing line: a notice may begin there too */
    size_t used;
    char text[16384]; /* the undecided line, or the notice so far */
    size_t ready;
    char output[4096]; /* what goes out at the end of the call */
    bool spoke;        /* something went through */
    size_t held;       /* what the launcher says and may explain something is held for a while: */
    char later[8192];
    double held_s; /* since then */
    long launcher; /* its process, which its lines name; 0: unknown */
    bool told;     /* how a rank or host was lost has been said */
    bool reported; /* a rank has said why it failed */
    bool aborted;  /* mpirun says that a rank ended the job */
    size_t headed; /* characters of the newest line, */
    char head[24]; /* and the first of them */
    bool quiet;    /* the job is being ended on request: deaths of ranks are no news */
    int exit_rank; /* -1, or the rank of which mpirun says that it exited with exit_code */
    int exit_code;
} tsri_filter;

void tsri_filter_init(tsri_filter *filter, int out);
void tsri_filter_feed(tsri_filter *filter, const char *data, size_t bytes);
/** Nothing came for a while: what is undecided is no notice. */
void tsri_filter_idle(tsri_filter *filter);
/** The end: as idle, and a notice that never closed is shown. */
void tsri_filter_finish(tsri_filter *filter);
