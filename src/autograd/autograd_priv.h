/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file autograd_priv.h
 * The tape's own data, and what the operations share: placement rules, launches, scratch.
 */
#pragma once

#include "base/base.h"

#include "autograd/autograd.h"

/* ---- tape ---- */

/** Gradients of one value that wait, each in a layout of its own, until the value's node is
 * reached. */
#define TSRI_NODE_MAX_GRADS 4

/** A range of the host pool for values of one size; lives as long as the tape. */
typedef struct tsri_host_slot {
    tsr_buffer *buffer;
    bool busy;
} tsri_host_slot;

/** Where an input of a part is (offload.c). */
typedef enum tsri_away_state {
    TSRI_AWAY_HERE = 0, /* on the device, as any value */
    TSRI_AWAY_LEAVING,  /* copied to the host; its device memory is in storage */
    TSRI_AWAY_GONE,     /* in the host pool alone */
    TSRI_AWAY_BACK      /* on the device once ready is reached */
} tsri_away_state;

typedef struct tsri_away {
    tsri_away_state state;
    tsri_host_slot *slot;  /* NULL: none; the tape's */
    tsri_storage *storage; /* owned */
    tsr_event ready;       /* the last copy's end */
} tsri_away;

typedef struct tsri_call_counter {
    const char *path;
    uint64_t calls;
} tsri_call_counter;

/** What an operation of a part's first run made (keep.c). */
typedef struct tsri_kept {
    const tsri_op_def *def;
    const char *path;
    unsigned not_needed; /* inputs that its forward took out of keep_in */
    tsr_dtensor *out;    /* owned, as saved[] */
    tsr_dtensor *saved[TSRI_OP_MAX_SAVED];
    int saved_count;
} tsri_kept;

/** What backward needs to run a checkpointed part again. */
typedef struct tsri_checkpoint {
    tsri_part_fn part;
    void *context;
    tsri_call_counter *counters; /* as they were before the first run */
    int counter_count;
    int depth; /* of its scope in the first run */
    tsri_part_options options;
    tsri_away away[TSRI_OP_MAX_IN]; /* by input */
    tsri_kept *kept;                /* in the order of the first run */
    int kept_count, kept_capacity;
    int kept_taken;   /* by the second run */
    bool has_markers; /* somebody wants to know when backward is inside, whatever comes of it */
} tsri_checkpoint;

/** An operation of the user's own, translated; owned by the tape. */
typedef struct tsri_custom tsri_custom;
void tsri_customs_free(tsri_custom **customs);

/** One operation, checkpoint or marker of the tape. */
typedef struct tsri_node {
    tsri_marker_fn marker; /* NULL: no marker */
    void *marker_context;
    tsri_checkpoint *checkpoint;      /* NULL: no checkpoint; owned */
    tsri_op_call call;                /* in[i] and out only where they are kept */
    int source[TSRI_OP_MAX_IN];       /* node that made in[i]; -1: none */
    tsr_param *param[TSRI_OP_MAX_IN]; /* in[i] is its value; owned */
    const tsr_dtensor *out;           /* identity, never followed */
    bool of_params;                   /* made of parameters alone: the same on all data ranks */
    tsr_dtensor *grad[TSRI_NODE_MAX_GRADS];
    int grad_count;
} tsri_node;

/** A value that a scope keeps alive; source, when not NULL, is what it was redistributed from. */
typedef struct tsri_hold {
    tsr_dtensor *value;
    tsr_dtensor *source; /* owned */
    int depth;
} tsri_hold;

/** What a step keeps alive. */
typedef struct tsri_kept_object {
    void *object;
    void (*release)(void *object);
} tsri_kept_object;

/** A look at ids or labels of this step, for the message if it finds one out of range. */
typedef struct tsri_ids_check {
    const char *op, *path, *what;
    int micro_batch, ndim;
    int64_t local_shape[TSR_MAX_DIMS], local_offset[TSR_MAX_DIMS];
} tsri_ids_check;

typedef struct tsri_rope_cache {
    tsr_buffer *table;
    int64_t seq, dim, first;
    double theta;
} tsri_rope_cache;

/** Losses given to tsr_backward in a step, by the axes on which each was Partial (step_loss.c). */
typedef struct tsri_loss_sums {
    tsr_buffer *sums; /* f32: one for each set of axes, by its mask; then one to reduce in */
    bool used[1U << TSR_MESH_MAX_AXES];
} tsri_loss_sums;

