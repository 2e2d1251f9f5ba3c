/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file starter.c
 * The process that the user started, while a job runs below it.
 *
 *   starter    takes signals, waits                        <- the shell
 *     keeper   passes the ranks' text on, looks after      (its own process group)
 *       mpirun                                             (its own process group)
 *         ranks
 *
 * Two processes, so that whichever is killed, the other ends what is left and removes what the job
 * has put into the shared memory's folder. A signal that ended the job is raised again after that:
 * the shell sees what ended us, and a loop of runs ends too.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double patience_s = 8.0; /* above the keeper's own */
static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

typedef struct starter {
    pid_t keeper;
    sigset_t blocked, before;
    int interrupted; /* by the first signal that ends a job; 0 */
    double until_s;  /* then the keeper is ended too */
    bool ended;
    int result; /* of the keeper, as waitpid gives it */
} starter;

static void block_signals(starter *s)
{
    (void)sigemptyset(&s->blocked);
    (void)sigaddset(&s->blocked, SIGCHLD);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
        (void)sigaddset(&s->blocked, forwarded[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &s->blocked, &s->before);
}

static void reap(starter *s)
{
    int result = 0;
    pid_t pid = waitpid(-1, &result, WNOHANG | WUNTRACED);

    for (; pid > 0; pid = waitpid(-1, &result, WNOHANG | WUNTRACED)) {
        if (pid == s->keeper && WIFSTOPPED(result)) {
            (void)kill(pid, SIGCONT); /* nobody else would */
        } else if (pid == s->keeper) {
            s->ended = true;
            s->result = result;
        }
    }
}

static void take_signal(starter *s, int number)
{
    if (number == SIGCHLD) {
        reap(s);
        return;
    }
    if (number != SIGUSR1 && number != SIGUSR2) {
        s->until_s = s->interrupted == 0 ? tsri_now_s() + patience_s : 0.0;
        s->interrupted = s->interrupted == 0 ? number : s->interrupted;
    }
    (void)kill(s->keeper, number);
}

static void wait_for_keeper(starter *s)
{
    const struct timespec tick = {.tv_sec = 1};

    while (!s->ended) {
        const int number = sigtimedwait(&s->blocked, NULL, &tick);

        if (number > 0) {
            take_signal(s, number);
        }
        if (s->interrupted != 0 && tsri_now_s() > s->until_s) {
            break; /* a second signal, or the keeper hangs */
        }
    }
}

/* Does not return if a signal ended the job. */
static int end(starter *s, const char *folder)
{
    tsri_tree_kill();
    tsri_tree_remove_folder(folder);
    if (s->ended && WIFSIGNALED(s->result) && s->interrupted == 0) {
        (void)fprintf(stderr,
                      "tessera: the process that keeps the job was killed by signal %d (%s); the "
                      "job was ended\n",
                      WTERMSIG(s->result), strsignal(WTERMSIG(s->result)));
    }
    if (s->interrupted != 0) {
        (void)fflush(NULL);
        (void)signal(s->interrupted, SIG_DFL);
        (void)sigprocmask(SIG_SETMASK, &s->before, NULL);
        (void)raise(s->interrupted);
    }
    (void)sigprocmask(SIG_SETMASK, &s->before, NULL);
    return s->ended && WIFEXITED(s->result) ? WEXITSTATUS(s->result) : TSRI_EXIT_FAILED;
}

int tsri_cli_start(char **argv, bool one_host, const char *folder)
{
    starter s = {0};
    const pid_t parent = getpid();

    tsri_tree_adopt();
    block_signals(&s);
    (void)fflush(NULL);
    s.keeper = fork();
    if (s.keeper < 0) {
        (void)fprintf(stderr, "tessera: cannot start the job: %s\n", strerror(errno));
        s.ended = true;
    } else if (s.keeper == 0) {
        (void)setpgid(0, 0); /* an interrupt from the terminal comes once, through the starter */
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) {
            _exit(TSRI_EXIT_FAILED);
        }
        const int result = tsri_cli_keep(argv, one_host, folder);

        (void)fflush(NULL);
        _exit(result);
    } else {
        wait_for_keeper(&s);
    }
    return end(&s, folder);
}
