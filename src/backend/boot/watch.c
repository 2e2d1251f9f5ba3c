/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file watch.c
 * A thread that ends the job when this rank waits too long in calls of MPI that never give up:
 * start, new communicators, end. It also ends this rank when its launcher is gone, and calls others
 * who want to look at something now and then.
 *
 * The message names the rank, what it waits in, and the processes of the job on this host that do
 * not run. Ranks of a host speak one after the other, so that as a rule one does.
 */
#include "boot_priv.h"

#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double look_s = 1.0;    /* between looks at the launcher */
static const double turn_s = 0.1;    /* a rank waits longer than the one before by this */
static const double longest_s = 1.5; /* and by this at most */

typedef struct watch_look {
    void (*look)(void *context);
    void *context; /* what it was added with */
} watch_look;

struct tsri_boot_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    pid_t parent;
    double limit_s, deadline_s;
    const char *what; /* NULL: not armed */
    bool stop;
    watch_look *looks; /* [look_count], under lock */
    int look_count, look_capacity;
};

static void expire(const tsri_boot_watch *watch)
{
    char around[200];

    (void)tsri_boot_look_around(around, sizeof(around));
    (void)TSR_RAISE(TSR_ERR_COMM, "waited %g s for the other ranks in %s: %s; the job is ended",
                    watch->limit_s, watch->what,
                    around[0] != '\0' ? around : "ranks of other hosts did not arrive");
    tsr_error_print(stderr);
    tsri_boot_abort(1);
}

/* The launcher is gone, and with it who would remove what MPI shares between ranks of a host.
 * Nobody is left who could tell the other ranks, but they see the same. */
static void leave_orphaned(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[1024];

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        char *path = strstr(line, "/dev/shm/");

        if (path != NULL && strstr(path, "vader_segment") != NULL) {
            path[strcspn(path, "\n")] = '\0';
            (void)unlink(path);
        }
    }
    _exit(1);
}

static struct timespec to_timespec(double s)
{
    double whole = floor(s);

    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((s - whole) * 1e9)};
}

static void *watch_main(void *arg)
{
    tsri_boot_watch *watch = arg;

    double next_s = 0.0;

    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->stop) {
        const double now = tsri_now_s();
        double until = now + look_s;

        for (int i = 0; i < watch->look_count && now >= next_s; i++) {
            watch->looks[i].look(watch->looks[i].context);
        }
        next_s = now >= next_s ? now + look_s : next_s;

        if (getppid() != watch->parent) {
            leave_orphaned();
        }
        if (watch->what != NULL && now >= watch->deadline_s) {
            expire(watch);
        }
        until = watch->what != NULL && watch->deadline_s < until ? watch->deadline_s : until;
        const struct timespec at = to_timespec(until);
        (void)pthread_cond_timedwait(&watch->change, &watch->lock, &at);
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

static int start_thread(tsri_boot_watch *watch)
{
    sigset_t all;
    sigset_t before;
    int code = 0;

    /* Signals are the program's: none is delivered to this thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&watch->thread, NULL, watch_main, watch);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

tsr_status tsri_boot_watch_start(double limit_s, tsri_boot_watch **out)
{
    tsri_boot_watch *watch = NULL;
    pthread_condattr_t attributes;

    TSR_TRY(tsri_alloc(1, sizeof(*watch), &watch));
    watch->limit_s = limit_s;
    watch->parent = getppid();
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&watch->change, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    if (start_thread(watch) != 0) {
        (void)pthread_cond_destroy(&watch->change);
        (void)pthread_mutex_destroy(&watch->lock);
        tsri_free(&watch);
        return TSR_RAISE(TSR_ERR_NOMEM, "cannot start the watchdog's thread: limit of threads");
    }
    *out = watch;
    return TSR_OK;
}

static void set(tsri_boot_watch *watch, const char *what, double extra_s, bool stop)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->what = what;
    watch->deadline_s = tsri_now_s() + watch->limit_s + extra_s;
    watch->stop = stop;
    (void)pthread_cond_signal(&watch->change);
    (void)pthread_mutex_unlock(&watch->lock);
}

void tsri_boot_watch_stop(tsri_boot_watch **watch)
{
    if (*watch != NULL) {
        set(*watch, NULL, 0.0, true);
        (void)pthread_join((*watch)->thread, NULL);
        (void)pthread_cond_destroy(&(*watch)->change);
        (void)pthread_mutex_destroy(&(*watch)->lock);
        tsri_free(&(*watch)->looks);
        tsri_free(watch);
    }
}

void tsri_boot_watch_limit(tsri_boot_watch *watch, double limit_s)
{
    if (watch != NULL) {
        (void)pthread_mutex_lock(&watch->lock);
        watch->limit_s = limit_s;
        (void)pthread_mutex_unlock(&watch->lock);
    }
}

void tsri_boot_watch_arm(tsri_boot_watch *watch, const char *what, double extra_s)
{
    if (watch != NULL) {
        const double turn = turn_s * tsri_rank();

        set(watch, what, extra_s + (turn < longest_s ? turn : longest_s), false);
    }
}

void tsri_boot_watch_disarm(tsri_boot_watch *watch)
{
    if (watch != NULL) {
        set(watch, NULL, 0.0, false);
    }
}

tsr_status tsri_boot_watch_add(tsri_boot_watch *watch, void (*look)(void *), void *context)
{
    if (watch == NULL) {
        return TSR_OK;
    }
    (void)pthread_mutex_lock(&watch->lock);
    const tsr_status status = tsri_grow(&watch->looks, &watch->look_capacity, watch->look_count + 1,
                                        sizeof(watch->looks[0]));

    if (status == TSR_OK) {
        watch->looks[watch->look_count++] = (watch_look){look, context};
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return status == TSR_OK ? TSR_OK : tsr_error_pass(status, __FILE__, __LINE__, __func__);
}

void tsri_boot_watch_remove(tsri_boot_watch *watch, void (*look)(void *), void *context)
{
    if (watch == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    for (int i = watch->look_count - 1; i >= 0; i--) {
        if (watch->looks[i].look == look && watch->looks[i].context == context) {
            watch->looks[i] = watch->looks[--watch->look_count];
        }
    }
    (void)pthread_mutex_unlock(&watch->lock);
}
