/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file watchdog.c
 * A thread that ends the job when this rank has waited too long for others to agree on something.
 *
 * Collectives on a device have limits of their own; this one guards the world's exchanges, in which
 * a rank cannot return before the others come. It sleeps unless armed. The message names the rank
 * and what it waits in: ranks that print none are those that did not arrive.
 */
#include "comm_priv.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

struct tsri_watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    double limit_s;
    double deadline_s;
    const char *what; /* NULL: not armed */
    bool stop;
};

static void expire(const tsri_watchdog *dog)
{
    (void)TSR_RAISE(TSR_ERR_COMM,
                    "waited %g s for the other ranks in %s; ranks without such a message did not "
                    "arrive; the job is ended",
                    dog->limit_s, dog->what);
    tsr_error_print(stderr);
    tsri_boot_abort(1);
}

static struct timespec to_timespec(double s)
{
    double whole = floor(s);

    return (struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((s - whole) * 1e9)};
}

static void *watch(void *arg)
{
    tsri_watchdog *dog = arg;

    (void)pthread_mutex_lock(&dog->lock);
    while (!dog->stop) {
        struct timespec until = to_timespec(dog->deadline_s);

        if (dog->what == NULL) {
            (void)pthread_cond_wait(&dog->change, &dog->lock);
        } else if (tsri_now_s() >= dog->deadline_s) {
            expire(dog);
        } else {
            (void)pthread_cond_timedwait(&dog->change, &dog->lock, &until);
        }
    }
    (void)pthread_mutex_unlock(&dog->lock);
    return NULL;
}

tsr_status tsri_watchdog_start(double limit_s, tsri_watchdog **out)
{
    tsri_watchdog *dog = NULL;
    pthread_condattr_t attributes;

    TSR_TRY(tsri_alloc(1, sizeof(*dog), &dog));
    dog->limit_s = limit_s;
    (void)pthread_mutex_init(&dog->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&dog->change, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    if (pthread_create(&dog->thread, NULL, watch, dog) != 0) {
        (void)pthread_cond_destroy(&dog->change);
        (void)pthread_mutex_destroy(&dog->lock);
        tsri_free(&dog);
        return TSR_RAISE(TSR_ERR_NOMEM, "cannot start the watchdog's thread: limit of threads");
    }
    *out = dog;
    return TSR_OK;
}

static void set(tsri_watchdog *dog, const char *what, bool stop)
{
    (void)pthread_mutex_lock(&dog->lock);
    dog->what = what;
    dog->deadline_s = tsri_now_s() + dog->limit_s;
    dog->stop = stop;
    (void)pthread_cond_signal(&dog->change);
    (void)pthread_mutex_unlock(&dog->lock);
}

void tsri_watchdog_stop(tsri_watchdog **dog)
{
    if (*dog != NULL) {
        set(*dog, NULL, true);
        (void)pthread_join((*dog)->thread, NULL);
        (void)pthread_cond_destroy(&(*dog)->change);
        (void)pthread_mutex_destroy(&(*dog)->lock);
        tsri_free(dog);
    }
}

void tsri_watchdog_arm(tsri_watchdog *dog, const char *what)
{
    if (dog != NULL) {
        set(dog, what, false);
    }
}

void tsri_watchdog_disarm(tsri_watchdog *dog)
{
    if (dog != NULL) {
        set(dog, NULL, false);
    }
}
