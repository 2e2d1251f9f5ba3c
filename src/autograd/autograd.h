/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file autograd.h
 * Inside of the tape, for nn and fsdp: markers, module scopes, step facts, custom operations.
 */
#pragma once

#include "tessera/op.h"
#include "tessera/tape.h"

#include "autograd/param.h"

/** Who wants to know when a step ends: whoever holds memory of the step for all of it. */
typedef struct tsri_step_watch {
    /** failed: the step is given up, and what was enqueued for it counts for nothing; the status is
     * ignored then. */
    tsr_status (*end)(void *context, bool failed);
    /** The tape has played a micro-batch backward, to its beginning. NULL: nobody asks. */
    tsr_status (*played)(void *context, const tsr_tape *tape);
    /** A forward that no backward follows, an evaluation, is over; failed: half-way. NULL: nobody
     * asks. */
    tsr_status (*left)(void *context, const tsr_tape *tape, bool failed);
    /** An operation of a forward, or of a part's second run, is about to communicate over axes that
     * carry data. NULL: nobody asks. */
    tsr_status (*meet)(void *context, tsr_tape *tape);
    void *context;
    tsr_tape *tape; /* NULL: none */
    struct tsri_step_watch *next;
} tsri_step_watch;
/** Tell watch, which stays the caller's, of the ends of tape's steps from now on, and no other
 *  tape's. */
void tsri_tape_watch(tsr_tape *tape, tsri_step_watch *watch);
void tsri_tape_unwatch(tsri_step_watch *watch);

/** Keep object, whose owner is taken over, until tape's step ends: what happens then may need it.
 */
tsr_status tsri_tape_keep(tsr_tape *tape, void *object, void (*release)(void *object));
/** Whether it is kept already. */
bool tsri_tape_keeps(const tsr_tape *tape, const void *object);
/** Of a step or an evaluation. */
bool tsri_tape_in_step(const tsr_tape *tape);

/* What a program may do next (step.c). Each fails with TSR_ERR_STATE, on all ranks alike; what: the
 * call, for the message. */

/** An operation or a module is to run. */
tsr_status tsri_step_check_forward(const tsr_tape *tape, const char *what);
/** Gradients are to be taken as final. */
tsr_status tsri_step_check_final(const tsr_tape *tape, const char *what);
/** How units run is to change. */
tsr_status tsri_step_check_setting(const tsr_tape *tape, const char *what);
/** Something that holds for whole steps is to change. */
tsr_status tsri_step_check_outside(const tsr_tape *tape, const char *what);
/** All micro-batches have begun, or the program has marked the last backward. */
bool tsri_step_is_complete(const tsr_tape *tape);
void tsri_step_mark_last(tsr_tape *tape);
void tsri_step_final(tsr_tape *tape);
void tsri_step_updated(tsr_tape *tape);
/** Something failed half-way. */
void tsri_step_fail(tsr_tape *tape);

/** A marker is a node without values: backward calls it when it gets there. */
typedef tsr_status (*tsri_marker_fn)(void *context, tsr_tape *tape);
tsr_status tsri_tape_marker(tsr_tape *tape, tsri_marker_fn fn, void *context);
/** This rank passes over what others run: its loss may have no gradient, and backward still calls
 *  the markers. */
void tsri_tape_pass_over(tsr_tape *tape);

/** Scope of a module call: sets the path (for labels, dropout keys), and on leave drops the tape's
 *  hold on every value made inside except keep (NULL: none). Scopes nest. */
tsr_status tsri_tape_enter(tsr_tape *tape, const char *path);
void tsri_tape_leave(tsr_tape *tape, tsr_dtensor *keep);
/** Drop the present scope's hold on value, and on copies of it in other layouts: nothing more will
 * be made of it. What backward needs stays. Nothing happens to a value of another scope. */
void tsri_tape_let_go(tsr_tape *tape, const tsr_dtensor *value);
const char *tsri_tape_path(const tsr_tape *tape);

