/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file launch.c
 * Starts this program again as the ranks of a job, through Open MPI's mpirun, and waits.
 *
 * Ranks write to our standard output themselves; standard error comes through a filter. mpirun runs
 * in a process group of its own, so that an interrupt from the terminal reaches it once, through
 * us; if we are killed, it is told to end the job. All events are read from descriptors in one
 * loop: the ranks' text, and signals.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
    IDLE_MS = 200,  /* after which text without a line end is shown */
    DRAIN_MS = 1000 /* how long text may follow after mpirun has ended */
};

extern char **environ;

/* ---- mpirun's command line ---- */

typedef struct words {
    char **at;
    int count, capacity;
    tsr_status status; /* of the first word that did not fit */
} words;

static void add(words *list, const char *word)
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
    add(list, "--mca");
    add(list, name);
    add(list, value);
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
            add(list, "-x");
            add(list, name);
        }
    }
}

static void add_hosts(words *list, const char *hosts)
{
    add(list, "--host");
    add(list, hosts);
    add_setting(list, "btl", "self,vader,tcp");
    /* A dead host is noticed in some 7 s; by default it takes ten minutes. */
    add_setting(list, "oob_tcp_keepalive_time", "3");
    add_setting(list, "oob_tcp_keepalive_intvl", "2");
    add_setting(list, "oob_tcp_keepalive_probes", "2");
    add_environment(list);
}

static void add_all(words *list, const tsri_cli *cli, const char *mpirun, const char *self)
{
    char number[16];

    (void)snprintf(number, sizeof(number), "%d", cli->ranks);
    add(list, mpirun);
    if (geteuid() == 0) {
        add(list, "--allow-run-as-root"); /* containers have no other user */
    }
    add(list, "-n");
    add(list, number);
    add(list, "--oversubscribe");
    add(list, "--bind-to");
    add(list, "none");
    add(list, "--stdin");
    add(list, "none");
    add_setting(list, "mpi_yield_when_idle", "1");
    add_setting(list, "pml", "ob1");
    if (cli->hosts != NULL) {
        add_hosts(list, cli->hosts);
    } else {
        add_setting(list, "btl", "self,vader");
    }
    add(list, self);
}