/** Where a step is (step.c). */
typedef enum tsri_step_state {
    TSRI_STEP_NONE = 0, /* no step is under way */
    TSRI_STEP_BEGUN,    /* labels are known, no micro-batch has begun */
    TSRI_STEP_FORWARD,  /* a micro-batch is recorded */
    TSRI_STEP_BACKWARD, /* its gradients are played */
    TSRI_STEP_PLAYED,   /* they have been */
    TSRI_STEP_FINAL,    /* gradients are final: measured, clipped */
    TSRI_STEP_UPDATED,  /* parameters are no longer those of the gradients */
    TSRI_STEP_FAILED    /* it counts for nothing */
} tsri_step_state;

/** What a frame computes for. */
typedef enum tsri_frame_mode {
    TSRI_FRAME_TRAIN = 0, /* backward may follow: operations are recorded */
    TSRI_FRAME_EVAL       /* forward only */
} tsri_frame_mode;

/** One micro-batch in flight, or an evaluation (frame.c). */
typedef struct tsri_frame { /* lint: a micro-batch and all that it holds */
    tsri_frame_mode mode;
    int index;       /* among the tape's; TSRI_FRAMES_MAX: that of evaluations */
    bool open;       /* it has begun, and neither been played nor dropped */
    bool failed;     /* an evaluation that went wrong */
    int micro_batch; /* -1: none */
    uint64_t epoch;  /* another number in each pass */
    bool no_grad;    /* nothing is recorded now: an evaluation, or a part's first run */
    bool recomputing;
    bool passed_over; /* this rank has, over what others run */
    tsri_node **nodes;
    int node_count, node_capacity;
    const char **scopes; /* paths */
    int depth, scope_capacity;
    tsri_hold *holds;
    int hold_count, hold_capacity;
    tsri_inserted *inserted;
    int inserted_count, inserted_capacity;
    tsri_call_counter *counters; /* dropout calls per path since the frame began */
    int counter_count, counter_capacity;
    tsri_checkpoint *keeping;   /* the part in its first run; borrowed; NULL: none */
    tsri_checkpoint *replaying; /* the part in its second run; borrowed; NULL: none */
    tsri_checkpoint *leaving;   /* the part whose inputs are LEAVING; borrowed; NULL: none */
} tsri_frame;

struct tsr_tape { /* lint: a step and all that its frames share */
    tsr_comm *comm;
    uint64_t seed;
    int64_t step;
    int begun, micro_batch_count; /* micro-batches of the step: begun so far, and all */
    tsri_step_state state;
    bool marked_last;  /* the program has said which backward is the step's last, and it has been */
    bool has_begun;    /* some step has */
    tsri_frame *frame; /* under way, or the newest that was */
    int in_flight;     /* most micro-batches that may be */
    tsri_frame *outer; /* during an evaluation: the frame before; else NULL */
    tsri_frame *frames[TSRI_FRAMES_MAX + 1]; /* by index; NULL: not needed so far */
    tsri_step_watch *watches;
    tsri_kept_object *objects; /* until the step ends */
    int object_count, object_capacity;
    char **names; /* a hash table of texts: labels of memory and kernels outlive the call */
    int name_count, name_capacity;
    tsri_rope_cache *ropes;
    int rope_count, rope_capacity;
    tsr_buffer *count; /* f64: tokens of the step; then what ranks compare (step_tokens.c) */
    const tsr_dtensor **labels; /* [micro_batch_count] those that were counted; never followed */
    int label_count, label_capacity;
    bool told_labels;       /* that a loss has others */
    tsr_buffer *eval_count; /* f64: tokens of an evaluation's newest loss (step_loss.c) */
    tsri_loss_sums loss;
    tsri_loss_scale scale;
    tsr_dtensor *one;   /* f32 scalar: the gradient of a loss, in scale's state of this step */
    tsr_buffer *facts;  /* struct facts (facts.c) */
    tsr_buffer *values; /* struct tsri_step_values */
    tsri_ids_check *checks;
    int check_count, check_capacity;
    bool facts_due;  /* something was looked at that ranks have not compared */
    int64_t outside; /* labels outside [0, outside) are ignored; 0: they are errors */
    tsri_custom *customs;
    tsri_host_slot **slots; /* of offloaded inputs */
    int slot_count, slot_capacity;
};

/** A copy of text that lives as long as the tape. */
tsr_status tsri_tape_intern(tsr_tape *tape, const char *text, const char **out);
/** Keep value (one owner is taken over, also on failure) until the scope at depth is left. */
tsr_status tsri_tape_hold(tsr_tape *tape, tsr_dtensor *value, tsr_dtensor *source, int depth);
/** Depth at which a copy of source in another layout is to be held: source's own, or that of the
 *  part in its first run; the present depth if source is not held. */
