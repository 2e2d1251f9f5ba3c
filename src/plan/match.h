/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file match.h
 * The ledgers of all ranks played against each other: does every collective meet its members?
 *
 * Per rank the host issues entries in their order. A stream runs what was issued to it first in,
 * first out; a WAIT holds its stream until another has come to a sequence number; a READ holds the
 * host until its stream has come to it, and so does the opening of a group, which all ranks make
 * together. A collective is over when every member has come to its k-th call over that group on
 * that stream. Members must pass alike what the calls' hashes stand for, and the label: where
 * labels differ, the data of one module would go to another.
 *
 * What cannot end so, cannot end on a machine; time has no part in it. Work: linear in the entries
 * of distinct ledgers, and in the collectives and waits of all ranks.
 */
#pragma once

#include "backend/recorder.h"

/** Why ranks hang. */
typedef enum tsri_match_cause {
    TSRI_MATCH_FITS = 0,
    TSRI_MATCH_DIFFERS, /* members whose calls differ */
    TSRI_MATCH_MISSING, /* a member whose program ends without the call */
    TSRI_MATCH_CYCLE    /* orders that cycle between groups */
} tsri_match_cause;

enum {
    TSRI_MATCH_TEXT_BYTES = 4096
};

typedef struct tsri_match_report {
    tsri_match_cause cause;
    char text[TSRI_MATCH_TEXT_BYTES]; /* "" where everything fits */
} tsri_match_report;

/** A rank's entries; ranks may share them. */
typedef struct tsri_match_ledger {
    const tsri_entry *entries;
    int count;
} tsri_match_ledger;

typedef struct tsri_match_input {
    const tsri_match_ledger *ledgers; /* [rank_count] */
    int rank_count;
    bool inline_compute; /* the host runs the compute stream's work itself, as on cpu */
    /** Write to members_out[entry->group_size] the world ranks of the group of rank's collective
     *  entry. NULL: entry->members; where ranks share a ledger those are of one of them. */
    tsr_status (*members)(void *context, int rank, const tsri_entry *entry, int *members_out);
    void *context; /* of members */
} tsri_match_input;

/**
 * Play all ranks. Returns a failure only where it could not be done: no memory, or ledgers that
 * contradict themselves (TSR_ERR_INVALID). What was found is in *out.
 */
tsr_status tsri_match(const tsri_match_input *input, tsri_match_report *out);
