/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world_check.c
 * What all ranks agree on: one verdict from many, and whether all passed the same bytes.
 *
 * Only numbers are exchanged while all is well. Text follows in a second round that every rank
 * enters, since every rank has seen the same numbers. Nothing is allocated here: a rank without
 * memory must still be able to say so.
 */
#include "comm_priv.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum {
    MESSAGE_BYTES = 448,
    WINDOW = 512,
    OVERLAP = 64, /* of successive windows, so that a difference has its surroundings */
    AROUND = 24,  /* characters shown before and after a difference */
    EXCERPT = 2 * AROUND + 8
};

static bool is_alone(const tsr_world *world)
{
    return world->simulated || world->size == 1;
}

/* ---- the first round ---- */

typedef enum purpose {
    TO_AGREE = 1,
    TO_COMPARE
} purpose;

typedef struct exchange {
    tsr_world *world;
    tsri_claim mine;
    int first; /* failing rank that explains the failure; -1: none */
    char message[MESSAGE_BYTES];
} exchange;

/* The first rank with a failure of its own; ranks that only heard of one do not explain it. */
static int find_first(const tsr_world *world)
{
    int heard = -1;

    for (int r = 0; r < world->size; r++) {
        if (world->claims[r].status == TSR_ERR_REMOTE) {
            heard = heard < 0 ? r : heard;
        } else if (world->claims[r].status != TSR_OK) {
            return r;
        }
    }
    return heard;
}

static bool has_one_purpose(const tsr_world *world)
{
    for (int r = 1; r < world->size; r++) {
        if (world->claims[r].purpose != world->claims[0].purpose) {
            return false;
        }
    }
    return true;
}

/* A rank that failed settles its failure while others may compare: both begin in this way. */
static tsr_status run_exchange(exchange *x)
{
    TSR_TRY(tsri_boot_all_gather(&x->mine, sizeof(x->mine), x->world->claims));
    x->first = find_first(x->world);
    if (x->first >= 0) {
        TSR_TRY(tsri_boot_broadcast(x->message, sizeof(x->message), x->first));
    } else if (!has_one_purpose(x->world)) {
        return TSR_RAISE(TSR_ERR_DISAGREE,
                         "some ranks agree on a verdict while others compare values");
    }
    return TSR_OK;
}

/* What a rank that did not fail itself returns. */
static tsr_status tell_remote(const exchange *x)
{
    const tsr_world *world = x->world;

    if (x->first < 0) {
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_REMOTE, "rank %d on %s failed: %s: %s", x->first,
                     tsr_world_host(world, x->first),
                     tsr_status_name((tsr_status)world->claims[x->first].status), x->message);
}

/* ---- agree ---- */

static exchange begin(tsr_world *world, tsr_status mine)
{
    exchange x = {
        .world = world,
        .mine = {.purpose = TO_AGREE, .status = (int)mine},
        .first = -1,
    };

    if (mine != TSR_OK) {
        (void)snprintf(x.message, sizeof(x.message), "%s", tsr_error_message());
    }
    return x;
}

static tsr_status conclude(const exchange *x, tsr_status mine)
{
    x->world->first_failed = x->first;
    return mine != TSR_OK ? mine : tell_remote(x);
}

static tsr_status agree_alone(tsr_world *world, tsr_status mine)
{
    world->first_failed = mine == TSR_OK ? -1 : world->rank;
    return mine;
}

tsr_status tsr_world_agree(tsr_world *world, tsr_status mine)
{
    TSRI_WANT(world);

    exchange x = begin(world, mine);
    tsr_status status = TSR_OK;

    if (is_alone(world)) {
        return agree_alone(world, mine);
    }
    tsri_watchdog_arm(world->watchdog, "tsr_world_agree");
    status = run_exchange(&x);
    tsri_watchdog_disarm(world->watchdog);
    if (status != TSR_OK) {
        return mine != TSR_OK ? mine : tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return conclude(&x, mine);
}

int tsri_world_first_failed(const tsr_world *world)
{
    return world->first_failed;
}

/* An exchange on a thread of its own: if the others never come, it is left behind with it. */
typedef struct late {
    exchange x;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool done;
    tsr_status status;
} late;

static void *run_late(void *arg)
{
    late *job = arg;
    tsr_status status = run_exchange(&job->x);

    (void)pthread_mutex_lock(&job->lock);
    job->status = status;
    job->done = true;
    (void)pthread_cond_signal(&job->change);
    (void)pthread_mutex_unlock(&job->lock);
    return NULL;
}

static bool wait_late(late *job, double limit_s)
{
    double deadline = tsri_now_s() + limit_s;
    struct timespec until = {.tv_sec = (time_t)deadline,
                             .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    bool done = false;

    (void)pthread_mutex_lock(&job->lock);
    while (!job->done && tsri_now_s() < deadline) {
        (void)pthread_cond_timedwait(&job->change, &job->lock, &until);
    }
    done = job->done;
    (void)pthread_mutex_unlock(&job->lock);
    return done;
}

bool tsri_world_agree_within(tsr_world *world, tsr_status mine, double limit_s, tsr_status *out)
{
    pthread_condattr_t attributes;
    pthread_t thread;
    late *job = NULL;
    bool done = false;

    *out = mine;
    if (is_alone(world)) {
        (void)agree_alone(world, mine);
        return true;
    }
    if (tsri_alloc(1, sizeof(*job), &job) != TSR_OK) {
        return false;
    }
    job->x = begin(world, mine);
    (void)pthread_mutex_init(&job->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&job->change, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    if (pthread_create(&thread, NULL, run_late, job) != 0) {
        tsri_free(&job);
        return false;
    }
    if (!wait_late(job, limit_s)) {
        (void)pthread_detach(thread);
        return false;
    }
    (void)pthread_join(thread, NULL);
    done = job->status == TSR_OK;
    if (done) {
        *out = conclude(&job->x, mine);
    }
    (void)pthread_cond_destroy(&job->change);
    (void)pthread_mutex_destroy(&job->lock);
    tsri_free(&job);
    return done;
}

/* ---- check_same ---- */

static bool is_text(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] == 0x7f || (data[i] < 0x20 && data[i] != '\n' && data[i] != '\t')) {
            return false;
        }
    }
    return true;
}