int tsri_tape_copy_depth(const tsr_tape *tape, const tsr_dtensor *source);
/** What the tape already has of source in layout; NULL: nothing. */
tsr_dtensor *tsri_tape_find_copy(const tsr_tape *tape, const tsr_dtensor *source,
                                 const tsr_layout *layout);
/** Note a redistribution that op at path asked for. */
tsr_status tsri_tape_insert(tsr_tape *tape, const char *path, const char *op, bool backward,
                            const tsr_dtensor *from, const tsr_layout *to);
/** Tell those who watch that a backward has been played. */
tsr_status tsri_tape_tell_played(const tsr_tape *tape);
/** Let go of what the step keeps alive. */
void tsri_tape_drop_objects(tsr_tape *tape);
/** Drop the holds of the frame under way. */
void tsri_tape_drop_holds(tsr_tape *tape);
/* frame.c */
tsr_status tsri_frames_open(tsr_tape *tape);
void tsri_frames_close(tsr_tape *tape);
/** Begin micro-batch micro_batch; where as many as may be are in flight the oldest is dropped. */
tsr_status tsri_frame_begin(tsr_tape *tape, int micro_batch);
/** Go to the micro-batch in flight to which loss belongs; false: none. */
bool tsri_frame_of(tsr_tape *tape, const tsr_dtensor *loss);
/** The frame under way has been played: drop it, and go to the newest in flight; false: none. */
bool tsri_frame_played(tsr_tape *tape);
/** Begin an evaluation; the frame before waits. */
tsr_status tsri_frame_begin_eval(tsr_tape *tape);
/** It is over. */
void tsri_frame_end_eval(tsr_tape *tape);
/** Drop what frame holds: nodes and values. */
void tsri_frame_drop(tsr_tape *tape, tsri_frame *frame);
/** All that are in flight. */
void tsri_frames_drop(tsr_tape *tape);
/** Append an empty node. */
tsr_status tsri_tape_node(tsr_tape *tape, tsri_node **out, int *index_out);
/** Release all that a node holds. */
void tsri_node_clear(tsri_node *node);
/** One more contribution to the gradient of what node made; takes over the owner of grad. */
tsr_status tsri_node_contribute(tsri_node *node, tsr_dtensor *grad);
/** A finished gradient of node's input i to where it belongs; takes over its owner. */
tsr_status tsri_node_deliver(tsr_tape *tape, tsri_node *node, int i, tsr_dtensor *grad);
/** Play the nodes from the last down to that of index floor, and free them. */
tsr_status tsri_tape_play(tsr_tape *tape, int floor);
/* step.c: may this happen now; TSR_ERR_STATE, on all ranks alike, says why not. */
tsr_status tsri_step_check_begin(const tsr_tape *tape, int64_t step);
tsr_status tsri_step_check_micro_batch(const tsr_tape *tape, int micro_batch);
tsr_status tsri_step_check_backward(const tsr_tape *tape);
tsr_status tsri_step_check_read(const tsr_tape *tape, const char *what);
tsr_status tsri_step_check_eval(const tsr_tape *tape);
tsr_status tsri_step_check_eval_end(const tsr_tape *tape);
tsr_status tsri_step_check_end(const tsr_tape *tape);
/** Why no operation may run ("before tsr_tape_begin"); NULL: one may. */
const char *tsri_step_refuses_forward(const tsr_tape *tape);
bool tsri_step_is_under_way(const tsr_tape *tape);
bool tsri_step_has_failed(const tsr_tape *tape);
/* And it has happened. */
void tsri_step_begun(tsr_tape *tape, int64_t step, int micro_batch_count);
void tsri_step_forward(tsr_tape *tape);
void tsri_step_backward(tsr_tape *tape);
/** more: another micro-batch is in flight. */
void tsri_step_played(tsr_tape *tape, bool more);
void tsri_step_ended(tsr_tape *tape);
/* step_tokens.c */
tsr_status tsri_tokens_open(tsr_tape *tape);
/** Labels of count micro-batches of a step that is to begin. */
tsr_status tsri_tokens_check(const tsr_tape *tape, tsr_dtensor *const *labels, int count);
/** At the step's begin. Collective over the mesh. TSR_ERR_DISAGREE on all ranks alike where they
 *  came with different counts. */
