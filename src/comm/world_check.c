/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world_check.c
 * What all ranks agree on: one verdict from many, and whether all passed the same bytes.
 *
 * Only numbers are exchanged while all is well. Text follows in further rounds that every rank
 * enters, since every rank has the same verdict. Nothing is allocated here: a rank without memory
 * must still be able to say so.
 */
#include "comm_priv.h"

#include <string.h>

enum {
    WINDOW = 512,
    OVERLAP = 64, /* of successive windows, so that a difference has its surroundings */
    AROUND = 24,  /* characters shown before and after a difference */
    EXCERPT = 2 * AROUND + 8
};

static bool is_alone(const tsr_world *world)
{
    return world->simulated || world->size == 1;
}

/* ---- agree ---- */

tsr_status tsri_world_agree(tsr_world *world, const char *what, tsr_status mine)
{
    if (is_alone(world)) {
        return mine;
    }
    TSR_TRY(tsri_team_agree(world->team, what, mine));
    return TSR_OK;
}

tsr_status tsr_world_agree(tsr_world *world, tsr_status mine)
{
    TSRI_WANT(world);

    return tsri_world_agree(world, "tsr_world_agree", mine);
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
static tsr_status share_window(const tsr_world *world, int root, const unsigned char *data,
                               size_t bytes, size_t base, piece *out)
{
    memset(out, 0, sizeof(*out));
    if (world->rank == root && base < bytes) {
        out->length = bytes - base < WINDOW ? bytes - base : WINDOW;
        memcpy(out->data, data + base, out->length);
    }
    TSR_TRY(tsri_team_broadcast(world->team, "what differs", TSR_OK, out, sizeof(*out), root));
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

        TSR_TRY(share_window(world, 0, data, bytes, base, &a));
        TSR_TRY(share_window(world, rank, data, bytes, base, &b));
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

tsr_status tsr_world_check_same(tsr_world *world, const char *what, const void *data, size_t bytes)
{
    TSRI_WANT(world, what);
    if (data == NULL && bytes > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: data is NULL, wants %zu bytes", __func__, bytes);
    }

    int other = 0;

    if (is_alone(world)) {
        return TSR_OK;
    }
    TSR_TRY(tsri_team_compare(world->team, what, tsri_hash(data, bytes, 0), bytes, &other));
    if (other > 0) {
        TSR_TRY(explain(world, what, other, data, bytes));
    }
    return TSR_OK;
}
