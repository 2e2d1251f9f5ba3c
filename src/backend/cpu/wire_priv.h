/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file wire_priv.h
 * What wire.c (letters, calls of MPI) and ring.c (large data) share of a group without memory in
 * common.
 *
 * The *stream* of a collective is the concatenation of its items: piece p of the stream is piece p
 * of every item, one after the other. Messages are cut out of the stream, so that a list of many
 * small items costs no more of them than one large item.
 */
#pragma once

#include "backend/cpu/cpu_priv.h"

#include <mpi.h>

/** Chunks under way at a time, each going round the ring on its own. */
#define TSRI_CPU_LANES 8
/** Bytes of a chunk per member. */
#define TSRI_CPU_CHUNK_BYTES ((size_t)128 << 10)
/** Inputs of this size travel with the call itself, to all members directly. */
#define TSRI_CPU_LETTER_BYTES ((size_t)3 << 10)

/** What a member sends to each other one when it begins a call. */
typedef struct tsri_cpu_letter {
    tsri_cpu_call call;
    _Alignas(16) unsigned char data[TSRI_CPU_LETTER_BYTES];
} tsri_cpu_letter;

/** A chunk on its way: elements [begin, begin + count) of the stream; none: the lane is done. */
typedef struct tsri_cpu_lane {
    int64_t begin, count;
    int step;
    unsigned char *held;     /* goes to the right */
    unsigned char *arriving; /* comes from the left */
} tsri_cpu_lane;

typedef enum tsri_cpu_phase {
    TSRI_CPU_IDLE = 0,
    TSRI_CPU_LETTERS, /* requests: [size] in, then [size] out, by member */
    TSRI_CPU_RING,    /* per lane one from the left and one to the right */
    TSRI_CPU_CALLS    /* one per item */
} tsri_cpu_phase;

struct tsri_cpu_mpi {
    MPI_Comm comm;
    tsri_cpu_phase phase;
    MPI_Request *request;
    int request_count;
    tsri_cpu_letter *inbox, *outbox; /* [size], by member */
    int64_t at;                      /* first element of a round of MPI's calls */
    tsri_cpu_lane lane[TSRI_CPU_LANES];
    unsigned char *chunks; /* memory of the lanes; NULL until a ring needs it */
};

/** Elements [begin, begin + count) of piece piece of an operation's stream. */
typedef struct tsri_cpu_span {
    int64_t begin, count;
    int piece;
} tsri_cpu_span;

/* ---- wire.c ---- */
/** TSR_ERR_COMM unless code is MPI's success. */
tsr_status tsri_cpu_mpi_check(int code, const char *what);

/* ---- ring.c ---- */
/** Elements of one piece of op's stream. */
int64_t tsri_cpu_stream_count(const tsri_cpu_op *op);
/** Copy inputs of op together; to has room for the span. */
void tsri_cpu_stream_gather(const tsri_cpu_op *op, tsri_cpu_span span, unsigned char *to);
/** Copy what lies together to op's outputs. */
void tsri_cpu_stream_scatter(const tsri_cpu_op *op, tsri_cpu_span span, const unsigned char *from);
/** Begin op, an all-gather, reduce-scatter or all-reduce that all members have agreed on. */
tsr_status tsri_cpu_ring_begin(tsri_cpu_op *op);
/** Advance every lane whose messages are through by one step. */
tsr_status tsri_cpu_ring_step(tsri_cpu_op *op, bool *moved_out, bool *done_out);