tsr_status tsri_tokens_count(tsr_tape *tape, tsr_dtensor *const *labels, int count);
/** Say so, once, if a loss at path is of labels that were not counted. */
void tsri_tokens_look(tsr_tape *tape, const tsr_dtensor *labels);
/** The same of a normaliser in place of labels. */
tsr_status tsri_normaliser_check(double normaliser, int count);
tsr_status tsri_normaliser_take(tsr_tape *tape, double normaliser, int count);
/* step_loss.c */
tsr_status tsri_loss_open(tsr_tape *tape);
tsr_status tsri_loss_zero(tsr_tape *tape);
tsr_status tsri_loss_add(tsr_tape *tape, const tsr_dtensor *loss);
/** In an evaluation: count the labels of a loss over all ranks, for its mean. */
tsr_status tsri_loss_count(tsri_op_call *call, const tsr_dtensor *labels);
/** Run the checkpointed part of node again and play the node's gradients through it. */
tsr_status tsri_checkpoint_play(tsr_tape *tape, tsri_node *node);
void tsri_checkpoint_free(tsri_checkpoint **checkpoint);
/** In a part's first run: keep what call has made, if the part asks for it. needed: call->keep_in
 *  before its forward. */
tsr_status tsri_keep_result(tsri_op_call *call, unsigned needed);
/** In its second run: give call what was kept, instead of its forward. */
tsr_status tsri_keep_take(tsri_op_call *call, bool *taken_out);
/** After the first and the second run: everything that options name was met, and taken. */
tsr_status tsri_keep_check(const tsri_checkpoint *checkpoint, const char *path, bool again);
void tsri_keep_forget(tsri_checkpoint *checkpoint);
/** Copy the inputs of a part that has just run for the first time to the host pool. */
tsr_status tsri_offload_inputs(tsr_tape *tape, tsri_node *node);
/** Bring the inputs of node's part back for the compute stream, and begin to bring those of the
 *  part that backward reaches next. node is the tape's newest. */
tsr_status tsri_offload_return(tsr_tape *tape, tsri_node *node);
/** Bring value back if it is away: an operation is about to read it. */
tsr_status tsri_offload_use(tsr_tape *tape, const tsr_dtensor *value);
/** Let go of what a part that is not played has away. */
void tsri_offload_forget(tsri_checkpoint *checkpoint);
void tsri_offload_close(tsr_tape *tape);
/** Number of this call in its path since tsr_tape_begin, from 0. */
tsr_status tsri_tape_count_call(tsr_tape *tape, const char *path, uint64_t *out);

/* ---- values: what changes from step to step and kernels read (values.c) ---- */

typedef struct tsri_step_values {
    int64_t step;
} tsri_step_values;

tsr_status tsri_values_open(tsr_tape *tape);
/** At the step's begin. */
tsr_status tsri_values_begin(tsr_tape *tape);
/** The step's number, for a kernel of call. */
const int64_t *tsri_values_step(const tsr_tape *tape, tsri_call *call);

/* ---- facts: what ranks compare once a step (facts.c) ---- */

tsr_status tsri_facts_open(tsr_tape *tape);
/** At the step's begin. */
tsr_status tsri_facts_begin(tsr_tape *tape);
/** Look whether in[i] of call, I32, is within [0, limit); what: "label", "id". ignores: labels may
 *  be TSR_IGNORE_INDEX. */
tsr_status tsri_facts_look(tsri_op_call *call, int i, int64_t limit, const char *what,
                           bool ignores);
/** The loss of the micro-batch under way has no gradient on this rank. */
tsr_status tsri_facts_ungraded(tsr_tape *tape);
/** Compare, and fail on all ranks alike if something was found. Collective over the mesh. */
tsr_status tsri_facts_compare(tsr_tape *tape);

/* ---- apply ---- */

/** A forward is about to communicate over the axes of mask: tell who watches, if they carry data.
 */
tsr_status tsri_tape_meet(tsr_tape *tape, unsigned mask);
/** Whether all of in[in_count] are parameters or made of parameters alone. */
bool tsri_tape_is_of_params(const tsr_tape *tape, tsr_dtensor *const *in, int in_count);
/** The node that made value if it counts on the tape now, else -1. */
int tsri_tape_node_of(const tsr_tape *tape, const tsr_dtensor *value);
/** Fail if a parameter among the inputs of mask has no memory at the moment. */
tsr_status tsri_op_check_params(const tsri_op_call *call, unsigned mask);
/** "linear in layers.0.attn.q" into text, in the root "linear"; returns text. */
const char *tsri_where(const char *op, const char *path, char *text, size_t size);
/** The same of a call. */
const char *tsri_op_where(const tsri_op_call *call, char *text, size_t size);
#define TSRI_WHERE_BYTES 192
/** Redistribution as an operation; asked_by NULL: by the program itself. */
tsr_status tsri_op_move(tsr_tape *tape, tsr_dtensor *x, const tsr_layout *to, const char *asked_by,
                        tsr_dtensor **out);

