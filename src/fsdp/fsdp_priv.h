/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Units and the engine that runs them.
 *
 * A unit's tp-local parameters are matrices of rows x cols. Over the W ranks of the level-3 axes
 * (flattened) each block of ceil(rows / W) rows is a chunk (of ceil(cols / W) columns where the
 * parameter is split along dim 1). Buffers of a unit, in elements:
 *
 *   shard, f32 [E]              at rest: for each parameter its chunk at shard_offset; first the
 *                               trained ones, up to T, then the frozen up to F, then whole ones
 *   slot, [W * F]               gathered: for each parameter W chunks at W * shard_offset, so that
 *                               it lies contiguous, with slack after its last row
 *   grad slot, [W * T]          the same for full gradients, in reduce dtype
 *   sums, f32 [T / F2]          reduced gradients, accumulated over micro-batches; step memory
 *   rest, f32 [T / F2]          the same where they outlive the step, or are offloaded
 *   kept, [W / k * F]           between forward and backward, where parameters stay split over
 *                               groups of k ranks
 *
 * Levels 1 and 2 split the first T of the flat shard by elements: first F2 intervals over the
 * level-2 axes, each into F1 intervals over the level-1 axes. A rank owns one: it updates that and
 * no more, and what it does not own is stale until the next refresh.
 *
 * A lean unit computes in half precision and trains all it has, split by levels 1 or 2. At rest its
 * f32 masters are the owned interval alone; what others own it needs in half precision only:
 *
 *   shard, f32 [T / F2 / F1]    masters of the owned interval
 *   halves, [T]                 all of the flat shard in param dtype: what is gathered and computed
 *                               from; a refresh casts the owned interval and gathers the others
 *
 *   forward of unit i    gather stream   | gather i+1 ............ | gather i+2 ...
 *                        compute stream  | wait i | forward of i   | wait i+1 | forward of i+1
 *   backward of unit i   gather stream   | gather i-1 ............ |
 *                        compute stream  | wait i | gradients of i | gradients of i-1
 *                        reduce stream                             | reduce-scatter i
 *                        replicate stream (last micro-batch)              | all-reduce i
 */
#pragma once

#include "tessera/unit.h"

#include <stdio.h>

#include "nn/nn.h"

typedef struct engine engine;
typedef struct unit unit;

typedef struct unit_param {
    tsr_param *param;      /* retained */
    int64_t rows, cols;    /* tp-local */
    bool by_cols;          /* split along dim 1 */
    bool whole;            /* not split over the level-3 axes: no unit took it */
    int64_t chunk;         /* elements of one rank's chunk */
    int64_t shard_offset;  /* elements */
    int64_t fold_offset;   /* by_cols: elements in the buffer where its chunks are contiguous */
    bool written;          /* a gradient has arrived in the current slot (or step, without slot) */
    bool reached;          /* a gradient has ever arrived */
    unsigned partial_mask; /* axes without data on which the sum of its gradient is Partial */
    tsr_dtensor *grad_value; /* the gradient's destination; NULL before the first */
} unit_param;

/* Units to gather ahead instead of the next ones. */
typedef struct prefetch_list {
    unit **units; /* borrowed; NULL: not set */
    int count;
} prefetch_list;

/* The axes of each level, 0 to 3, and the groups over them. */
typedef struct unit_levels {
    unsigned mask[4];
    int ranks[4];                               /* product of their sizes */
    int index[4];                               /* this rank's index in the flattened group */
    tsr_group *gather, *reduce;                 /* level 3 */
    tsr_group *flat_gather[3], *flat_reduce[3]; /* levels 1 and 2 */
    tsr_group *replicate;                       /* level 0 */
    tsr_group *kept;                            /* the last level-3 axes: k ranks */
} unit_levels;

/* The flat shard, in elements; and what follows from its sizes. */
typedef struct unit_flat {
    int64_t train_count, sharded_count; /* T and F */
    int64_t shard_count;                /* E */
    int64_t fold_count;                 /* of the by_cols buffer, W chunks each */
    int64_t own_begin, own_count;       /* owned interval */
    int64_t grad_begin, grad_count;     /* interval that sums hold */
    int64_t shard_begin;                /* where what rests in f32 begins */
    bool has_slot;                      /* gathers; else computes from what rests */
    bool has_grad_slot;                 /* gradients are not written where they are summed up */
    bool lean;
} unit_flat;

