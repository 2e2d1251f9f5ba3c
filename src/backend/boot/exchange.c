/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file exchange.c
 * The one way in which ranks of a team meet outside of a device: letters to rank 0, a verdict from
 * it.
 *
 *   rank r   letter: what this is, my failure if I have one      ->  rank 0
 *   rank 0   waits for all letters, a limited time; compares     ->  verdict to all that came
 *   all      only if the verdict is good: the bytes, by MPI's own calls
 *
 * A rank that failed comes to any exchange and makes it everybody's failure. Who does not come is
 * known by name. A rank whose time is over asks rank 0, which then concludes at once; where rank 0
 * itself does not answer, that is the answer. After an exchange that was not complete there are no
 * others: the ranks no longer count alike.
 *
 * Nothing is allocated here: a rank without memory must still be able to say so.
 */
#include "boot_priv.h"

#include "base/base.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    TAG_LETTER = 1,
    TAG_VERDICT,
    TAG_LATE
};

static const double answer_s = 1.0; /* how long rank 0 may take to answer one whose time is over */
static const double busy_s = 2e-3;  /* of waiting, before it sleeps in between */
static const double nap_s = 2e-4;
static const double backstop_s = 3.0; /* a call of MPI that should return at once, but does not */

typedef enum exchange_kind {
    TO_AGREE = 1,
    TO_COMPARE,
    TO_GATHER,
    TO_BROADCAST,
    TO_MEET,
    TO_LEAVE
} exchange_kind;

/* Can others follow? After one that a rank left instead, MPI can still be ended together. */
enum {
    ENDS_NOT,
    ENDS_LEFT,
    ENDS_LOST
};

typedef struct exchange {
    tsri_team *team;
    tsri_boot_letter mine;
    tsri_boot_verdict *verdict; /* the team's: who does not take it may do so later */
    double limit_s, begin_s;
} exchange;

/* ---- waiting ---- */

static void rest(double since_s)
{
    const struct timespec nap = {.tv_nsec = (long)(nap_s * 1e9)};

    if (tsri_now_s() - since_s < busy_s) {
        (void)sched_yield();
    } else {
        (void)nanosleep(&nap, NULL);
    }
}

/* True when all have ended, false when limit_s has passed. */
static bool wait_all(MPI_Request *requests, int count, double limit_s)
{
    const double begin = tsri_now_s();
    int done = 0;

    for (;;) {
        if (MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS || done) {
            return done != 0;
        }
        if (tsri_now_s() - begin > limit_s) {
            return false;
        }
        rest(begin);
    }
}

/* What will not come any more. Memory that such a request uses stays: it is the job's. */
static void give_up(MPI_Request *requests, int count)
{
    int done = 0;

    for (int i = 0; i < count; i++) {
        if (requests[i] != MPI_REQUEST_NULL) {
            (void)MPI_Cancel(&requests[i]);
        }
    }
    (void)MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
}

/* ---- rank 0: the verdict ---- */

/* The ranks that are not in came, by name, into text, which ends with what they did. */
static void name_missing(const exchange *x, const bool *came, const char *did, char *text,
                         size_t size)
{
    const tsri_team *team = x->team;
    char around[160];
    size_t used = 0;

    for (int r = 1; r < team->size && used + 200 < size; r++) {
        if (!came[r]) {
            used += (size_t)snprintf(text + used, size - used, "%srank %d on host %s",
                                     used > 0 ? ", " : "", tsri_team_id(team, r),
                                     tsri_team_host(team, r));
        }
    }
    used += (size_t)snprintf(text + used, size - used, " did not %s \"%s\" within %g s", did,
                             x->mine.what, x->limit_s);
    if (tsri_boot_look_around(around, sizeof(around))[0] != '\0' && used < size) {
        (void)snprintf(text + used, size - used, ": %s", around);
    }
}

