/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file backend_rig.h
 * A device of some backend with all its streams and a group of all ranks on each, recorded and
 * checked for races: what the conformance suite asks its questions of.
 */
#pragma once

#include "backend/dispatch.h"

enum {
    RIG_MAX_RANKS = 8
};

typedef struct backend_rig {
    const tsr_backend *backend;
    bool executes;
    tsr_device *device;
    tsr_stream *streams[TSRI_STREAM_COUNT];
    tsr_group *all[TSRI_STREAM_COUNT]; /* the world, on each stream */
    tsr_group *self;                   /* this rank, on compute */
    int rank, size;
} backend_rig;

/** False: it failed, and the case has. Collective. */
bool backend_rig_open(const char *name, backend_rig *r);
/** With a limit of one collective's wait other than a minute. */
bool backend_rig_open_within(const char *name, double timeout_s, backend_rig *r);
/** Checks that nothing is left, and that the race check has found so many. */
void backend_rig_close(backend_rig *r, int races);

/** Zeros. */
tsr_status backend_rig_floats(backend_rig *r, int64_t count, tsr_buffer **out);
/** A kernel on stream: y[to ..] = x[from ..] * factor; n elements. */
tsr_status backend_rig_scale(tsr_stream *stream, tsr_buffer *x, int64_t from, tsr_buffer *y,
                             int64_t to, int64_t n, float factor);

/** check(name) of every backend: those that are built in, and the tests' own in several orders.
 * With TSR_CONFORMANCE=NAME in the environment, of that one alone. */
void backend_rig_over_all(void (*check)(const char *name));