/* Buffers that outlive a step; in the host pool where offloaded. */
typedef struct unit_rest {
    tsr_buffer *shard;
    tsr_buffer *halves; /* of a lean unit, else NULL */
    tsr_buffer *sums;   /* NULL: not needed so far */
    bool stale;         /* shard, or halves, hold elements that their owners have updated since */
} unit_rest;

typedef enum slot_state {
    SLOT_EMPTY,     /* not gathered */
    SLOT_GATHERING, /* enqueued on the gather stream */
    SLOT_READY      /* compute waited for it; values attached */
} slot_state;

/* The values of parameters, gathered for a while. */
typedef struct unit_values {
    slot_state state;
    tsri_mem slot; /* buffer NULL: none */
    tsri_mem kept; /* the part that stays between forward and backward; buffer NULL: none */
    tsr_event gathered, kept_ready;
    uint64_t gathered_seen; /* see tsri_last_use */
    bool shared;            /* in use outside its module: gathered until backward is over */
} unit_values;

typedef enum sums_state {
    SUMS_NONE,  /* no gradient has come in this step, and none stayed from earlier ones */
    SUMS_TERMS, /* of some micro-batches, reduced as far as each of them is */
    SUMS_FINAL  /* the last reduction was made */
} sums_state;

typedef enum rest_state {
    REST_FREE,
    REST_EARLIER, /* sums of earlier steps */
    REST_NOW,     /* what this step has brought there */
    REST_BOTH     /* and it was added to what was of earlier steps */
} rest_state;

/* A step's gradients: in the slot unreduced, then in sums, which may be taken to rest. */
typedef struct unit_grads {
    sums_state state;
    rest_state rest;     /* what rest.sums holds */
    tsri_mem slot, sums; /* buffer NULL: none; sums: at rest, if there are any */
    tsri_mem wire;       /* sums in reduce dtype, where that is not f32; buffer NULL: none */
    tsr_event reduced;
    uint64_t reduced_seen; /* see tsri_last_use */
    bool unfilled;         /* without slot: gradients have come, gaps between them are not filled */
    bool keep;             /* where the step ended now, its sums would stay for the next one */
    bool placed;           /* all ranks know the same partial_mask of each parameter */
} unit_grads;

/* Its place among the units that run. */
typedef struct unit_run {
    int calls[TSRI_FRAMES_MAX]; /* forwards whose backward is still to come, by frame */
    int inside;                 /* forwards under way */
    int position;               /* in the engine's list */
    int64_t ran_forward;  /* forward number (engine) in which it last ran or was passed over */
    int64_t used_forward; /* the same, in which it was last used outside its module */
    int64_t passed_count; /* forwards in which it was passed over */
    bool passed;          /* in that forward this rank passed over it, and has not run it since */
    bool seen;            /* some rank has run it: its place in the order is no guess */
} unit_run;

struct unit {
    tsr_module *module; /* borrowed: the unit is its hook */
    tsr_comm *comm;
    engine *engine;           /* from materialize on; shared */
    tsr_fsdp_options options; /* without the lists, which are used up */
    tsr_dtype param_dtype, reduce_dtype;
    tsr_level level[TSR_MESH_MAX_AXES]; /* by mesh axis; DEFAULT: not named, or carries no data */
    tsr_level inner_level, other_level; /* of data axes that are not named; DEFAULT: not said */
    bool gradient_sync, all_reduce;     /* what unit.h switches */
    unit_param *params;
    int param_count;
    tsri_coll_item *items;     /* scratch, param_count */
    prefetch_list prefetch[2]; /* forward, backward */
    /* From materialize on. */
    unit_levels levels;
    unit_flat flat;
    unit_rest rest;
    /* While running. */
    unit_values values;
    unit_grads grads;
    unit_run run;
};

/* Test switch: one reduction that does not happen or counts twice, or parameters read one place
 * too far. Off by default; no program can reach it. */
typedef enum tsri_sabotage_kind {
    TSRI_SABOTAGE_NONE = 0,
    TSRI_SABOTAGE_DROP,
    TSRI_SABOTAGE_DOUBLE,
    TSRI_SABOTAGE_SHIFT
} tsri_sabotage_kind;

typedef struct sabotage {
    tsri_sabotage_kind kind;
    int nth; /* of the reductions over more than one rank, from 1; SHIFT: of the units */
    int seen;
    bool struck;
} sabotage;

