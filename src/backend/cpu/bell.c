/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bell.c
 * Sleeping until something happens: one futex word per rank, rung from any thread or process.
 *
 * A waiter reads the bell, looks at what it waits for, and pauses with the value read. A ringer
 * publishes first and rings after, so either the waiter saw the news or its value is out of date
 * and the kernel refuses the sleep. The count of sleepers spares a system call when nobody sleeps.
 */
#include "backend/cpu/cpu_priv.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    (void)sched_yield();
#endif
}

uint32_t tsri_cpu_bell(const tsri_cpu_device *device)
{
    return atomic_load_explicit(&device->control->bell, memory_order_acquire);
}

void tsri_cpu_ring(tsri_cpu_control *control)
{
    (void)atomic_fetch_add(&control->bell, 1);
    if (atomic_load(&control->sleepers) > 0) {
        (void)syscall(SYS_futex, &control->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

bool tsri_cpu_linger(const tsri_cpu_device *device, uint32_t seen)
{
    double limit = tsri_now_s() + TSRI_CPU_LINGER_S;

    while (tsri_cpu_bell(device) == seen) {
        if (tsri_now_s() > limit) {
            return false;
        }
        (void)sched_yield();
    }
    return true;
}

void tsri_cpu_pause(const tsri_cpu_device *device, uint32_t seen, double nap_s)
{
    tsri_cpu_control *control = device->control;
    double limit = device->spin_s > 0 ? tsri_now_s() + device->spin_s : 0;

    while (limit > 0 && tsri_now_s() < limit) {
        if (tsri_cpu_bell(device) != seen) {
            return;
        }
        relax();
    }
    struct timespec nap = {.tv_sec = (time_t)nap_s,
                           .tv_nsec = (long)((nap_s - (double)(time_t)nap_s) * 1e9)};
    (void)atomic_fetch_add(&control->sleepers, 1);
    (void)syscall(SYS_futex, &control->bell, FUTEX_WAIT, seen, &nap, NULL, 0);
    (void)atomic_fetch_sub(&control->sleepers, 1);
}

void tsri_cpu_poll_pause(const tsri_cpu_device *device, uint32_t seen, int looks, int yields)
{
    double nap = TSRI_CPU_POLL_FIRST_S * (double)(1 + looks - yields);

    if (looks < yields) {
        (void)sched_yield();
        return;
    }
    tsri_cpu_pause(device, seen, nap < TSRI_CPU_POLL_LAST_S ? nap : TSRI_CPU_POLL_LAST_S);
}
