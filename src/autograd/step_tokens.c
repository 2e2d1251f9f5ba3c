/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step_tokens.c
 * What the step's loss is divided by: the number of labels that count over the whole job, or a
 * number of the program's own. And whether all ranks came with as many micro-batches.
 *
 * One sum over the mesh, in which ranks meet first in a step. Beside its tokens each rank adds its
 * number of micro-batches and the square of it: all numbers are equal where the sum of squares is
 * as small as their sum lets it be. Which numbers there were is asked for in case they are not.
 * Numbers of the program's own are compared by a second call.
 */
#include "autograd_priv.h"

#include <math.h>
#include <string.h>

/* On the device. */
typedef struct sums {
    double tokens, micro_batches, squares;
    double given; /* ranks that came with a number instead of labels */
} sums;

enum {
    SUMMED = 4
};

tsr_status tsri_tokens_open(tsr_tape *tape)
{
    TSR_TRY(
        tsri_comm_buffer(tape->comm, sizeof(sums), TSRI_MEM_OTHER, "token count", &tape->count));
    return TSR_OK;
}

static unsigned whole_mesh(const tsr_tape *tape)
{
    return (1U << tsr_mesh_axis_count(tsr_comm_mesh(tape->comm))) - 1U;
}

static tsr_status check_count(int count)
{
    if (count < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "a step of %d micro-batches, wants at least 1", count);
    }
    return TSR_OK;
}

tsr_status tsri_tokens_check(const tsr_tape *tape, tsr_dtensor *const *labels, int count)
{
    TSR_TRY(check_count(count));
    for (int i = 0; i < count; i++) {
        TSR_TRY(tsri_dtensor_check(labels[i], "labels"));
        if (labels[i]->comm != tape->comm) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "labels of micro-batch %d lie on another comm than the tape", i);
        }
        if (labels[i]->dtype != TSR_I32) {
            return TSR_RAISE(TSR_ERR_INVALID, "labels of micro-batch %d are %s, want i32", i,
                             tsr_dtype_name(labels[i]->dtype));
        }
    }
    return TSR_OK;
}

/* Axes that split labels. */
static unsigned split_axes(const tsr_dtensor *labels)
{
    unsigned mask = 0;

    for (int dim = 0; dim < labels->layout.ndim; dim++) {
        mask |= tsri_rule_mask(&labels->layout, dim);
    }
    return mask;
}

/* Whether this rank counts labels, of which each rank along the axes of whole has all: one does. */
static bool counts_here(const tsr_tape *tape, unsigned whole)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(tsr_comm_mesh(tape->comm)); axis++) {
        if ((whole >> axis & 1U) != 0 && tsr_comm_coord(tape->comm, axis) != 0) {
            return false;
        }
    }
    return true;
}

static tsr_status count_here(const tsr_tape *tape, tsr_dtensor *const *labels, int count)
{
    for (int i = 0; i < count; i++) {
        const bool counts = counts_here(tape, whole_mesh(tape) & ~split_axes(labels[i]));
        tsri_call launch = {.stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE),
                            .label = "token count"};
        tsrk_count_labels args = {.labels = tsri_in(&launch, labels[i]),
                                  .n = counts ? labels[i]->local_count : 0,
                                  .limit = tape->outside,
                                  .ignore_index = TSR_IGNORE_INDEX,
                                  .accumulate = true};

        args.out = tsri_arg_inout(&launch, tape->count, offsetof(sums, tokens), sizeof(double));
        TSR_TRY(TSRI_LAUNCH(&launch, COUNT_LABELS, &args));
    }
    return TSR_OK;
}

/* On every rank alike: of unequal numbers, the least and the most. */
static tsr_status tell_range(const tsr_tape *tape, int count)
{
    double range[2] = {-(double)count, (double)count};
    tsr_stream *stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE);

    TSR_TRY(tsri_write(tape->count, 0, range, sizeof(range), stream));
    TSR_TRY(tsri_comm_all_reduce(tape->comm, whole_mesh(tape), tape->count, 0, 2, TSR_F64, TSRI_MAX,
                                 "numbers of micro-batches"));
    TSR_TRY(tsri_read(tape->count, 0, range, sizeof(range), stream));
    return TSR_RAISE(TSR_ERR_DISAGREE,
                     "tsr_step_begin was called with micro_batch_count %d on this rank, with %.0f "
                     "to %.0f on others",
                     count, -range[0], range[1]);
}

/* Exact as long as micro-batches of all ranks are below 2^26. */
static bool all_equal(const sums *s, int ranks)
{
    const double excess = s->squares * ranks - s->micro_batches * s->micro_batches;

    return excess <= s->micro_batches * s->micro_batches * ranks * 0x1p-51;
}