/* A point of a forward; see schedule.c. */
typedef enum mark_kind {
    MARK_ENTER = 0, /* a unit */
    MARK_LEAVE,
    MARK_PART_ENTER, /* a checkpointed module, which backward runs again */
    MARK_PART_LEAVE,
    MARK_USE,  /* a parameter of a unit, first outside its module */
    MARK_MEET, /* an operation communicates over data axes; of the root */
} mark_kind;

typedef struct mark {
    tsr_module *module; /* borrowed */
    mark_kind kind;
    bool passed; /* this rank passed over it */
} mark;

typedef struct mark_row {
    mark *marks;
    int count, capacity;
} mark_row;

/* The order of marks, how it is learnt, and where in it this rank is (schedule.c, learn.c). */
typedef struct engine_order {
    mark_row expected;        /* marks of a forward, as all ranks know them */
    mark_row log, open;       /* of the forward under way; brackets open in it */
    int cursor;               /* in expected: the next mark of the forward under way */
    int back;                 /* in expected: the mark that backward has come to */
    int again, again_end;     /* in expected: the next mark of the part that runs again; -1: none */
    int beside, again_beside; /* units open that were not expected, forward and again */
    int last_entered;         /* position of the unit that forward enters last */
    bool learns, learnt;      /* learn.c: from the forward under way; all there is */
    bool news;                /* it has brought */
    int quiet;                /* forwards in a row from which nothing new was learnt */
    tsr_module *outermost;    /* the outermost unit that runs forward; NULL: none does */
    int outermost_end;        /* in expected: the mark behind its last */
} engine_order;

/* The pass under way, and the step that it is of. */
typedef struct engine_step {
    bool has_root[TSRI_FRAMES_MAX + 1];   /* the frame's pass has a forward of the root */
    uint64_t epochs[TSRI_FRAMES_MAX + 1]; /* of the newest pass of each frame */
    int at;                               /* the frame of the pass under way */
    bool eval;                            /* no backward follows the forward under way */
    bool busy;                            /* a pass has begun and not ended */
    bool played;                          /* a backward has begun in this step */
    bool checked;                         /* parameters without gradient have been reported */
    bool overwritten;                     /* parameters, by this rank; not all ranks have said so */
    uint64_t epoch;                       /* of the tape, of the newest pass */
    uint64_t backward_epoch;              /* of the newest pass that was played backward */
    int64_t forward;                      /* number of forwards begun */
    int last_mark;          /* -1: the tape's last micro-batch is the last; else 0 or 1 */
    tsr_event params_ready; /* compute's point at which the step's parameters were final */
    tsri_mem draining;      /* gradient slot whose reduction is under way; buffer NULL: none */
    tsr_event drained;      /* its end */
    tsri_step_watch watch;  /* the steps of the tape of the newest pass */
} engine_step;

/* All units of one model. */
struct engine { /* lint: one schedule over all units */
    int owners;
    tsr_comm *comm; /* borrowed: units hold it */
    unit **units;   /* in order of creation; [0] is the root */
    int unit_count;
    tsr_module **modules; /* of the model, in order of creation */
    int module_count;
    engine_order order;
    engine_step step;
    sabotage sabotage;
};

extern const tsri_module_hooks tsri_unit_hooks;
extern const tsri_grad_sink tsri_unit_sink;

/** The module's unit, or NULL. */
unit *tsri_unit_of(const tsr_module *module);
/** The engine of the model that module belongs to, or NULL before materialisation. */
engine *tsri_engine_of(tsr_module *module);
static inline bool tsri_unit_trains(const unit_param *p)
{
    return !p->param->spec.frozen;
}

/** The last use of memory that was ready for compute at ready, which compute waited for when it had
 *  enqueued seen operations (TSRI_NOT_SEEN: it has not). Events stand for work: where compute has
 *  done none since, what it was made to wait for is the last use. */
#define TSRI_NOT_SEEN UINT64_MAX
static inline tsr_event tsri_last_use(tsr_stream *compute, uint64_t seen, tsr_event ready)
{
    return seen < compute->enqueued ? tsri_event_record(compute) : ready;
}

/** The unit's newest reduction, or first copy or zeros in its place. */
static inline void tsri_unit_note_reduced(unit *u, tsr_stream *stream)
{
    u->grads.reduced = tsri_event_record(stream);
    u->grads.reduced_seen = TSRI_NOT_SEEN;
}

