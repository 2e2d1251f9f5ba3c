/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file keeper.c
 * Looks after mpirun and its ranks: passes text on, ends the job when it does not end by itself.
 *
 * Ranks write to our standard output themselves; standard error comes through a filter. All events
 * are read from descriptors in one loop: the ranks' text, and signals; and once a second the
 * processes below mpirun are looked at. mpirun ends a job when a rank fails, as a rule within a
 * second. It does not if it is stopped, or hangs in its own library, or ranks hang in theirs; so
 * after the first sign of a failure it has some seconds, and then everything is killed.
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
    TICK_MS = 200,   /* text without a line end is shown, and processes looked at */
    DRAIN_MS = 1000, /* how long text may follow after mpirun has ended */
    SIGN_BYTES = 160
};

static const double look_s = 1.0;
static const double stopped_s = 2.0; /* a debugger may stop mpirun for a moment */
static const double told_s = 3.0;    /* after a rank's message, or a signal */
static const double gone_s = 6.0;    /* ranks end together, but not at the same moment */

typedef struct rank_seen {
    pid_t pid;
    int rank;
    bool there;
} rank_seen;

typedef struct job {
    pid_t pid;
    int errors;  /* read end of mpirun's standard error; -1: at its end */
    int signals; /* signalfd */
    sigset_t blocked, before;
    tsri_filter *filter;
    bool ended;
    int result;      /* as waitpid gives it */
    int interrupted; /* signal by which we were asked to end the job, or 0 */

    bool one_host;
    tsri_proc *procs;
    rank_seen *ranks;
    int proc_capacity, rank_count, rank_capacity;
    double looked_s;
    double sign_s;         /* of the oldest sign of a failure that is still there; 0: none */
    double patience_s;     /* how long after it the job is killed */
    char sign[SIGN_BYTES]; /* "": has been told */
    bool sign_may_pass;    /* mpirun is stopped */
    bool killed;
} job;

