/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hostile_rig.h
 * A parity case on the hostile backend, compared with one rank and, bit by bit, with cpu.
 */
#pragma once

#include "support/hostile.h"
#include "support/parity.h"

enum {
    HOSTILE_TEXT = 160,
    HOSTILE_RACE = 400
};

typedef struct hostile_rig {
    parity_case layout;
    tsri_job_options options;
    tsr_world *cpu, *hostile;
    parity_record record;
    uint64_t bits; /* of the run on cpu */
} hostile_rig;

/** The cases for as many ranks as the test has, ended by one without a name. */
const parity_case *hostile_cases(void);

tsr_status hostile_rig_open(const parity_case *layout, int micro_batches, hostile_rig *rig);
void hostile_rig_close(hostile_rig *rig);

/** Ranks on which a run with these options fails, or has not the bits of cpu, or misses the bound
 *  of one rank. Collective; the same on all. text [HOSTILE_TEXT]: why here; "" if all is well. */
int hostile_rig_run(hostile_rig *rig, const hostile_options *options, char *text);
/** Waits of a run on rank 0. */
tsr_status hostile_rig_count_waits(const hostile_rig *rig, int *out);
/** What the race check, which sees no bytes, says of rank 0 without its n-th wait: two calls in
 *  conflict, or "". race [HOSTILE_RACE]. */
tsr_status hostile_rig_find_race(const hostile_rig *rig, int n, char *race);