/** There are sums, in step memory or at rest. */
static inline bool tsri_unit_has_sums(const unit *u)
{
    return u->grads.state != SUMS_NONE;
}

/* gather.c */
tsr_status tsri_unit_unshard(unit *u);
tsr_status tsri_unit_await(unit *u);
tsr_status tsri_unit_reshard(unit *u);
/** Reshard, but keep a part within groups of k ranks where that is asked for. */
tsr_status tsri_unit_reshard_kept(unit *u);
/** last_use: of the part. */
void tsri_unit_drop_kept(unit *u, tsr_event last_use);
/** In forward, when u begins. */
tsr_status tsri_unit_prefetch(unit *u);
/** In backward, when u begins or is over. */
tsr_status tsri_unit_prefetch_back(unit *u);
/** While backward runs a part again, which ends at mark end, and has come to u at mark at. */
tsr_status tsri_unit_prefetch_again(unit *u, int at, int end);
size_t tsri_unit_slot_bytes(const unit *u);
tsr_status tsri_unit_use(void *context, tsr_param *param, tsr_tape *tape);
/* fold.c */
/** Copy the chunks of by_cols parameters between folded (W contiguous chunks each, elements of
 *  type) and their places in slot, on stream. */
tsr_status tsri_unit_unfold(unit *u, const tsri_mem *folded, const tsri_mem *slot, tsr_dtype type,
                            tsr_stream *stream);
tsr_status tsri_unit_fold(unit *u, const tsri_mem *slot, const tsri_mem *folded, tsr_dtype type,
                          tsr_stream *stream);
/* offload.c */
/** This rank's own elements of the flat shard, from the host pool into step memory laid out alike,
 *  for the gather stream. */
tsr_status tsri_unit_stage_shard(unit *u, tsri_mem *out);
/** The shard as the gather stream has left it back to the host pool; gives *staged back. */
tsr_status tsri_unit_unstage_shard(unit *u, tsri_mem *staged);
/** to[count] = from[count], f32, on the stream of kind. */
tsr_status tsri_unit_copy(const unit *u, tsri_stream_kind kind, const tsri_mem *from,
                          const tsri_mem *to, int64_t count);
/* sums.c */
/** Step memory for sums that the stream of kind will write, beginning with those at rest. */
tsr_status tsri_unit_open_sums(unit *u, tsri_stream_kind kind);
/** Copy the sums to where they rest, behind u->grads.reduced, which moves there. */
tsr_status tsri_unit_rest_sums(unit *u);
/** Let compute wait for the newest reduction. */
tsr_status tsri_unit_await_sums(unit *u);
/** At the step's end: bring to rest what stays, and give the memory back. failed: forget what the
 *  step has added. */
tsr_status tsri_unit_end_sums(unit *u, bool failed);
/** Give the memory back, at once. */
void tsri_unit_drop_sums(unit *u);
/* sum_place.c: see there. */
tsr_status tsri_unit_sum_place(void *context, tsr_param *param, const tsr_layout *arrives,
                               tsr_layout *sum_out, tsr_dtype *dtype_out);
/** Open the groups over axes that carry no data on the stream that reduces what is Partial there.
 */
tsr_status tsri_unit_open_axes(const unit *u);
/** Before the unit's first reduction: let all ranks place its sums alike. */
tsr_status tsri_unit_settle_sums(unit *u);
/* reduce.c */
tsr_status tsri_unit_open_grads(unit *u);
/** Where p's gradient is summed up on this rank: its range, and its type. */
tsri_mem tsri_unit_grad_range(const unit *u, const unit_param *p, tsr_dtype *dtype_out);
/** What follows a unit's gradients: last: of the step; forced: also without gradient sync. */
tsr_status tsri_unit_reduce(unit *u, bool last, bool forced);
tsr_status tsri_unit_reduce_last(unit *u);
tsr_status tsri_unit_zero_grads(unit *u);
void tsri_engine_release_draining(engine *e);
tsr_status tsri_unit_zero(const unit *u, tsr_buffer *buffer, size_t offset, size_t bytes);
/** Gradients have come that no reduction has seen. */
static inline bool tsri_unit_has_pending(const unit *u)
{
    return u->flat.has_grad_slot ? u->grads.slot.buffer != NULL : u->grads.unfilled;
}
/* schedule.c: see there. */
tsr_status tsri_schedule_open(engine *e, tsr_module *model);
void tsri_schedule_free(engine *e);
/** The forward of outermost begins; this rank comes to a mark (after passing over those before it);
 *  the forward has ended. */
