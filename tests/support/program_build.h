/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_build.h
 * Words for program_draw.c: chance, and writing operations into modules.
 */
#pragma once

#include "support/program_draw.h"

typedef struct program_chance {
    uint64_t key, index;
} program_chance;

/** 0 .. count - 1. */
int program_pick(program_chance *c, int count);
int program_between(program_chance *c, int low, int high);
/** True once in n. */
bool program_once(program_chance *c, int n);

/** What is being drawn. */
typedef struct program_builder {
    program *p;
    program_chance chance;
    uint64_t on; /* kinds of this program */
    int tp_size;
    bool moved_table; /* the embedding reads a table that the program has redistributed */
} program_builder;

bool program_is_on(const program_builder *b, program_on kind);

/** Append an operation that is always done; its result. */
program_arg program_emit(program_builder *b, int module, program_kind kind, double value,
                         const program_arg *in, int in_count);
program_op *program_last_op(program_builder *b, int module);
bool program_has_room(const program_builder *b, int module, int ops);

/** A matrix [rows, cols], a gain or a bias for an operation of module: a new parameter, one that
 *  is there already, or made of such by operations. plain: not split over tp. */
program_arg program_matrix(program_builder *b, int module, int64_t rows, int64_t cols, bool plain);
program_arg program_vector(program_builder *b, int module, int64_t count, double mean);
/** A new parameter of module. */
int program_add_param(program_builder *b, int module, int64_t rows, int64_t cols, double mean,
                      double std);
/** A piece of the stream, from h [batch, seq, dim] to as much, of operations that no model of the
 *  library uses. */
program_arg program_more(program_builder *b, int module, program_arg h);
