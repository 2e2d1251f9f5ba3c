/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file facts.c
 * What ranks compare once a step: its number, whether a label or a token id was out of range, and
 * whether some rank's loss had a gradient, of each micro-batch (a rank that leaves all of it out
 * plays a backward without).
 *
 * Kernels look at ids where they are used, and note the first that is outside in a few words on the
 * device. One maximum over the mesh, after the last backward and so before any update, tells every
 * rank whether somebody found one, and whether all are at the same step. Where the host addresses
 * the device's memory it has run the compute stream itself, and looking costs nothing.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    GRADED = 32, /* first micro-batches of a step, which are looked at */
    COMPARED = 3 + GRADED,
    NONE = -1
};

/* On the device. */
typedef struct facts {
    double found, step, minus_step; /* the maximum is taken of these */
    double graded[GRADED];          /* and these: 0 where this rank's loss had no gradient */
    int64_t where[4];               /* of this rank's first: place, id, limit, index of the check */
} facts;

tsr_status tsri_facts_open(tsr_tape *tape)
{
    TSR_TRY(
        tsri_comm_buffer(tape->comm, sizeof(facts), TSRI_MEM_OTHER, "step facts", &tape->facts));
    return TSR_OK;
}

tsr_status tsri_facts_begin(tsr_tape *tape)
{
    facts begin = {
        .step = (double)tape->step, .minus_step = -(double)tape->step, .where = {0, 0, 0, NONE}};

    for (int i = 0; i < GRADED; i++) {
        begin.graded[i] = 1.0;
    }
    tape->check_count = 0;
    tape->facts_due = true;
    TSR_TRY(tsri_write(tape->facts, 0, &begin, sizeof(begin),
                       tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

tsr_status tsri_facts_ungraded(tsr_tape *tape)
{
    const double none = 0.0;

    if (tape->frame->micro_batch < GRADED) {
        TSR_TRY(tsri_write(
            tape->facts, offsetof(facts, graded) + (size_t)tape->frame->micro_batch * sizeof(none),
            &none, sizeof(none), tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    }
    return TSR_OK;
}

tsr_status tsri_facts_look(tsri_op_call *call, int i, int64_t limit, const char *what, bool ignores)
{
    tsr_tape *tape = call->tape;
    const tsr_dtensor *ids = call->in[i];
    tsri_call launch = tsri_op_call_begin(call);
    tsri_ids_check *check = NULL;
    tsrk_check_ids args = {.ids = tsri_in(&launch, ids),
                           .n = ids->local_count,
                           .limit = limit,
                           .call = tape->check_count,
                           .ignore_index = TSR_IGNORE_INDEX,
                           .ignores = ignores};

    if (tape->frame->recomputing || tape->outside != 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_grow(&tape->checks, &tape->check_capacity, tape->check_count + 1,
                      sizeof(tape->checks[0])));
    check = &tape->checks[tape->check_count++];
    *check = (tsri_ids_check){.op = call->def->name,
                              .path = call->path,
                              .what = what,
                              .micro_batch = tape->frame->micro_batch,
                              .ndim = ids->layout.ndim};
    memcpy(check->local_shape, ids->local_shape, sizeof(check->local_shape));
    memcpy(check->local_offset, ids->local_offset, sizeof(check->local_offset));
    tape->facts_due = true;
    args.found = tsri_arg_inout(&launch, tape->facts, offsetof(facts, found), sizeof(double));
    args.where = tsri_arg_inout(&launch, tape->facts, offsetof(facts, where),
                                sizeof(((facts *)NULL)->where));
    TSR_TRY(TSRI_LAUNCH(&launch, CHECK_IDS, &args));
    return TSR_OK;
}

/* "[3, 17]" of the whole tensor, of element place of this rank's piece. */
static const char *position(const tsri_ids_check *check, int64_t place, char *text, size_t size)
{
    int64_t at[TSR_MAX_DIMS] = {0};

    for (int d = check->ndim - 1; d >= 0; d--) {
        at[d] = place % check->local_shape[d] + check->local_offset[d];
        place /= check->local_shape[d];
    }
    return tsri_format_shape(at, check->ndim, text, size);
}

static tsr_status raise_outside(const tsr_tape *tape, const int64_t *where)
{
    const tsri_ids_check *check = &tape->checks[where[3]];
    const bool is_label = strcmp(check->what, "label") == 0;
    char text[96];
    char pass[32] = "an evaluation";

    if (check->micro_batch >= 0) {
        (void)snprintf(pass, sizeof(pass), "micro-batch %d", check->micro_batch);
    }
    return TSR_RAISE(TSR_ERR_INVALID,
                     "%s %lld at %s of %s is outside [0, %lld), the %s of %s in \"%s\"; %s"
                     "tsr_tape_ignore_outside lets it pass",
                     check->what, (long long)where[1],
                     position(check, where[0], text, sizeof(text)), pass, (long long)where[2],
                     is_label ? "vocabulary" : "table", check->op, check->path,
                     is_label ? "-100 does not count, " : "");
}

/* Every rank comes here, since every rank has seen the same maximum. */
static tsr_status tell_outside(const tsr_tape *tape, const facts *f)
{
    const tsr_status mine = f->where[3] != NONE ? raise_outside(tape, f->where) : TSR_OK;
    const tsr_status all = tsr_world_agree(tsr_comm_world(tape->comm), mine);

    if (mine == TSR_OK && all == TSR_ERR_REMOTE) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s", tsr_error_message());
    }
    return all;
}

static tsr_status check_graded(const facts *f)
{
    for (int i = 0; i < GRADED; i++) {
        if (f->graded[i] <= 0.0) {
            return TSR_RAISE(TSR_ERR_STATE,
                             "backward of a loss that no rank made from anything that has a "
                             "gradient, in micro-batch %d",
                             i);
        }
    }
    return TSR_OK;
}

tsr_status tsri_facts_compare(tsr_tape *tape)
{
    const int axes = tsr_mesh_axis_count(tsr_comm_mesh(tape->comm));
    const unsigned caps = tsri_comm_device(tape->comm)->backend->caps;
    facts f = {.found = 0.0};

    if (!tape->facts_due) {
        return TSR_OK;
    }
    tape->facts_due = false;
    TSR_TRY(tsri_comm_all_reduce(tape->comm, (1U << axes) - 1U, tape->facts, 0, COMPARED, TSR_F64,
                                 TSRI_MAX, "step facts"));
    if ((caps & TSR_CAP_HOST) == 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_sync(tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    memcpy(&f, tape->facts->address, sizeof(f));
    if (f.step + f.minus_step > 0.0) {
        return TSR_RAISE(
            TSR_ERR_DISAGREE,
            "tsr_step_begin was called with step %lld on this rank, with steps %.0f to "
            "%.0f on others",
            (long long)tape->step, -f.minus_step, f.step);
    }
    TSR_TRY(check_graded(&f));
    if (f.found > 0.0) {
        TSR_TRY(tell_outside(tape, &f));
    }
    return TSR_OK;
}
