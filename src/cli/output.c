/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file output.c
 * Standard output arrives, or the command fails: a full disk behind it is seen at the end of every
 * command, here alone. Output of ranks goes through a pipe of ours, because mpirun says nothing of
 * what it could not write.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    DRAIN_MS = 200
};

static const double drain_s = 2.0; /* for what outlives mpirun, and may hold the pipe */

void tsri_cli_hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            /* Open the wrong way round, so that using it fails as before. */
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

static int complain(int result, int reason)
{
    if (reason == EPIPE) {
        return result;
    }
    (void)fprintf(stderr, "tessera: cannot write to standard output: %s\n",
                  reason != 0 ? strerror(reason) : "an earlier write failed");
    return result == TSRI_EXIT_OK ? TSRI_EXIT_FAILED : result;
}

int tsri_cli_check_output(int result)
{
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        return complain(result, errno);
    }
    return result;
}

/* ---- of ranks ---- */

typedef struct forwarder {
    int from, to;
    int ended;  /* read end of a pipe that is closed when nobody is to be waited for */
    int reason; /* errno of the first write that failed, or 0 */
} forwarder;

static void write_all(forwarder *f, const char *data, size_t bytes)
{
    while (bytes > 0 && f->reason == 0) {
        const ssize_t n = write(f->to, data, bytes);

        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            (void)poll(&(struct pollfd){.fd = f->to, .events = POLLOUT}, 1, DRAIN_MS);
        } else if (n < 0 && errno != EINTR) {
            f->reason = errno; /* what follows is read and dropped: ranks must not wait */
        }
    }
}

static void *forward(void *context)
{
    forwarder *f = context;
    double end_s = 0.0; /* when the last was waited for; 0: not yet */
    bool more = true;

    while (more) {
        struct pollfd fds[2] = {{.fd = f->from, .events = POLLIN},
                                {.fd = end_s > 0.0 ? -1 : f->ended, .events = POLLIN}};
        const int ready = poll(fds, 2, end_s > 0.0 ? DRAIN_MS : -1);
        char data[8192];

        if (fds[1].revents != 0) {
            end_s = tsri_now_s();
        }
        if (ready > 0 && fds[0].revents != 0) {
            const ssize_t n = read(f->from, data, sizeof(data));

            write_all(f, data, n > 0 ? (size_t)n : 0);
            more = n > 0 || (n < 0 && errno == EINTR);
        }
        more = more && ready != 0 && (end_s <= 0.0 || tsri_now_s() < end_s + drain_s);
    }
    return NULL;
}

/* No signal is for the thread: those of the job are taken elsewhere, SIGPIPE is an error here. */
static bool start_thread(forwarder *f, pthread_t *thread)
{
    sigset_t all;
    sigset_t before;
    bool started = false;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    started = pthread_create(thread, NULL, forward, f) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

int tsri_cli_forward_output(int (*call)(const tsri_cli *cli, int argc, char **argv),
                            const tsri_cli *cli, int argc, char **argv)
{
    int data[2] = {-1, -1};
    int end[2] = {-1, -1};
    forwarder f = {.to = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
    pthread_t thread;
    bool forwards = f.to >= 0 && fflush(stdout) == 0 && pipe2(data, O_CLOEXEC) == 0 &&
                    pipe2(end, O_CLOEXEC) == 0;
    int result = TSRI_EXIT_OK;

    f.from = data[0];
    f.ended = end[0];
    forwards = forwards && start_thread(&f, &thread);
    if (forwards) {
        (void)dup2(data[1], STDOUT_FILENO);
    }
    (void)close(data[1]);
    result = call(cli, argc, argv);
    if (forwards) {
        (void)fflush(stdout);
        (void)dup2(f.to, STDOUT_FILENO);
        (void)close(end[1]);
        (void)pthread_join(thread, NULL);
        end[1] = -1;
    }
    for (int i = 0; i < 2; i++) {
        (void)close(i == 0 ? data[0] : f.to);
        (void)close(end[i]);
    }
    return f.reason != 0 ? complain(result, f.reason) : result;
}