tsr_status tsri_schedule_begin(engine *e, tsr_module *outermost);
tsr_status tsri_schedule_reach(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape);
tsr_status tsri_schedule_end(engine *e);
/** Backward comes to a unit's end or beginning. */
void tsri_schedule_back(engine *e, tsr_module *module, mark_kind kind);
/** Backward runs a part again, and comes to a mark of it or of what lies inside. */
tsr_status tsri_schedule_again(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape);
/** Backward comes to a part that this rank has passed over: gather what others run again. */
tsr_status tsri_schedule_part_again(engine *e, tsr_module *module);
/** Units that forward enters in [from, to) of the expected marks; that backward needs from mark
 *  from on downwards. Return how many were written to out. */
int tsri_schedule_after(const engine *e, int from, int to, unit **out, int capacity);
int tsri_schedule_before(const engine *e, int from, unit **out, int capacity);
/* engine.c */
/** An optimizer has updated parameters of u in the step under way. */
bool tsri_unit_is_updated(const unit *u);
/** Issue what others do at mark m, which this rank passes over. */
tsr_status tsri_engine_pass(const mark *m, tsr_tape *tape, bool again);
tsr_status tsri_engine_gather_again(unit *u, int at, int end);
/** A parameter of u is used outside its module, for the first time in this forward. */
tsr_status tsri_engine_use(unit *u, tsr_tape *tape);
tsr_status tsri_engine_touch(engine *e, tsr_tape *tape);
/** Let go of what a forward has gathered whose backward does not come; failed: nor anything else.
 */
tsr_status tsri_engine_forget_forward(engine *e, bool failed);
/* final.c: see there. */
/** The last reduction of a unit that has not made it in its own backward. */
tsr_status tsri_unit_finish(unit *u);
/** Take back the last reduction: more is to be added. */
tsr_status tsri_unit_reopen(unit *u);
/** Before the first gradient of a backward. */
tsr_status tsri_engine_begin_backward(engine *e);
tsr_status tsri_unit_finalize(void *context, tsr_param *param, const char *what,
                              tsr_tape **tape_out);
/* unit.c */
void tsri_unit_release(void *context);
tsr_stream *tsri_unit_stream(const unit *u, tsri_stream_kind kind);
tsr_status tsri_unit_take(unit *u, tsr_param *param);
/* settle.c */
tsr_status tsri_unit_settle(unit *u, uint64_t seed);
/** The sink's overwrite. */
tsr_status tsri_unit_overwrite(void *context, tsr_param *param, tsri_overwrite how);
/* debug.c */
/** Names of trained parameters that have got no gradient since materialisation; returns how many.
 */
int tsri_engine_unreached(const engine *e, const char **names, int capacity);

/* legal.c: see there. */
typedef struct legal_case {
    tsr_module *module;
    const tsr_fsdp_options *options;
    unit *unit; /* at materialisation: its levels are settled */
    char found[192];
} legal_case;
tsr_status tsri_legal_check_options(tsr_module *module, const tsr_fsdp_options *options);
tsr_status tsri_legal_check_unit(unit *u);
/** docs/legal-combinations.md, as the table says it. */
void tsri_legal_write(FILE *stream);
int tsri_legal_rule_count(void);
/** Name of the rule that the newest failed check broke; NULL: none. */
const char *tsri_legal_rule_id(int index);
/** Name of the preset with these levels on the shard axis and on the others; NULL: none. */
const char *tsri_preset_name(tsr_level inner, tsr_level outer);

/* sabotage.c */
void tsri_sabotage_set(tsr_module *model, tsri_sabotage_kind kind, int nth);
/** Whether the switch has struck. */
bool tsri_sabotage_struck(tsr_module *model);
/** A reduction of u, through the switch. */
tsr_status tsri_unit_collective(const unit *u, tsr_group *group, const tsri_coll *coll,
                                tsri_stream_kind kind);
/** Elements by which the values of u are read too far. */
int64_t tsri_sabotage_shift(unit *u);

/** Elements that two intervals share. */
static inline void tsri_intersect(int64_t a, int64_t a_end, int64_t b, int64_t b_end,
                                  int64_t *begin, int64_t *end)
{
    *begin = a > b ? a : b;
    *end = a_end < b_end ? a_end : b_end;
    if (*end < *begin) {
        *end = *begin;
    }
}
