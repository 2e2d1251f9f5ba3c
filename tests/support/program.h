/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program.h
 * A small training program as data: modules, operations, parameters, placements, steps.
 *
 * The same description is run by Tessera on ranks (program_run.h) and in double on whole tensors
 * (program_truth.h); it is drawn from a seed (program_draw.h), made smaller (program_shrink.h) and
 * put in words (program_words.h). What a module's forward does is walked by program_body alone.
 */
#pragma once

#include "tessera/fsdp.h"
#include "tessera/optim.h"
#include "tessera/unit.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    PROGRAM_MAX_AXES = 4,
    PROGRAM_MAX_PARAMS = 64,
    PROGRAM_MAX_MODULES = 8,
    PROGRAM_MAX_OPS = 48,
    PROGRAM_MAX_IN = 4,
    PROGRAM_MAX_MICRO = 4,
    PROGRAM_MAX_STEPS = 3,
    PROGRAM_MAX_KEEP = 2,
    PROGRAM_MAX_FORWARDS = 2,
    PROGRAM_REGISTERS = PROGRAM_MAX_OPS + PROGRAM_MAX_IN,
    PROGRAM_ALWAYS = 0xff /* micro-batches in which an operation is done */
};

typedef enum program_kind {
    PROGRAM_SAME, /* in[0], nothing done */
    PROGRAM_LINEAR,
    PROGRAM_EMBEDDING,
    PROGRAM_POSITION,
    PROGRAM_LAYERNORM,
    PROGRAM_RMSNORM,
    PROGRAM_GELU,
    PROGRAM_SILU_MUL,
    PROGRAM_SPLIT_HEADS,
    PROGRAM_MERGE_HEADS,
    PROGRAM_ROPE,
    PROGRAM_ATTENTION, /* number 1: full */
    PROGRAM_ADD,
    PROGRAM_TANH,
    PROGRAM_SIGMOID,
    PROGRAM_SOFTMAX,
    PROGRAM_MULTIPLY,
    PROGRAM_MEAN,   /* over dim number, which is kept */
    PROGRAM_SLICE,  /* of the last dim, from number on, as much as span */
    PROGRAM_CONCAT, /* along the last dim */
    PROGRAM_MATMUL, /* number 1: of b transposed */
    PROGRAM_SCALE,
    PROGRAM_DROPOUT,
    PROGRAM_CAP,        /* an operation of the program's own: value * tanh(x / value) */
    PROGRAM_SQUARE_SUM, /* likewise: value / 2 * sum of x^2, a scalar */
    PROGRAM_CROSS_ENTROPY,
    PROGRAM_REDISTRIBUTE,
    PROGRAM_CALL,
    PROGRAM_KIND_COUNT
} program_kind;

/** What an operation reads: a register of the module's forward, or a parameter of any module. */
typedef struct program_arg {
    bool is_param;
    int index;
} program_arg;

typedef struct program_op {
    program_kind kind;
    program_arg in[PROGRAM_MAX_IN];
    int in_count;
    double value; /* factor, eps, probability, theta, cap */
    int number;   /* heads; module called; rope's first position */
    int span;
    unsigned micros; /* bit i: done in micro-batch i; elsewhere the result is in[0] */
    unsigned passed; /* a call: bit i: ranks of data index i pass over it */
    int axis;        /* redistribute: this axis becomes place, the others stay */
    tsr_placement place;
} program_op;

typedef struct program_param {
    int module, ndim;
    int64_t shape[2];
    double mean, std;
    bool frozen;
    int tp;      /* tsr_tp_kind of a rule of its own */
    bool cols;   /* its unit splits it along dim 1 */
    bool second; /* of the second optimizer */
    bool absent; /* not made at all; frozen then */
} program_param;

typedef struct program_module {
    int parent;  /* -1: the root, which is module 0 */
    int created; /* siblings become children in this order */
    int input_count, op_count, result;
    program_op ops[PROGRAM_MAX_OPS]; /* operation i writes register input_count + i */
    bool absent;                     /* not made at all; no unit then */
    bool makes;                      /* a matrix of parameters, from a matrix */
    bool is_unit, checkpoint, offload;
    const char *keep[PROGRAM_MAX_KEEP];
    int keep_count;
    tsr_fsdp_options unit; /* levels by preset where that is set */
    const char *preset;
} program_module;

typedef struct program_micro {
    int forwards; /* of the root, their losses added */
    int alone;    /* module called without its root after them; 0: none */
    bool backward;
    tsr_placement ids[PROGRAM_MAX_AXES];
    tsr_last_backward last;
    unsigned unsynced; /* bit i: gradient sync of module i's unit is off */
    bool reads_loss;   /* tsr_step_loss after it */
} program_micro;

typedef struct program_step {
    int micro_count;
    program_micro micro[PROGRAM_MAX_MICRO];
    bool update, all_reduce;
    int clips; /* calls of clip */
    unsigned
        unshard; /* bit i: module i's unit is gathered after the step; its reshard at bit 8 + i */
    tsr_clip_options clip;
} program_step;

typedef struct program {
    uint64_t seed;
    int axis_count, tp_axis; /* -1: none */
    tsr_mesh_axis axes[PROGRAM_MAX_AXES];
    int64_t batch, seq, dim, vocab, labels_below;
    bool loss_inside; /* the root takes labels too and returns its loss */
    program_param params[PROGRAM_MAX_PARAMS];
    program_module modules[PROGRAM_MAX_MODULES];
    program_step steps[PROGRAM_MAX_STEPS];
    int param_count, module_count, step_count;
    tsr_placement labels[PROGRAM_MAX_AXES];
    tsr_dtype param_dtype, reduce_dtype; /* of every unit */
    int optimizer_count;
    tsr_optimizer_options optimizers[2];
    double lr;
    bool scaled; /* loss scaling */
    double scale_init;
} program;

/** A register: in a run on ranks a value of the tape, in the truth a node. */
typedef union program_value {
    tsr_dtensor *tensor;
    int node;
} program_value;

/** Who does what a body says. */
typedef struct program_machine {
    void *context;
    tsr_status (*param)(void *context, int param, program_value *out);
    /** module: whose body it is. op is none of SAME and CALL. */
    tsr_status (*op)(void *context, int module, const program_op *op, const program_value *in,
                     program_value *out);
    tsr_status (*call)(void *context, const program_op *op, const program_value *in,
                       program_value *out);
} program_machine;

/** Walk the forward of a module in micro-batch micro. */
tsr_status program_body(const program *p, int module, int micro, const program_machine *machine,
                        const program_value *in, program_value *out);

/** "m3" and "p12" in their modules: full names, valid until eight more were asked for. */
const char *program_module_path(const program *p, int module);
const char *program_param_path(const program *p, int param);
const char *program_kind_name(program_kind kind);
int64_t program_param_elements(const program_param *param);
/** The module whose unit has the parameters of module. */
int program_unit_of(const program *p, int module);

/** Ranks of the axes that carry data, and the index among them of coordinate coord. */
int program_data_ranks(const program *p);
int program_data_index(const program *p, const int *coord);

/** Token ids, labels [batch, seq] and activations [batch, seq, dim] of a micro-batch: whole. */
void program_ids(const program *p, int step, int micro, int forward, int32_t *out);
void program_labels(const program *p, int step, int micro, int32_t *out);
void program_floats(const program *p, int step, int micro, float *out);