tsr_comm *tsri_tape_comm(const tsr_tape *tape);
int64_t tsri_tape_step(const tsr_tape *tape);
/** Of the frame under way; -1: an evaluation. */
int tsri_tape_micro_batch(const tsr_tape *tape);
/** The frame under way is the last of the step that backward may play. */
bool tsri_tape_is_last(const tsr_tape *tape);
/** Number of the frame under way among those that may be in flight together. */
#define TSRI_FRAMES_MAX TSR_MAX_IN_FLIGHT
int tsri_tape_frame(const tsr_tape *tape);
bool tsri_tape_in_backward(const tsr_tape *tape);
/** Another number in each pass: from tsr_tape_begin to the end of backward it is the same. */
uint64_t tsri_tape_epoch(const tsr_tape *tape);
/** Device scalar f64: tokens that a loss of the frame under way is divided by. */
tsr_buffer *tsri_tape_token_count(const tsr_tape *tape);
/** What backward begins with, 1 or a loss scale, and how the norms of a step change it. Every
 *  gradient of the tape carries it. */
typedef struct tsri_loss_scale {
    tsr_buffer *states; /* two tsrk_scale_state, then an int32_t: the step overflowed */
    int now;       /* which is this step's; the other one becomes the next step's if measured */
    bool on;       /* else 1 */
    bool measured; /* in this step */
    double growth, backoff, min, max; /* as tsr_loss_scale_options */
    int interval;
} tsri_loss_scale;
/** Where in states state i is; 2: the overflow. */
static inline size_t tsri_scale_offset(int i)
{
    return (size_t)i * sizeof(tsrk_scale_state);
}
tsri_loss_scale *tsri_tape_scale(tsr_tape *tape);
void tsri_tape_set_seed(tsr_tape *tape, uint64_t seed);
/** Nothing is recorded now: an evaluation, or a part's first run. */
bool tsri_tape_no_grad(const tsr_tape *tape);

/* ---- activation checkpointing ---- */

/** Part of a forward pass: inputs to one output, by operations and markers. */
typedef tsr_status (*tsri_part_fn)(void *context, tsr_tape *tape, tsr_dtensor *const *in,
                                   int in_count, tsr_dtensor **out);
/** How a part waits for its second run. */
typedef struct tsri_part_options {
    bool offload;            /* what nobody but the tape keeps of in[] waits in the host pool */
    const char *const *keep; /* names of operations whose results are kept; borrowed until then */
    int keep_count;
} tsri_part_options;

/**
 * Run part without recording it, keeping in[in_count] (<= TSRI_OP_MAX_IN) alone; backward runs it
 * again, recording, when it gets there. Every value of the tape that part uses must be in in[];
 * parameters need not. Dropout masks are the same both times. Markers count in the second run only.
 *
 * options: NULL: none. An operation named in keep runs once: the second run takes its result. Fails
 * if part has no such operation.
 */
tsr_status tsri_tape_checkpoint(tsr_tape *tape, tsri_part_fn part, void *context,
                                tsr_dtensor *const *in, int in_count,
                                const tsri_part_options *options, tsr_dtensor **out);
/** True while forward runs a part that backward will run again, once. */
bool tsri_tape_in_part(const tsr_tape *tape);
/** True while backward runs a part again (tsri_tape_in_backward is then true too). */
bool tsri_tape_in_recompute(const tsr_tape *tape);

/** A redistribution that a placement rule inserted. */
typedef struct tsri_inserted {
    const char *path, *op; /* module path; operation that asked; borrowed */
    bool backward;
    tsr_layout from, to;
    size_t bytes; /* of the local piece before */
} tsri_inserted;
/** Those of the last micro-batch recorded; borrowed until the next tsr_tape_begin. */
const tsri_inserted *tsri_tape_inserted(const tsr_tape *tape, int *count_out);

/* ---- operations ---- */

#define TSRI_OP_MAX_IN     4
#define TSRI_OP_MAX_OUT    1
#define TSRI_OP_MAX_SAVED  4
#define TSRI_OP_ATTR_BYTES 96