static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

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
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        (void)sigaddset(&j->blocked, taken[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &j->blocked, NULL);
    /* What mpirun and the ranks begin with: nothing blocked, whatever the starter blocked. */
    (void)sigemptyset(&j->before);
    j->signals = signalfd(-1, &j->blocked, SFD_CLOEXEC);
    if (j->signals < 0 || pipe2(ends, O_CLOEXEC) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot start mpirun: %s", strerror(errno));
    }
    j->errors = ends[0];
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

/* ---- ends ---- */

/* Everything below us, at once. The pipe then ends, and the loop with it. */
static void kill_job(job *j)
{
    if (j->sign[0] != '\0' && !j->filter->told && !j->filter->reported && j->interrupted == 0) {
        (void)fprintf(stderr, "tessera: %s; the job was ended\n", j->sign);
        j->filter->told = true;
    }
    j->killed = true;
    j->filter->quiet = true;
    if (!j->ended) {
        (void)kill(j->pid, SIGKILL);
        j->ended = waitpid(j->pid, &j->result, 0) == j->pid;
    }
    tsri_tree_kill();
}

static void take_signal(job *j)
{
    struct signalfd_siginfo info;
    int number = 0;

    if (read(j->signals, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
        return;
    }
    number = (int)info.ssi_signo;
    if (number == SIGCHLD) {
        /* Others than mpirun are ranks that outlived it. */
        for (int result = 0, pid = waitpid(-1, &result, WNOHANG); pid > 0;
             pid = waitpid(-1, &result, WNOHANG)) {
            if (pid == j->pid) {
                j->ended = true;
                j->result = result;
            }
        }
        return;
    }
    if (j->interrupted != 0 && number != SIGUSR1 && number != SIGUSR2) {
        kill_job(j);
        return;
    }
    if (number != SIGUSR1 && number != SIGUSR2) {
        j->interrupted = number;
        j->filter->quiet = true;
        j->sign_s = tsri_now_s();
        j->patience_s = told_s;
    }
    /* mpirun ends a job at SIGTERM and SIGINT, but ignores SIGHUP. */
    (void)kill(j->pid, number == SIGHUP ? SIGTERM : number);
    (void)kill(j->pid, SIGCONT);
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

/* ---- signs of a failure ---- */

/* A sign holds from when it was first seen; one that does not wait as long takes precedence. */
static bool note_sign(job *j, double patience_s, const char *text)
{
    const double now = tsri_now_s();

    if (j->sign_s > 0.0 && j->sign_s + j->patience_s <= now + patience_s) {
        return false;
    }
    j->sign_s = now;
    j->patience_s = patience_s;
    j->sign_may_pass = false;
    (void)snprintf(j->sign, sizeof(j->sign), "%s", text);
    return true;
}

static void see_rank(job *j, pid_t pid)
{
    for (int i = 0; i < j->rank_count; i++) {
        if (j->ranks[i].pid == pid) {
            j->ranks[i].there = true;
            return;
        }
    }
    const int rank = tsri_proc_rank(pid);

    if (rank >= 0 &&
        tsri_grow(&j->ranks, &j->rank_capacity, j->rank_count + 1, sizeof(*j->ranks)) == TSR_OK) {
        j->ranks[j->rank_count++] = (rank_seen){.pid = pid, .rank = rank, .there = true};
    }
}

/* Ranks end together. text: whom the job waits for, if some have ended and others not. */
static bool has_gone(const job *j, char *text, size_t size)
{
    const rank_seen *gone = NULL;
    const rank_seen *held = NULL;
    bool any_left = false;
    tsri_proc self;

    for (int i = 0; i < j->rank_count; i++) {
        const rank_seen *r = &j->ranks[i];

        any_left = any_left || r->there;
        gone = r->there ? gone : r;
        if (r->there && tsri_proc_read(r->pid, &self) && tsri_proc_is_stopped(&self)) {
            held = r;
        }
    }
    if (gone == NULL) {
        return false;
    }
    if (!any_left) {
        (void)snprintf(text, size, "mpirun did not end when its ranks had");
    } else if (held != NULL) {
        (void)snprintf(text, size, "rank %d (process %ld) is stopped while others have ended",
                       held->rank, (long)held->pid);
    } else {
        (void)snprintf(text, size, "rank %d (process %ld) has ended without the others", gone->rank,
                       (long)gone->pid);
    }
    return true;
}

/* Which of mpirun's ranks are there, and does it run itself? */
static void look_at_processes(job *j)
{
    const int count = tsri_tree_list(j->pid, &j->procs, &j->proc_capacity);
    tsri_proc self;
    char text[SIGN_BYTES];

    for (int i = 0; i < j->rank_count; i++) {
        j->ranks[i].there = false;
    }
    for (int i = 0; i < count; i++) {
        if (j->procs[i].parent == j->pid && !tsri_proc_has_ended(&j->procs[i])) {
            see_rank(j, j->procs[i].pid);
        }
    }
    if (j->one_host && has_gone(j, text, sizeof(text))) {
        (void)note_sign(j, gone_s, text);
    }
    if (tsri_proc_read(j->pid, &self) && tsri_proc_is_stopped(&self)) {
        (void)snprintf(text, sizeof(text), "mpirun (process %ld) was stopped", (long)j->pid);
        j->sign_may_pass = note_sign(j, stopped_s, text) || j->sign_may_pass;
    } else if (j->sign_may_pass) {
        j->sign_s = 0.0;
        j->sign_may_pass = false;
    }
}

static void look_at_job(job *j)
{
    const double now = tsri_now_s();

    if (j->ended || j->killed) {
        return;
    }
    if (now - j->looked_s >= look_s) {
        j->looked_s = now;
        look_at_processes(j);
    }
    if (j->filter->told || j->filter->reported) {
        (void)note_sign(j, told_s, "");
    }
    if (j->sign_s > 0.0 && now > j->sign_s + j->patience_s) {
        kill_job(j);
    }
}

static void wait_for(job *j)
{
    bool more = true;

    while (!j->ended || (more && j->errors >= 0)) {
        struct pollfd fds[2] = {{.fd = j->signals, .events = POLLIN},
                                {.fd = j->errors, .events = POLLIN}};
        int ready = poll(fds, 2, j->ended ? DRAIN_MS : TICK_MS);

        if (ready == 0) {
            more = !j->ended; /* a rank that outlives mpirun may hold the pipe */
            tsri_filter_idle(j->filter);
        }
        if (ready > 0 && fds[1].revents != 0) {
            take_text(j);
        }
        if (ready > 0 && fds[0].revents != 0) {
            take_signal(j);
        }
        look_at_job(j);
    }
    /* How it ended is told next, and explains what it said last. */
    j->filter->quiet = j->filter->quiet || WIFSIGNALED(j->result);
    tsri_filter_finish(j->filter);
}

/* ---- the end ---- */

/* What nobody has said yet about a job that failed. */
static void explain(const job *j)
{
    const tsri_filter *f = j->filter;
    const bool by_signal = WIFSIGNALED(j->result);
    const int code = by_signal ? WTERMSIG(j->result) : WEXITSTATUS(j->result);

    if (j->interrupted != 0) {
        (void)fprintf(stderr, "tessera: %s; the job was ended\n", strsignal(j->interrupted));
    } else if (f->told || f->reported || j->killed ||
               (!by_signal && code == TSRI_EXIT_FAILED && (f->exit_rank >= 0 || f->aborted))) {
        return; /* it has been said; a rank that exits with 1 has said why */
    } else if (by_signal) {
        (void)fprintf(stderr,
                      "tessera: mpirun (process %ld) was killed by signal %d (%s); the job was "
                      "ended\n",
                      (long)j->pid, code, strsignal(code));
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

static int end(job *j, const char *folder)
{
    const bool good =
        WIFEXITED(j->result) && WEXITSTATUS(j->result) == 0 && !j->killed && j->interrupted == 0;

    tsri_tree_kill(); /* ranks that outlived mpirun */
    tsri_tree_remove_folder(folder);
    if (!good) {
        explain(j);
    }
    return good ? TSRI_EXIT_OK : TSRI_EXIT_FAILED;
}

int tsri_cli_keep(char **argv, bool one_host, const char *folder)
{
    tsri_filter *filter = NULL;
    job j = {.errors = -1, .signals = -1, .one_host = one_host};
    int result = TSRI_EXIT_FAILED;

    if (tsri_alloc(1, sizeof(*filter), &filter) != TSR_OK) {
        return tsri_cli_finish(TSR_ERR_NOMEM);
    }
    tsri_tree_adopt();
    tsri_filter_init(filter, STDERR_FILENO);
    j.filter = filter;
    if (begin(&j, argv) == TSR_OK) {
        filter->launcher = (long)j.pid;
        wait_for(&j);
        result = end(&j, folder);
    } else {
        tsr_error_print(stderr);
    }
    if (j.errors >= 0) {
        (void)close(j.errors);
    }
    if (j.signals >= 0) {
        (void)close(j.signals);
    }
    tsri_free(&j.procs);
    tsri_free(&j.ranks);
    tsri_free(&filter);
    return result;
}