/* ---- rules ---- */

static inline tsr_placement tsri_shard(int dim)
{
    return (tsr_placement){.kind = TSR_SHARD, .dim = dim};
}
static inline tsr_placement tsri_replicate(void)
{
    return (tsr_placement){.kind = TSR_REPLICATE};
}
static inline tsr_placement tsri_partial(void)
{
    return (tsr_placement){.kind = TSR_PARTIAL};
}
static inline bool tsri_is_shard(const tsr_layout *layout, int axis, int dim)
{
    return layout->place[axis].kind == TSR_SHARD && layout->place[axis].dim == dim;
}
static inline bool tsri_place_equal(tsr_placement a, tsr_placement b)
{
    return a.kind == b.kind && (a.kind != TSR_SHARD || a.dim == b.dim);
}
int tsri_rule_axes(const tsri_op_call *call);
/** layout with Replicate in place of Partial. */
tsr_layout tsri_rule_whole(const tsr_layout *layout);
/** want[i]: no Partial, and no shard of dims from first_dim on. */
void tsri_rule_local_dims(tsri_op_call *call, int i, int first_dim);
/** Let out split dims in the order in which first does, then as second does where first does not
 *  split (an axis splits one dim at most). */
void tsri_rule_order(tsr_layout *out, const tsr_layout *first, const tsr_layout *second);
/** Bring two inputs of one shape to one layout; Partial stays where both are and keep_partial. */
void tsri_rule_pair(tsri_op_call *call, int a, int b, bool keep_partial);
/** Gradients of a parameter used whole on axes that split x: Partial there. */
void tsri_rule_param_grad(tsri_op_call *call, int param, const tsr_layout *x);
/** layout without its dims from ndim on; what splits those becomes Replicate. */
tsr_layout tsri_rule_leading(const tsr_layout *layout, int ndim);
/** Axes of size > 1 that shard dim. */
unsigned tsri_rule_mask(const tsr_layout *layout, int dim);
/** Product of the sizes of the axes that shard dim. */
int64_t tsri_rule_ways(const tsr_layout *layout, int dim);

/* ---- launches ---- */

/** An empty kernel call of this operation on the compute stream. */
tsri_call tsri_op_call_begin(const tsri_op_call *call);
/** Launch kernel with args, whose field *workspace (NULL: none) receives what scratch it needs. */
tsr_status tsri_op_launch(const tsri_op_call *call, tsri_call *launch, tsrk_id kernel, void *args,
                          void **workspace);
/** Where backward writes the gradient of in[i], or adds to it; NULL where nobody wants it. */
void *tsri_op_grad(const tsri_op_call *call, tsri_call *launch, int i);
/** A dtensor of the step, labelled by the operation's path. */
tsr_status tsri_op_acquire(const tsri_op_call *call, const tsr_layout *layout, tsr_dtype dtype,
                           tsri_mem_kind kind, tsr_dtensor **out);
/** y (+)= x * factor, of equal local counts. */
tsr_status tsri_op_scale_into(tsr_comm *comm, const char *label, const tsr_dtensor *x, float factor,
                              bool accumulate, tsr_dtensor *y);
/** Copy between part, and whole from entry begin of dim on, which neither splits: out of whole, or
 * into it. Nothing is done for a part without elements. */
tsr_status tsri_op_copy_out(const tsri_op_call *call, const tsr_dtensor *whole, int dim,
                            int64_t begin, tsr_dtensor *part);
tsr_status tsri_op_copy_into(const tsri_op_call *call, tsr_dtensor *whole, int dim, int64_t begin,
                             const tsr_dtensor *part);
/** Zero a dtensor. */
tsr_status tsri_op_zero(const tsri_op_call *call, tsr_dtensor *tensor);
/** Product of the local extents of dims begin .. end. */
int64_t tsri_local_span(const tsr_dtensor *tensor, int begin, int end);
/** The same of a layout on this rank. */
static inline int64_t tsri_op_rows(const tsr_dtensor *tensor)
{
    return tsri_local_span(tensor, 0, tensor->layout.ndim - 1);
}
static inline int64_t tsri_op_cols(const tsr_dtensor *tensor)
{
    return tensor->local_shape[tensor->layout.ndim - 1];
}
