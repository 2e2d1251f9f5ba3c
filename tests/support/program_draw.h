/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_draw.h
 * Drawing a program from a seed, of kinds that can be switched off.
 */
#pragma once

#include "support/program.h"

#define PROGRAM_KINDS(X) \
    X(PARAM_OPS, "param_ops")       /* operations on parameters alone */ \
    X(PENALTY, "penalty")           /* added to the loss: squares of parameters, values */ \
    X(TIED, "tied")                 /* a parameter used in several places */ \
    X(PARAM_INPUT, "param_input")   /* a parameter or a product of such as a module's input */ \
    X(TP, "tp")                     /* tensor parallel */ \
    X(MOVES, "moves")               /* redistributes over tp */ \
    X(DATA_MOVES, "data_moves")     /* activations made whole over a data axis */ \
    X(PARAM_MOVES, "param_moves")   /* parameters redistributed by the program */ \
    X(WHOLE, "whole")               /* whole batches on every rank of a data axis */ \
    X(SEQ, "seq")                   /* batches split along the sequence */ \
    X(LABELS, "labels")             /* labels placed otherwise than ids */ \
    X(MICRO_PLACES, "micro_places") /* other placements in each micro-batch */ \
    X(CUSTOM, "custom")             /* operations of the program's own */ \
    X(ATTENTION, "attention") \
    X(DROPOUT, "dropout") \
    X(CHECKPOINT, "checkpoint") \
    X(KEEP, "keep")       /* checkpointing that keeps results */ \
    X(OFFLOAD, "offload") /* of checkpoints, parameters, gradients, state */ \
    X(FROZEN, "frozen") \
    X(REUSE, "reuse")           /* a module called twice */ \
    X(SKIP, "skip")             /* calls left out in some micro-batches */ \
    X(SKIP_RANKS, "skip_ranks") /* calls left out on some ranks */ \
    X(NESTED, "nested") \
    X(ALONE, "alone")               /* a child called without its root */ \
    X(ORDER, "order")               /* units created in another order than they run */ \
    X(TWO_FORWARDS, "two_forwards") /* before one backward */ \
    X(FORWARD_ONLY, "forward_only") /* micro-batches without backward */ \
    X(SYNC, "sync") \
    X(ALL_REDUCE, "all_reduce") \
    X(LAST, "last") \
    X(READ_LOSS, "read_loss")   /* between micro-batches */ \
    X(OPTIMIZERS, "optimizers") /* two of them */ \
    X(SCALE, "scale")           /* loss scaling */ \
    X(CLIP, "clip") \
    X(TWICE, "twice")     /* scaling in both optimizers, gradients measured twice */ \
    X(UNSHARD, "unshard") /* between steps, by the program */ \
    X(LEVELS, "levels")   /* per unit and axis */ \
    X(OPTIONS, "options") /* reshard, prefetch, groups, columns, divisor */ \
    X(BF16, "bf16") \
    X(F16, "f16") \
    X(REDUCE, "reduce") /* reduce dtype */ \
    X(MORE, "more")     /* operations that no model of the library uses */

#define PROGRAM_KIND_INDEX(name, text) PROGRAM_ON_##name,
typedef enum program_on {
    PROGRAM_KINDS(PROGRAM_KIND_INDEX) PROGRAM_ON_COUNT
} program_on;

const char *program_on_name(program_on kind);
/** Bits of the kinds named in text, "tp,skip"; ~0 for NULL. */
uint64_t program_on_parse(const char *text);

/** The program of a seed on world_size ranks, of kinds among allowed. Each kind is in about a
 *  third of the programs. */
void program_draw(uint64_t seed, int world_size, uint64_t allowed, program *out);
