/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file lesson.h
 * What the lessons have in common, so that each shows its topic alone: a batch to learn, the loop
 * of 01_placements, a main.
 */
#pragma once

#include <math.h>
#include <tessera/tessera.h>

enum {
    LESSON_BATCH = 8,
    LESSON_SEQ = 16,
    LESSON_VOCAB = 64
};

/* ids [8, 16] and what is to follow each, split over the data axes, and over axis too unless it is
 * NULL: every mesh gets the same. */
static inline tsr_status lesson_batch(tsr_comm *comm, const char *axis, tsr_dtensor **ids,
                                      tsr_dtensor **labels)
{
    int32_t token[LESSON_BATCH * LESSON_SEQ], next[LESSON_BATCH * LESSON_SEQ];
    int64_t shape[2], first[2];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(comm, (int64_t[]){LESSON_BATCH, LESSON_SEQ}, 2, &layout));
    TSR_TRY(axis != NULL ? tsr_layout_place(&layout, axis, tsr_shard(0)) : TSR_OK);
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(comm), shape, first));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        token[i] = (int32_t)((first[0] * LESSON_SEQ + i) * 29 % LESSON_VOCAB);
        next[i] = (token[i] * 3 + 1) % LESSON_VOCAB;
    }
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "ids", ids));
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "labels", labels));
    TSR_TRY(tsr_dtensor_write(*ids, token));
    return tsr_dtensor_write(*labels, next);
}

/* Train a materialised model, whose loss after each step goes to losses[steps], then print the plan
 * to plan (NULL: do not). axis: as lesson_batch's. */
static inline tsr_status lesson_train(tsr_comm *comm, tsr_module *model, const char *axis,
                                      int steps, double *losses, FILE *plan)
{
    tsr_dtensor *ids, *labels, *x;
    tsr_param *const *params;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    int count;

    TSR_TRY(lesson_batch(comm, axis, &ids, &labels));
    TSR_TRY(tsr_module_params(model, &params, &count));
    TSR_TRY(tsr_optimizer_create(comm, params, count, NULL, &optimizer));
    TSR_TRY(tsr_tape_create(comm, &tape));
    for (int step = 0; step < steps; step++) {
        TSR_TRY(tsr_step_begin(tape, step, &labels, 1));
        TSR_TRY(tsr_tape_begin(tape, 0));
        TSR_TRY(tsr_module_call(model, tape, &ids, 1, &x));
        TSR_TRY(tsr_op_cross_entropy(tape, x, labels, &x));
        TSR_TRY(tsr_backward(tape, x));
        TSR_TRY(tsr_clip_grad_norm(optimizer, tape, 1.0));
        TSR_TRY(tsr_optimizer_step(optimizer, 0.003));
        TSR_TRY(tsr_step_loss(tape, &losses[step]));
        TSR_TRY(tsr_step_end(tape));
    }
    TSR_TRY(plan != NULL ? tsr_plan_print(model, tape, plan) : TSR_OK);
    tsr_tape_destroy(&tape);
    tsr_optimizer_destroy(&optimizer);
    tsr_dtensor_release(&ids);
    tsr_dtensor_release(&labels);
    return TSR_OK;
}

/* Print some of two runs' losses, and by how much they differ at most. */
static inline void lesson_compare(const char *first, const double *a, const char *second,
                                  const double *b, int steps)
{
    double worst = 0;

    for (int step = 0; step < steps; step++) {
        worst = fmax(worst, fabs(a[step] - b[step]));
        if (step % 5 == 4) {
            printf("step %2d: loss %.5f on %s, %.5f on %s\n", step, a[step], first, b[step],
                   second);
        }
    }
    printf("largest difference: %.1e\n", worst);
}

static inline int lesson_main(int argc, char **argv, tsr_status (*run)(tsr_world *world))
{
    tsr_world *world = NULL;

    if (tsr_world_open(&argc, &argv, NULL, &world) != TSR_OK || run(world) != TSR_OK) {
        tsr_error_print(stderr);
        tsr_world_abort(world, 1);
    }
    tsr_world_close(&world);
    return 0;
}
