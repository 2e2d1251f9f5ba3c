/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file launch.c
 * Starts this program again as the ranks of a job, through Open MPI's mpirun: what mpirun is told,
 * and what it needs of this machine. starter.c and keeper.c wait for it.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
    FOLDER_BYTES = 64,
    DESCRIPTORS = 64,    /* open files of mpirun or a rank, whatever the number of ranks */
    DESCRIPTORS_RANK = 8 /* and for each of them */
};

extern char **environ;

/* ---- mpirun's command line ---- */

typedef struct words {
    char **at;
    int count, capacity;
    tsr_status status; /* of the first word that did not fit */
} words;

static void add_word(words *list, const char *word)
{
    char *copy = NULL;

    if (list->status == TSR_OK) {
        list->status = tsri_grow(&list->at, &list->capacity, list->count + 2, sizeof(char *));
    }
    if (list->status == TSR_OK) {
        list->status = tsri_strdup(word, &copy);
    }
    if (list->status == TSR_OK) {
        list->at[list->count++] = copy;
        list->at[list->count] = NULL;
    }
}

/* A setting of Open MPI, unless the environment has it: the user knows his network. */
static void add_setting(words *list, const char *name, const char *value)
{
    char variable[64];

    (void)snprintf(variable, sizeof(variable), "OMPI_MCA_%s", name);
    if (getenv(variable) != NULL) {
        return;
    }
    add_word(list, "--mca");
    add_word(list, name);
    add_word(list, value);
}

static void free_words(words *list)
{
    for (int i = 0; i < list->count; i++) {
        tsri_free(&list->at[i]);
    }
    tsri_free(&list->at);
}

/* Ranks on other hosts get of our environment what concerns us. */
static void add_environment(words *list)
{
    for (char **entry = environ; *entry != NULL; entry++) {
        size_t length = strcspn(*entry, "=");
        char name[256];

        if ((strncmp(*entry, "TSR_", 4) == 0 || strncmp(*entry, "OMP_", 4) == 0 ||
             strncmp(*entry, "GOMP_", 5) == 0 || strncmp(*entry, "LD_LIBRARY_PATH=", 16) == 0) &&
            length < sizeof(name)) {
            (void)snprintf(name, sizeof(name), "%.*s", (int)length, *entry);
            add_word(list, "-x");
            add_word(list, name);
        }
    }
}

static void add_hosts(words *list, const char *hosts)
{
    add_word(list, "--host");
    add_word(list, hosts);
    add_setting(list, "btl", "self,vader,tcp");
    /* A dead host is noticed in some 7 s; by default it takes ten minutes. */
    add_setting(list, "oob_tcp_keepalive_time", "3");
    add_setting(list, "oob_tcp_keepalive_intvl", "2");
    add_setting(list, "oob_tcp_keepalive_probes", "2");
    add_environment(list);
}

static void add_all(words *list, const tsri_cli *cli, const char *mpirun, const char *folder,
                    const char *self)
{
    char number[16];

    (void)snprintf(number, sizeof(number), "%d", cli->ranks);
    add_word(list, mpirun);
    if (geteuid() == 0) {
        add_word(list, "--allow-run-as-root"); /* containers have no other user */
    }
    add_word(list, "-n");
    add_word(list, number);
    add_word(list, "--oversubscribe");
    add_word(list, "--bind-to");
    add_word(list, "none");
    add_word(list, "--stdin");
    add_word(list, "none");
    add_setting(list, "mpi_yield_when_idle", "1");
    add_setting(list, "pml", "ob1");
    if (cli->hosts != NULL) {
        add_hosts(list, cli->hosts);
    } else {
        add_setting(list, "btl", "self,vader");
    }
    if (folder[0] != '\0') {
        add_setting(list, "btl_vader_backing_directory", folder);
        add_setting(list, "orte_tmpdir_base", folder);
    }
    add_word(list, self);
}

static tsr_status make_words(const tsri_cli *cli, const char *mpirun, const char *folder, int argc,
                             char **argv, words *list)
{
    tsr_status status = TSR_OK;
    char self[PATH_BYTES];
    char **rest = NULL;
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    int count = 0;

    if (length < 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot find this program's file: %s", strerror(errno));
    }
    self[length] = '\0';
    add_all(list, cli, mpirun, folder, self);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)argc, sizeof(*rest), &rest), out);
    count = tsri_cli_strip_launch(argc, argv, rest);
    for (int i = 0; i < count; i++) {
        add_word(list, rest[i]);
    }
    tsri_free(&rest);
    TSR_TRY_GOTO(status, list->status, out);

out:
    return status;
}

/* mpirun as the shell would find it. */
static tsr_status find_mpirun(char *out, size_t size)
{
    const char *at = getenv("PATH");

    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ":");

        (void)snprintf(out, size, "%.*s/mpirun", (int)length, at);
        if (length > 0 && access(out, X_OK) == 0) {
            return TSR_OK;
        }
        at += length + (at[length] == ':' ? 1 : 0);
    }
    return TSR_RAISE(TSR_ERR_IO, "-n needs Open MPI's mpirun, which is not in PATH; "
                                 "on Debian: apt-get install openmpi-bin");
}

/* ---- what a job needs of this machine ---- */

/* Everything that the job puts into shared memory and its session's files go into a folder of its
 * own, which goes with it, however it ends. Other hosts do not have it. */
static void make_folder(const tsri_cli *cli, char *out, size_t size)
{
    (void)snprintf(out, size, "/dev/shm/tessera-%ld-XXXXXX", (long)getpid());
    if (cli->hosts != NULL || mkdtemp(out) == NULL) {
        out[0] = '\0';
    }
}

/* With too few descriptors mpirun waits for ranks that cannot start. */
static tsr_status check_descriptors(int ranks)
{
    const rlim_t wanted = DESCRIPTORS + DESCRIPTORS_RANK * (rlim_t)ranks;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
        return TSR_OK;
    }
    if (limit.rlim_max < wanted) {
        return TSR_RAISE(TSR_ERR_IO,
                         "%d ranks need some %llu open files, but the limit is %llu: raise it with "
                         "ulimit -n",
                         ranks, (unsigned long long)wanted, (unsigned long long)limit.rlim_max);
    }
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot raise the limit of open files to %llu: %s",
                         (unsigned long long)wanted, strerror(errno));
    }
    return TSR_OK;
}

int tsri_cli_launch(const tsri_cli *cli, int argc, char **argv)
{
    char mpirun[PATH_BYTES];
    char folder[FOLDER_BYTES] = "";
    words list = {0};
    int result = TSRI_EXIT_USAGE; /* nothing has started yet */

    if (find_mpirun(mpirun, sizeof(mpirun)) != TSR_OK || check_descriptors(cli->ranks) != TSR_OK) {
        (void)fprintf(stderr, "tessera: %s\n", tsr_error_message());
        return result;
    }
    /* Its default shares memory with a lock, which a rank that dies keeps: mpirun then hangs. */
    (void)setenv("PMIX_MCA_gds", "hash", 0);
    make_folder(cli, folder, sizeof(folder));
    if (make_words(cli, mpirun, folder, argc, argv, &list) != TSR_OK) {
        (void)fprintf(stderr, "tessera: %s\n", tsr_error_message());
        tsri_tree_remove_folder(folder);
    } else {
        result = tsri_cli_start(list.at, cli->hosts == NULL, folder);
    }
    free_words(&list);
    return result;
}