/* What stands around offset at of window[length], line ends as spaces: "...around..." */
static void excerpt(const unsigned char *window, size_t length, size_t at, char *out)
{
    size_t begin_at = at > AROUND ? at - AROUND : 0;
    size_t end_at = at + AROUND < length ? at + AROUND : length;
    char *to = out;

    if (begin_at > 0) {
        to = stpcpy(to, "...");
    }
    memcpy(to, window + begin_at, end_at - begin_at);
    for (const char *end = to + (end_at - begin_at); to < end; to++) {
        if (*to == '\n' || *to == '\t') {
            *to = ' ';
        }
    }
    *to = '\0';
    if (end_at < length) {
        (void)stpcpy(to, "...");
    }
}

typedef struct piece {
    unsigned char data[WINDOW];
    size_t length;
} piece;

static tsr_status raise_difference(const char *what, int rank, const piece *a, const piece *b,
                                   size_t base, size_t at)
{
    char first[EXCERPT];
    char other[EXCERPT];
    int x = at < a->length ? a->data[at] : -1;
    int y = at < b->length ? b->data[at] : -1;

    if (is_text(a->data, a->length) && is_text(b->data, b->length)) {
        excerpt(a->data, a->length, at, first);
        excerpt(b->data, b->length, at, other);
        return TSR_RAISE(TSR_ERR_DISAGREE,
                         "%s differs between ranks 0 and %d at character %zu: \"%s\" and \"%s\"",
                         what, rank, base + at, first, other);
    }
    if (x < 0 || y < 0) {
        return TSR_RAISE(TSR_ERR_DISAGREE,
                         "%s differs between ranks 0 and %d: rank %d's ends at "
                         "byte %zu, the other goes on",
                         what, rank, x < 0 ? 0 : rank, base + at);
    }
    return TSR_RAISE(TSR_ERR_DISAGREE,
                     "%s differs between ranks 0 and %d at byte %zu: 0x%02x and 0x%02x", what, rank,
                     base + at, (unsigned)x, (unsigned)y);
}

/* bytes [base, base + WINDOW) of root's data, or what there is of them, to every rank */
static tsr_status share(const tsr_world *world, int root, const unsigned char *data, size_t bytes,
                        size_t base, piece *out)
{
    memset(out, 0, sizeof(*out));
    if (world->rank == root && base < bytes) {
        out->length = bytes - base < WINDOW ? bytes - base : WINDOW;
        memcpy(out->data, data + base, out->length);
    }
    TSR_TRY(tsri_boot_broadcast(out, sizeof(*out), root));
    return TSR_OK;
}

/* Look for the first difference window by window; every rank sees both sides and so stops alike. */
static tsr_status explain(tsr_world *world, const char *what, int rank, const unsigned char *data,
                          size_t bytes)
{
    piece a;
    piece b;

    for (size_t base = 0;; base += WINDOW - OVERLAP) {
        size_t at = 0;

        TSR_TRY(share(world, 0, data, bytes, base, &a));
        TSR_TRY(share(world, rank, data, bytes, base, &b));
        while (at < a.length && at < b.length && a.data[at] == b.data[at]) {
            at++;
        }
        if (at < a.length || at < b.length) {
            return raise_difference(what, rank, &a, &b, base, at);
        }
        if (a.length < WINDOW) {
            return TSR_RAISE(TSR_ERR_DISAGREE, "%s differs between ranks 0 and %d", what, rank);
        }
    }
}

static tsr_status compare(tsr_world *world, const char *what, const void *data, size_t bytes)
{
    exchange x = {
        .world = world,
        .mine = {.purpose = TO_COMPARE, .bytes = bytes, .hash = tsri_hash(data, bytes, 0)},
        .first = -1,
    };
    const tsri_claim *claims = world->claims;
    int other = 1;

    TSR_TRY(run_exchange(&x));
    TSR_TRY(tell_remote(&x));
    while (other < world->size && claims[other].hash == claims[0].hash &&
           claims[other].bytes == claims[0].bytes) {
        other++;
    }
    if (other < world->size) {
        TSR_TRY(explain(world, what, other, data, bytes));
    }
    return TSR_OK;
}

tsr_status tsr_world_check_same(tsr_world *world, const char *what, const void *data, size_t bytes)
{
    TSRI_WANT(world, what);
    if (data == NULL && bytes > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: data is NULL, wants %zu bytes", __func__, bytes);
    }

    tsr_status status = TSR_OK;

    if (is_alone(world)) {
        return TSR_OK;
    }
    tsri_watchdog_arm(world->watchdog, what);
    status = compare(world, what, data, bytes);
    tsri_watchdog_disarm(world->watchdog);
    TSR_TRY(status);
    return TSR_OK;
}
