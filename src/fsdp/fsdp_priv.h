/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Units and the engine that runs them.
 *
 * A unit's tp-local parameters are matrices of rows x cols. Over the W ranks of the level-3 axes
 * (flattened) each row block of ceil(rows / W) is a chunk. Buffers of a unit, in elements:
 *
 *   shard, f32 [E]        at rest: for each parameter its chunk at shard_offset
 *   slot, [W * E]         gathered: for each parameter W chunks at W * shard_offset, so that it
 * lies contiguous, with slack after its last row grad slot, [W * E]    the same for full gradients,
 * in reduce dtype grad, f32 [E / F2]    reduced gradients, accumulated over micro-batches
 *
 * Levels 1 and 2 split the flat shard by elements: first F2 intervals over the level-2 axes, each
 * into F1 intervals over the level-1 axes. A rank owns one: it updates that and no more, and what
 * it does not own is stale until the next refresh.
 *
 *   forward of unit i    gather stream   | gather i+1 ............ | gather i+2 ...
 *                        compute stream  | wait i | forward of i   | wait i+1 | forward of i+1
 *   backward of unit i   gather stream   | gather i-1 ............ |
 *                        compute stream  | wait i | gradients of i | gradients of i-1
 *                        reduce stream                             | reduce-scatter i
 *                        replicate stream (last micro-batch)              | all-reduce i
 */
#pragma once

#include "tessera/fsdp.h"

#include "nn/nn.h"

typedef struct engine engine;
typedef struct unit unit;

typedef struct unit_param {
    tsr_param *param;      /* retained */
    int64_t rows, cols;    /* tp-local */
    int64_t chunk;         /* elements of one rank's chunk: ceil(rows / W) * cols */
    int64_t shard_offset;  /* elements */
    bool written;          /* a gradient has arrived in the current slot (or step, without slot) */
    unsigned partial_mask; /* axes without data on which the gradient arrives Partial */
    tsr_dtensor *grad_value; /* the gradient's destination; NULL before the first */
} unit_param;

typedef enum slot_state {
    SLOT_EMPTY,     /* not gathered */
    SLOT_GATHERING, /* enqueued on the gather stream */
    SLOT_READY      /* compute waited for it; values attached */
} slot_state;

struct unit {
    tsr_module *module; /* borrowed: the unit is its hook */
    tsr_comm *comm;
    engine *engine; /* from materialize on; shared */
    tsr_fsdp_options options;
    tsr_level level[TSR_MESH_MAX_AXES]; /* by mesh axis; DEFAULT: not named */
    unit_param *params;
    int param_count;
    tsri_coll_item *items; /* scratch, param_count */

    /* From materialize on. */
    unsigned mask[4];                           /* axes by level 0..3 */
    int ranks[4];                               /* product of their sizes */
    int index[4];                               /* this rank's index in the flattened group */
    tsr_group *gather_group, *reduce_group;     /* level 3 */
    tsr_group *flat_gather[3], *flat_reduce[3]; /* levels 1 and 2 */
    tsr_group *replicate_group;                 /* level 0 */
    int64_t shard_count;                        /* E */
    int64_t own_begin, own_count;               /* owned interval of the flat shard */
    int64_t grad_begin, grad_count;             /* interval of the flat shard that grad holds */
    tsr_buffer *shard, *grad;
    bool has_slot, has_grad_slot;
    tsr_dtype param_dtype, reduce_dtype;

    /* While running. */
    slot_state state;
    tsri_mem slot, grad_slot;
    bool grad_slot_held;
    tsr_event gathered, reduced;
    int calls;           /* forwards whose backward is still to come */
    int position;        /* in the engine's order */
    int64_t ran_forward; /* forward number (engine) in which it last ran */
    int64_t grad_step;   /* step to which grad belongs; -1: none */
    int64_t final_step;  /* step whose last reduction was made; -1: none */
    bool stale;          /* shard holds elements that their owners have updated since */
};

/* All units of one model. */
struct engine {
    int owners;
    tsr_comm *comm; /* borrowed: units hold it */
    unit **units;   /* in expected order of forward; [0] is the root */
    unit **seen;    /* order of the forward under way */
    int unit_count, seen_count;
    int64_t step;           /* of the tape, of the newest forward; -1 before the first */
    int64_t forward;        /* number of forwards begun */
    tsr_event params_ready; /* compute's point at which the step's parameters were final */
    tsri_mem draining;      /* gradient slot whose reduction is under way; buffer NULL: none */
    tsr_event drained;      /* its end */
};

extern const tsri_module_hooks tsri_unit_hooks;
extern const tsri_grad_sink tsri_unit_sink;

/* gather.c */
tsr_status tsri_unit_unshard(unit *u);
tsr_status tsri_unit_await(unit *u);
tsr_status tsri_unit_reshard(unit *u);
tsr_status tsri_unit_prefetch(unit *u, int direction);
/* reduce.c */
tsr_status tsri_unit_open_grads(unit *u, int64_t step);
tsr_status tsri_unit_reduce(unit *u, int64_t step, bool last);
tsr_status tsri_unit_reduce_last(unit *u, int64_t step);
tsr_status tsri_unit_zero_grads(unit *u);
void tsri_engine_release_draining(engine *e);
/* unit.c */
void tsri_unit_release(void *context);
tsr_stream *tsri_unit_stream(const unit *u, tsri_stream_kind kind);
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