/* The first rank with a failure of its own; ranks that only heard of one do not explain it. */
static int find_first(const exchange *x, const bool *came)
{
    const tsri_boot_letter *letters = x->team->letters;
    int heard = -1;

    for (int r = 0; r < x->team->size; r++) {
        if (!came[r] || letters[r].status == TSR_OK) {
            continue;
        }
        if (letters[r].status != TSR_ERR_REMOTE) {
            return r;
        }
        heard = heard < 0 ? r : heard;
    }
    return heard;
}

static bool are_alike(const tsri_boot_letter *a, const tsri_boot_letter *b)
{
    return a->kind == b->kind && a->root == b->root && strcmp(a->what, b->what) == 0 &&
           (a->kind == TO_COMPARE || a->bytes == b->bytes);
}

static bool all_leave(const exchange *x)
{
    for (int r = 0; r < x->team->size; r++) {
        if (x->team->letters[r].kind != TO_LEAVE) {
            return false;
        }
    }
    return true;
}

static void judge_failure(exchange *x, int first)
{
    const tsri_boot_letter *letter = &x->team->letters[first];
    tsri_boot_verdict *v = x->verdict;

    v->status = TSR_ERR_REMOTE;
    v->first = first;
    (void)snprintf(v->text, sizeof(v->text), "rank %d on %s failed: %s: %s",
                   tsri_team_id(x->team, first), tsri_team_host(x->team, first),
                   tsr_status_name((tsr_status)letter->status), letter->text);
}

static void judge(exchange *x, const bool *came, bool complete)
{
    const tsri_boot_letter *letters = x->team->letters;
    tsri_boot_verdict *v = x->verdict;
    const int first = find_first(x, came);
    int other = 1;

    *v = (tsri_boot_verdict){
        .first = -1, .number = x->mine.number, .ends = complete ? ENDS_NOT : ENDS_LOST};
    if (complete && all_leave(x)) {
        return;
    }
    for (int r = 0; r < x->team->size; r++) {
        if (letters[r].kind == TO_LEAVE && complete) {
            v->ends = ENDS_LEFT;
        }
    }
    if (first >= 0) {
        judge_failure(x, first);
        return;
    }
    if (!complete) {
        v->status = TSR_ERR_COMM;
        v->first = 0;
        name_missing(x, came, "come to", v->text, sizeof(v->text));
        return;
    }
    while (other < x->team->size && are_alike(&letters[0], &letters[other])) {
        other++;
    }
    if (other < x->team->size) {
        v->status = TSR_ERR_DISAGREE;
        v->first = 0;
        (void)snprintf(v->text, sizeof(v->text),
                       "rank %d on %s came to \"%s\" while rank %d on %s came to \"%s\"%s",
                       tsri_team_id(x->team, other), tsri_team_host(x->team, other),
                       letters[other].what, tsri_team_id(x->team, 0), tsri_team_host(x->team, 0),
                       letters[0].what,
                       letters[other].bytes != letters[0].bytes ? ", with another size" : "");
        return;
    }
    for (int r = x->team->size - 1; r > 0; r--) {
        const bool same =
            letters[r].hash == letters[0].hash && letters[r].bytes == letters[0].bytes;

        v->other = same ? v->other : r;
    }
}