static bool host_sees(const tsr_tape *tape)
{
    return (tsri_comm_device(tape->comm)->backend->caps & TSR_CAP_HOST) != 0;
}

static tsr_status compare(const tsr_tape *tape, int count)
{
    const int ranks = tsr_mesh_cell_count(tsr_comm_mesh(tape->comm));
    sums s;

    if (!host_sees(tape)) {
        return TSR_OK;
    }
    /* The host has run the compute stream itself: nothing is waited for. */
    TSR_TRY(tsri_stream_sync(tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    memcpy(&s, tape->count->address, sizeof(s));
    if (s.given > 0.0 && s.given < (double)ranks) {
        return TSR_RAISE(TSR_ERR_DISAGREE,
                         "a step begins with labels (tsr_step_begin) on %.0f ranks, with a "
                         "normaliser (tsr_step_begin_with) on %.0f",
                         (double)ranks - s.given, s.given);
    }
    if (!all_equal(&s, ranks)) {
        TSR_TRY(tell_range(tape, count));
    }
    return TSR_OK;
}

tsr_status tsri_tokens_count(tsr_tape *tape, tsr_dtensor *const *labels, int count)
{
    const sums mine = {.micro_batches = count,
                       .squares = (double)count * count,
                       .given = labels == NULL ? 1.0 : 0.0};

    TSR_TRY(tsri_write(tape->count, 0, &mine, sizeof(mine),
                       tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    if (labels != NULL) {
        TSR_TRY(count_here(tape, labels, count));
    }
    TSR_TRY(tsri_comm_all_reduce(tape->comm, whole_mesh(tape), tape->count, 0, SUMMED, TSR_F64,
                                 TSRI_SUM, "token count"));
    TSR_TRY(compare(tape, count));
    tape->label_count = 0;
    if (labels != NULL) {
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
        TSR_TRY(tsri_grow(&tape->labels, &tape->label_capacity, count, sizeof(tape->labels[0])));
        memcpy(tape->labels, labels, (size_t)count * sizeof(tape->labels[0]));
        tape->label_count = count;
    }
    return TSR_OK;
}

void tsri_tokens_look(tsr_tape *tape, const tsr_dtensor *labels)
{
    bool is_counted = tape->label_count == 0 || tape->told_labels || tsr_tape_in_eval(tape);

    for (int i = 0; !is_counted && i < tape->label_count; i++) {
        is_counted = tape->labels[i] == labels;
    }
    if (!is_counted) {
        tape->told_labels = true;
        tsri_log(TSRI_LOG_WARN,
                 "cross_entropy in \"%s\": these labels were not given to tsr_step_begin; the loss "
                 "is divided by the count of those that were",
                 tsri_tape_path(tape));
    }
}

/* ---- a number of the program's own ---- */

tsr_status tsri_normaliser_check(double normaliser, int count)
{
    TSR_TRY(check_count(count));
    if (!isfinite(normaliser) || normaliser <= 0.0) {
        return TSR_RAISE(TSR_ERR_INVALID, "a step's normaliser of %g, wants a number above 0",
                         normaliser);
    }
    return TSR_OK;
}

tsr_status tsri_normaliser_take(tsr_tape *tape, double normaliser, int count)
{
    tsr_stream *stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE);
    double range[2] = {-normaliser, normaliser};

    TSR_TRY(tsri_tokens_count(tape, NULL, count));
    TSR_TRY(tsri_write(tape->count, 0, range, sizeof(range), stream));
    TSR_TRY(tsri_comm_all_reduce(tape->comm, whole_mesh(tape), tape->count, 0, 2, TSR_F64, TSRI_MAX,
                                 "normalisers"));
    if (host_sees(tape)) {
        TSR_TRY(tsri_stream_sync(stream));
        memcpy(range, tape->count->address, sizeof(range));
        if (range[1] > -range[0]) {
            return TSR_RAISE(TSR_ERR_DISAGREE,
                             "tsr_step_begin_with was called with normaliser %g on this rank, with "
                             "%g to %g on others",
                             normaliser, -range[0], range[1]);
        }
    }
    TSR_TRY(tsri_write(tape->count, 0, &normaliser, sizeof(normaliser), stream));
    return TSR_OK;
}

tsr_status tsr_step_tokens(tsr_tape *tape, double *out)
{
    TSRI_WANT(tape, out);

    double count = 0.0;

    TSR_TRY(tsri_step_check_read(tape, "token count"));
    TSR_TRY(tsri_read(tape->count, offsetof(sums, tokens), &count, sizeof(count),
                      tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    *out = count;
    return TSR_OK;
}