typedef struct tsri_op_call tsri_op_call;

/** An operation: a rule, a forward, a backward. */
typedef struct tsri_op_def {
    const char *name;
    /** Given in[] (layouts as they are), set want[] (layout wanted per input), out_layout,
     * out_dtype, grad_want (layout wanted of the output's gradient; say so in grad_want_set) and
     * grad_layout[] (layout in which the gradient of each input comes out). want begins as in[]
     * lies; what the rule leaves unset becomes: out_dtype that of in[0], grad_want as out_layout
     * and grad_layout[i] as want[i], both with Replicate in place of Partial. Axes of one rank need
     * no thought. */
    tsr_status (*rule)(tsri_op_call *call);
    /** in[] are in their wanted layouts, out allocated (or left NULL if makes_out). */
    tsr_status (*forward)(tsri_op_call *call);
    /** dout is in grad_want; for each i with din[i] != NULL write or add (accumulate[i]). NULL: the
     *  operation has no gradient. */
    tsr_status (*backward)(tsri_op_call *call);
    /** Element types that in[i] may have, a bit each (dtype.h); all others are refused. */
    unsigned takes[TSRI_OP_MAX_IN];
    const char *inputs; /* their names in messages: "x, weight"; NULL: "input 0" */
    unsigned alike;     /* bit i: in[i] is of in[0]'s type */
    unsigned keep_in;   /* bit i: backward needs in[i]'s bytes */
    bool keep_out;      /* backward needs out's bytes */
    bool makes_out;     /* forward creates out itself (views) */
    /** Backward is the same linear map on every rank: it takes a dout that is Partial where out is
     *  Replicate, and hands Partial on. Every input of such an operation is in makes_grad. */
    bool linear;
    /* The gradient of in[i], bit i of each: */
    unsigned makes_grad;    /* backward sets din[i] itself: a dtensor for the engine to own, of the
                               shape and type of in[i], in any layout; it may share dout's memory */
    unsigned no_accumulate; /* backward can only write din[i], not add to it */
    unsigned typed_grad; /* backward writes din[i] in whatever floating type that has; else it has
                            in[i]'s */
    unsigned over_grad;  /* may be written over dout */
    unsigned over_in;    /* may be written over in[i], which is in keep_in */
} tsri_op_def;

struct tsri_op_call {
    const tsri_op_def *def;
    tsr_tape *tape;
    tsr_comm *comm;
    const char *path;
    int in_count;
    tsr_dtensor *in[TSRI_OP_MAX_IN];
    tsr_layout in_layout[TSRI_OP_MAX_IN]; /* valid also when in[i] was not kept */
    tsr_dtype in_dtype[TSRI_OP_MAX_IN];
    tsr_dtensor *out;
    tsr_layout want[TSRI_OP_MAX_IN];
    tsr_layout out_layout, grad_want;
    tsr_layout grad_layout[TSRI_OP_MAX_IN];
    tsr_dtype out_dtype;
    bool grad_want_set;
    int saved_count;
    tsr_dtensor *saved[TSRI_OP_MAX_SAVED]; /* made by forward, owned by the call */
    tsr_dtensor *dout;
    tsr_dtensor *din[TSRI_OP_MAX_IN];
    bool accumulate[TSRI_OP_MAX_IN];
    bool needs_grad[TSRI_OP_MAX_IN];
    bool by_rule;     /* a redistribution that another operation's rule asked for */
    unsigned keep_in; /* def's; rule and forward may change it */
    /* The operation's own settings, a plain struct. */
    _Alignas(8) unsigned char attr[TSRI_OP_ATTR_BYTES];
};

/** Run def on in[in_count] with attr (copied): redistribute inputs as the rule wants, allocate the
 *  output, run forward, record the node. out belongs to the tape. */
tsr_status tsri_op_apply(tsr_tape *tape, const tsri_op_def *def, tsr_dtensor *const *in,
                         int in_count, const void *attr, size_t attr_bytes, tsr_dtensor **out);