/* Has a rank asked, whose own time is over? */
static bool is_asked(exchange *x)
{
    MPI_Status status;
    tsri_boot_note note;
    int there = 0;

    while (MPI_Iprobe(MPI_ANY_SOURCE, TAG_LATE, x->team->comm, &there, &status) == MPI_SUCCESS &&
           there) {
        if (MPI_Recv(&note, sizeof(note), MPI_BYTE, status.MPI_SOURCE, TAG_LATE, x->team->comm,
                     MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            note.number == x->mine.number) {
            x->limit_s = note.limit_s;
            return true;
        }
    }
    return false;
}

/* Every letter, or those that came in time. */
static bool collect(exchange *x, MPI_Request *requests)
{
    const int others = x->team->size - 1;
    int done = 0;

    for (;;) {
        if (MPI_Testall(others, requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
            return false;
        }
        if (done) {
            return true;
        }
        const double waited = tsri_now_s() - x->begin_s;
        if (waited > x->limit_s || (waited > busy_s && is_asked(x))) {
            return false;
        }
        rest(x->begin_s);
    }
}

/* The verdict's messages end. Ranks wait for it already, so who does not take it has stopped since.
 */
static void hand_out(const exchange *x, MPI_Request *requests)
{
    tsri_team *team = x->team;
    const double left_s = x->limit_s - (tsri_now_s() - x->begin_s);

    if (wait_all(requests, team->size - 1, left_s > answer_s ? left_s : answer_s)) {
        return;
    }
    for (int r = 1; r < team->size; r++) {
        int there = 1;

        (void)MPI_Test(&requests[r - 1], &there, MPI_STATUS_IGNORE);
        team->came[r] = there != 0;
    }
    team->over = true;
    team->lost = true;
    tsri_boot_self()->lost = true;
    team->teller = tsri_team_id(team, 0);
    name_missing(x, team->came, "take the answer to", team->gone, sizeof(team->gone));
}

static tsr_status preside(exchange *x)
{
    tsri_team *team = x->team;
    const int size = team->size;
    MPI_Request *requests = team->requests;
    bool *came = team->came;
    bool complete = false;

    for (int r = 0; r < size; r++) {
        memset(&team->letters[r], 0, sizeof(team->letters[r]));
    }
    team->letters[0] = x->mine;
    for (int r = 1; r < size; r++) {
        TSR_TRY(tsri_boot_check(MPI_Irecv(&team->letters[r], sizeof(tsri_boot_letter), MPI_BYTE, r,
                                          TAG_LETTER, team->comm, &requests[r - 1]),
                                "MPI_Irecv"));
    }
    complete = collect(x, requests);
    came[0] = true;
    for (int r = 1; r < size; r++) {
        int there = complete ? 1 : 0;

        if (!complete) {
            (void)MPI_Test(&requests[r - 1], &there, MPI_STATUS_IGNORE);
        }
        came[r] = there != 0;
    }
    judge(x, came, complete);
    for (int r = 1; r < size; r++) {
        if (came[r]) {
            TSR_TRY(tsri_boot_check(MPI_Isend(x->verdict, sizeof(*x->verdict), MPI_BYTE, r,
                                              TAG_VERDICT, team->comm, &requests[size - 1 + r]),
                                    "MPI_Isend"));
        }
    }
    hand_out(x, requests + size);
    give_up(requests, size - 1);
    return TSR_OK;
}

/* ---- the others ---- */

/* So that, as a rule, one of several says it. */
static double turn_of(int rank)
{
    return rank < 15 ? 0.1 * rank : 1.5;
}

static void miss_rank_0(exchange *x)
{
    char around[160];

    *x->verdict =
        (tsri_boot_verdict){.status = TSR_ERR_COMM, .first = x->team->rank, .ends = ENDS_LOST};
    (void)tsri_boot_look_around(around, sizeof(around));
    (void)snprintf(x->verdict->text, sizeof(x->verdict->text),
                   "rank %d on host %s did not come to \"%s\" within %g s%s%s",
                   tsri_team_id(x->team, 0), tsri_team_host(x->team, 0), x->mine.what, x->limit_s,
                   around[0] != '\0' ? ": " : "", around);
}

static tsr_status attend(exchange *x)
{
    tsri_team *team = x->team;
    MPI_Request *requests = team->requests;

    TSR_TRY(tsri_boot_check(MPI_Irecv(x->verdict, sizeof(*x->verdict), MPI_BYTE, 0, TAG_VERDICT,
                                      team->comm, &requests[0]),
                            "MPI_Irecv"));
    team->letters[0] = x->mine;
    TSR_TRY(tsri_boot_check(MPI_Isend(&team->letters[0], sizeof(x->mine), MPI_BYTE, 0, TAG_LETTER,
                                      team->comm, &requests[1]),
                            "MPI_Isend"));
    if (wait_all(requests, 2, x->limit_s)) {
        return TSR_OK;
    }
    team->note = (tsri_boot_note){.number = x->mine.number, .limit_s = x->limit_s};
    TSR_TRY(tsri_boot_check(
        MPI_Isend(&team->note, sizeof(team->note), MPI_BYTE, 0, TAG_LATE, team->comm, &requests[2]),
        "MPI_Isend"));
    if (!wait_all(requests, 2, answer_s + turn_of(team->rank))) {
        give_up(requests, 3);
        miss_rank_0(x);
    }
    return TSR_OK;
}

/* ---- an exchange ---- */

static tsr_status return_over(const tsri_team *team, tsr_status mine)
{
    if (mine == TSR_OK) {
        mine = TSR_RAISE(TSR_ERR_COMM, "%s", team->gone);
    }
    tsri_error_share(team->teller);
    return mine;
}

/* This rank's result of a verdict. */
static tsr_status conclude(exchange *x, tsr_status mine)
{
    tsri_team *team = x->team;
    const tsri_boot_verdict *v = x->verdict;

    if (v->ends != ENDS_NOT) {
        team->over = true;
        team->teller = tsri_team_id(team, v->first);
        team->lost = v->ends == ENDS_LOST;
        tsri_boot_self()->lost = tsri_boot_self()->lost || team->lost;
        (void)memcpy(team->gone, v->text, sizeof(team->gone));
    }
    if (v->status == TSR_OK) {
        return TSR_OK;
    }
    if (mine == TSR_OK) {
        mine = TSR_RAISE((tsr_status)v->status, "%s", v->text);
    }
    tsri_error_share(tsri_team_id(team, v->first));
    return mine;
}

static tsr_status need_ready(const tsri_team *team)
{
    if (team == NULL || tsri_boot_self()->users == 0) {
        return TSR_RAISE(TSR_ERR_STATE, "tsri_boot_init has not run in this process");
    }
    return TSR_OK;
}

/* Meet under letter, which says what and how; TSR_OK: everybody is here with the same, and fine. */
static tsr_status meet(exchange *x, tsri_team *team, exchange_kind kind, const char *what,
                       tsr_status mine, double limit_s)
{
    const tsri_boot *boot = tsri_boot_self();
    tsr_status status = TSR_OK;

    TSR_TRY(need_ready(team));
    x->team = team;
    x->verdict = &team->verdict;
    if (team->size == 1) {
        return mine;
    }
    if (mine != TSR_OK && kind != TO_LEAVE && tsri_error_teller(mine) >= 0) {
        return mine;
    }
    if (team->over) {
        return return_over(team, mine);
    }
    x->limit_s = limit_s;
    x->begin_s = tsri_now_s();
    x->mine.kind = (int32_t)kind;
    x->mine.status = (int32_t)mine;
    x->mine.number = ++team->number;
    (void)snprintf(x->mine.what, sizeof(x->mine.what), "%s", what);
    if (mine != TSR_OK) {
        (void)snprintf(x->mine.text, sizeof(x->mine.text), "%s", tsr_error_message());
    }
    tsri_boot_watch_arm(boot->watch, what, limit_s - boot->limit_s + answer_s + backstop_s);
    status = team->rank == 0 ? preside(x) : attend(x);
    tsri_boot_watch_disarm(boot->watch);
    if (status != TSR_OK) {
        return mine != TSR_OK ? mine : tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return conclude(x, mine);
}

/* The bytes follow: a call of MPI that is under way. */
static tsr_status move(const exchange *x, int code, const char *call, MPI_Request *request)
{
    char around[160];

    TSR_TRY(tsri_boot_check(code, call));
    if (wait_all(request, 1, x->limit_s)) {
        return TSR_OK;
    }
    x->team->over = true;
    x->team->lost = true;
    tsri_boot_self()->lost = true;
    x->team->teller = tsri_team_id(x->team, x->team->rank);
    (void)tsri_boot_look_around(around, sizeof(around));
    (void)snprintf(x->team->gone, sizeof(x->team->gone), "\"%s\" did not end within %g s%s%s",
                   x->mine.what, x->limit_s, around[0] != '\0' ? ": " : "", around);
    return return_over(x->team, TSR_OK);
}

tsr_status tsri_team_all_gather(tsri_team *team, const char *what, tsr_status mine, const void *in,
                                size_t bytes, void *out)
{
    exchange x = {.mine.bytes = bytes};
    MPI_Request request = MPI_REQUEST_NULL;
    int count = 0;

    if (mine == TSR_OK) {
        mine = tsri_to_int((int64_t)bytes, "bytes of an exchange", &count);
    }
    TSR_TRY(meet(&x, team, TO_GATHER, what, mine, tsri_boot_self()->limit_s));
    if (team->size == 1) {
        memmove(out, in, bytes);
        return TSR_OK;
    }
    const int code =
        MPI_Iallgather(in, count, MPI_BYTE, out, count, MPI_BYTE, team->comm, &request);

    /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): it is waited for in move */
    TSR_TRY(move(&x, code, "MPI_Iallgather", &request));
    return TSR_OK;
}

tsr_status tsri_team_broadcast(tsri_team *team, const char *what, tsr_status mine, void *data,
                               size_t bytes, int root)
{
    exchange x = {.mine.bytes = bytes, .mine.root = root};
    MPI_Request request = MPI_REQUEST_NULL;
    int count = 0;

    if (mine == TSR_OK) {
        mine = tsri_to_int((int64_t)bytes, "bytes of a broadcast", &count);
    }
    TSR_TRY(meet(&x, team, TO_BROADCAST, what, mine, tsri_boot_self()->limit_s));
    if (team->size > 1) {
        const int code = MPI_Ibcast(data, count, MPI_BYTE, root, team->comm, &request);

        /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): it is waited for in move */
        TSR_TRY(move(&x, code, "MPI_Ibcast", &request));
    }
    return TSR_OK;
}

tsr_status tsri_team_barrier(tsri_team *team, const char *what)
{
    exchange x = {0};

    TSR_TRY(meet(&x, team, TO_MEET, what, TSR_OK, tsri_boot_self()->limit_s));
    return TSR_OK;
}

tsr_status tsri_team_agree_within(tsri_team *team, const char *what, tsr_status mine,
                                  double limit_s)
{
    exchange x = {0};

    TSR_TRY(meet(&x, team, TO_AGREE, what, mine, limit_s));
    return TSR_OK;
}

tsr_status tsri_team_agree(tsri_team *team, const char *what, tsr_status mine)
{
    TSR_TRY(tsri_team_agree_within(team, what, mine, tsri_boot_self()->limit_s));
    return TSR_OK;
}

tsr_status tsri_team_compare(tsri_team *team, const char *what, uint64_t hash, size_t bytes,
                             int *other_out)
{
    exchange x = {.mine.hash = hash, .mine.bytes = bytes};

    TSR_TRY(meet(&x, team, TO_COMPARE, what, TSR_OK, tsri_boot_self()->limit_s));
    *other_out = x.verdict->other;
    return TSR_OK;
}

void tsri_boot_take_leave(tsr_status mine)
{
    tsri_team *team = tsri_boot_self()->job;
    const bool was_over = team->over;
    exchange x = {0};

    tsri_error_hold();
    if (meet(&x, team, TO_LEAVE, "the end of the job", mine, tsri_boot_self()->limit_s) != TSR_OK) {
        if (team->lost && !was_over) {
            tsr_error_print(stderr);
            tsri_boot_abort(1);
        }
        tsr_error_clear();
    }
    tsri_error_release();
}