static tsr_status make_words(const tsri_cli *cli, const char *mpirun, int argc, char **argv,
                             words *list)
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
    add_all(list, cli, mpirun, self);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)argc, sizeof(*rest), &rest), out);
    count = tsri_cli_strip_launch(argc, argv, rest);
    for (int i = 0; i < count; i++) {
        add(list, rest[i]);
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

/* ---- the running job ---- */

typedef struct job {
    pid_t pid;
    int errors;  /* read end of mpirun's standard error; -1: at its end */
    int signals; /* signalfd */
    sigset_t blocked, before;
    tsri_filter *filter;
    bool ended;
    int result;      /* as waitpid gives it */
    int interrupted; /* signal by which we were asked to end the job, or 0 */
} job;

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/* In the child: become mpirun. Only returns on failure. */
static void become(const job *j, char **argv, int error_end, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(TSRI_EXIT_FAILED);
    }
    if (nothing >= 0) {
        (void)dup2(nothing, STDIN_FILENO);
    }
    (void)dup2(error_end, STDERR_FILENO);
    (void)sigprocmask(SIG_SETMASK, &j->before, NULL);
    (void)execv(argv[0], argv);
    (void)dprintf(STDERR_FILENO, "tessera: cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(TSRI_EXIT_FAILED);
}

static tsr_status begin(job *j, char **argv)
{
    int ends[2] = {-1, -1};
    pid_t parent = getpid();

    (void)sigemptyset(&j->blocked);
    (void)sigaddset(&j->blocked, SIGCHLD);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
        (void)sigaddset(&j->blocked, forwarded[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &j->blocked, &j->before);
    j->signals = signalfd(-1, &j->blocked, SFD_CLOEXEC);
    if (j->signals < 0 || pipe2(ends, O_CLOEXEC) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot start mpirun: %s", strerror(errno));
    }
    j->errors = ends[0];
    (void)fflush(NULL);
    j->pid = fork();
    if (j->pid == 0) {
        become(j, argv, ends[1], parent);
    }
    (void)close(ends[1]);
    if (j->pid < 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot start mpirun: %s", strerror(errno));
    }
    return TSR_OK;
}

static void take_signal(job *j)
{
    struct signalfd_siginfo info;
    int signal_number = 0;

    if (read(j->signals, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
        return;
    }
    signal_number = (int)info.ssi_signo;
    if (signal_number == SIGCHLD) {
        j->ended = waitpid(j->pid, &j->result, WNOHANG) == j->pid;
        return;
    }
    if (signal_number != SIGUSR1 && signal_number != SIGUSR2) {
        j->interrupted = signal_number;
        j->filter->quiet = true;
    }
    /* mpirun ends a job at SIGTERM and SIGINT, but ignores SIGHUP. */
    (void)kill(j->pid, signal_number == SIGHUP ? SIGTERM : signal_number);
}

static void take_text(job *j)
{
    char data[8192];
    ssize_t bytes = read(j->errors, data, sizeof(data));

    if (bytes > 0) {
        tsri_filter_feed(j->filter, data, (size_t)bytes);
    } else if (bytes == 0 || errno != EINTR) {
        (void)close(j->errors);
        j->errors = -1;
    }
}

static void wait_for(job *j)
{
    bool more = true;

    while (!j->ended || (more && j->errors >= 0)) {
        struct pollfd fds[2] = {{.fd = j->signals, .events = POLLIN},
                                {.fd = j->errors, .events = POLLIN}};
        int ready = poll(fds, 2, j->ended ? DRAIN_MS : IDLE_MS);

        if (ready == 0) {
            more = !j->ended; /* a rank that outlives mpirun may hold the pipe */
            tsri_filter_idle(j->filter);
        }
        if (ready > 0 && fds[1].revents != 0) {
            take_text(j);
        }
        if (ready > 0 && fds[0].revents != 0 && !j->ended) {
            take_signal(j);
        }
    }
    tsri_filter_finish(j->filter);
}

/* What nobody has said yet about a job that failed. */
static void explain(const job *j)
{
    const tsri_filter *f = j->filter;
    int code = WIFEXITED(j->result) ? WEXITSTATUS(j->result) : 128 + WTERMSIG(j->result);

    if (j->interrupted != 0) {
        (void)fprintf(stderr, "tessera: %s; the job was ended\n", strsignal(j->interrupted));
    } else if (f->told || code == TSRI_EXIT_FAILED) {
        return; /* a rank that exits with 1 has said why */
    } else if (f->exit_rank >= 0) {
        (void)fprintf(stderr, "tessera: rank %d exited with status %d; the job was ended\n",
                      f->exit_rank, f->exit_code);
    } else if (code > 128 && code < 128 + 65) {
        (void)fprintf(stderr, "tessera: a rank was killed by signal %d (%s); the job was ended\n",
                      code - 128, strsignal(code - 128));
    } else {
        (void)fprintf(stderr, "tessera: mpirun failed with status %d\n", code);
    }
}

static int end(job *j)
{
    bool good = j->ended && WIFEXITED(j->result) && WEXITSTATUS(j->result) == 0;

    if (!good || j->interrupted != 0) {
        explain(j);
    }
    return good && j->interrupted == 0 ? TSRI_EXIT_OK : TSRI_EXIT_FAILED;
}

static int run(char **argv)
{
    tsri_filter *filter = NULL;
    job j = {.errors = -1, .signals = -1};
    int result = TSRI_EXIT_FAILED;

    if (tsri_alloc(1, sizeof(*filter), &filter) != TSR_OK) {
        return tsri_cli_finish(TSR_ERR_NOMEM);
    }
    tsri_filter_init(filter, STDERR_FILENO);
    j.filter = filter;
    if (begin(&j, argv) == TSR_OK) {
        wait_for(&j);
        result = end(&j);
    } else {
        tsr_error_print(stderr);
    }
    if (j.errors >= 0) {
        (void)close(j.errors);
    }
    if (j.signals >= 0) {
        (void)close(j.signals);
    }
    (void)sigprocmask(SIG_SETMASK, &j.before, NULL);
    tsri_free(&filter);
    return result;
}

int tsri_cli_launch(const tsri_cli *cli, int argc, char **argv)
{
    char mpirun[PATH_BYTES];
    words list = {0};
    int result = TSRI_EXIT_USAGE; /* nothing has started yet */

    if (find_mpirun(mpirun, sizeof(mpirun)) != TSR_OK ||
        make_words(cli, mpirun, argc, argv, &list) != TSR_OK) {
        (void)fprintf(stderr, "tessera: %s\n", tsr_error_message());
    } else {
        result = run(list.at);
    }
    free_words(&list);
    return result;
}
