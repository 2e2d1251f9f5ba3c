/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* No language model: points on three spirals, a loss of one's own, evaluation; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 60,
    CLASSES = 3,
    TRAIN = 192, /* points */
    TEST = 90,
    WIDE = 32
};

/* ---- data ---- */

typedef struct points {
    tsr_dtensor *x, *target; /* [n, 2]; [n, classes], 1 at the class */
    int64_t count, first;    /* of this rank */
} points;

/* Point i of n: class i % 3, on its spiral, a little beside it. */
static void make_point(int64_t i, int64_t n, double shift, float *x, float *target)
{
    const int64_t number = i / CLASSES; /* on its spiral */
    const double along = ((double)number + shift) * CLASSES / (double)n;
    const double beside = 0.15 * sin(12.9898 * (double)i + 78.233 * shift);
    const double angle = 4 * along + 2.0944 * (double)(i % CLASSES) + beside;

    x[0] = (float)((0.2 + along) * cos(angle));
    x[1] = (float)((0.2 + along) * sin(angle));
    for (int c = 0; c < CLASSES; c++) {
        target[c] = c == i % CLASSES ? 1 : 0;
    }
}

/* n points, split over the data axes: every mesh gets the same. */
static tsr_status make_points(tsr_comm *comm, int64_t n, double shift, points *out)
{
    float x[TRAIN * 2], target[TRAIN * CLASSES];
    int64_t shape[2], first[2];
    tsr_layout places, classes;

    TSR_TRY(tsr_layout_data(comm, (int64_t[]){n, 2}, 2, &places));
    TSR_TRY(tsr_layout_data(comm, (int64_t[]){n, CLASSES}, 2, &classes));
    TSR_TRY(tsr_layout_local(&places, tsr_comm_rank(comm), shape, first));
    out->count = shape[0];
    out->first = first[0];
    for (int64_t i = 0; i < out->count; i++) {
        make_point(out->first + i, n, shift, &x[2 * i], &target[CLASSES * i]);
    }
    TSR_TRY(tsr_dtensor_create(comm, &places, TSR_F32, "points", &out->x));
    TSR_TRY(tsr_dtensor_create(comm, &classes, TSR_F32, "targets", &out->target));
    TSR_TRY(tsr_dtensor_write(out->x, x));
    return tsr_dtensor_write(out->target, target);
}

/* ---- model and loss ---- */

static tsr_status linear(tsr_module *self, tsr_tape *tape, const char *w, const char *b,
                         tsr_dtensor **x)
{
    return tsr_op_linear(tape, *x, tsr_module_value(self, w), tsr_module_value(self, b), x);
}

/* The probabilities of the classes, [n, classes]. */
static tsr_status forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                          tsr_dtensor **out)
{
    tsr_dtensor *h = in[0];

    (void)in_count;
    TSR_TRY(linear(self, tape, "w1", "b1", &h));
    TSR_TRY(tsr_op_tanh(tape, h, &h));
    TSR_TRY(linear(self, tape, "w2", "b2", &h));
    TSR_TRY(tsr_op_relu(tape, h, &h));
    TSR_TRY(linear(self, tape, "w3", "b3", &h));
    return tsr_op_softmax(tape, h, out);
}

/* Brier's score: the mean over points of the sum over classes of (p - target)^2. */
static tsr_status brier(tsr_tape *tape, tsr_dtensor *p, tsr_dtensor *target, tsr_dtensor **out)
{
    tsr_dtensor *d;

    TSR_TRY(tsr_op_scale(tape, target, -1, &d));
    TSR_TRY(tsr_op_add(tape, p, d, &d));
    TSR_TRY(tsr_op_multiply(tape, d, d, &d));
    TSR_TRY(tsr_op_sum(tape, d, 1, false, &d));
    return tsr_op_mean(tape, d, 0, false, out);
}

static tsr_status build(tsr_comm *comm, bool tp, tsr_module **model)
{
    static const struct {
        const char *name;
        tsr_param_spec spec;
    } params[] = {{"w1", {.shape = {WIDE, 2}, .ndim = 2, .init_std = 1.5}},
                  {"b1", {.shape = {WIDE}, .ndim = 1, .init_std = 1}},
                  {"w2", {.shape = {WIDE, WIDE}, .ndim = 2, .init_std = 0.2}},
                  {"b2", {.shape = {WIDE}, .ndim = 1}},
                  {"w3", {.shape = {CLASSES, WIDE}, .ndim = 2, .init_std = 0.2}},
                  {"b3", {.shape = {CLASSES}, .ndim = 1}}};
    static const tsr_tp_rule plan[] = {{"{w1,b1}", {.kind = TSR_TP_COLUMN}},
                                       {"w2", {.kind = TSR_TP_ROW}}};

    TSR_TRY(tsr_module_create(comm, forward, NULL, NULL, model));
    for (int i = 0; i < 6; i++) {
        TSR_TRY(tsr_module_add_param(*model, params[i].name, &params[i].spec, NULL));
    }
    TSR_TRY(tp ? tsr_tp_apply(*model, "tp", plan, 2) : TSR_OK);
    TSR_TRY(tsr_fully_shard(*model, NULL));
    return tsr_module_materialize(*model, 1);
}

/* ---- training and evaluation ---- */

static tsr_status train_step(tsr_tape *tape, tsr_optimizer *optimizer, tsr_module *model,
                             const points *data, int step, double *loss)
{
    tsr_dtensor *y;

    TSR_TRY(tsr_step_begin_with(tape, step, 1, 1)); /* no labels: the loss is a mean already */
    TSR_TRY(tsr_tape_begin(tape, 0));
    TSR_TRY(tsr_module_call(model, tape, &data->x, 1, &y));
    TSR_TRY(brier(tape, y, data->target, &y));
    TSR_TRY(tsr_backward(tape, y));
    TSR_TRY(tsr_clip_grad_norm(optimizer, tape, 1));
    TSR_TRY(tsr_optimizer_step(optimizer, 0.02));
    TSR_TRY(tsr_step_loss(tape, loss));
    return tsr_step_end(tape);
}

/* Of this rank's points those whose class is the likeliest. */
static int count_hits(const points *data, const float *p)
{
    int hits = 0;

    for (int64_t i = 0; i < data->count; i++) {
        const float *row = &p[i * CLASSES];
        int best = 0;

        for (int c = 1; c < CLASSES; c++) {
            best = row[c] > row[best] ? c : best;
        }
        hits += best == (data->first + i) % CLASSES;
    }
    return hits;
}

/* A number of each rank, summed over those that have different points. */
static tsr_status sum_over_data(tsr_comm *comm, float mine, float *out)
{
    tsr_dtensor *terms, *sum;
    tsr_layout whole, partial;

    TSR_TRY(tsr_layout_init(tsr_comm_mesh(comm), NULL, 0, &whole));
    partial = whole;
    TSR_TRY(tsr_layout_place(&partial, "shard", tsr_partial()));
    TSR_TRY(tsr_dtensor_create(comm, &partial, TSR_F32, "hits", &terms));
    TSR_TRY(tsr_dtensor_write(terms, &mine));
    TSR_TRY(tsr_dtensor_redistribute(terms, &whole, &sum));
    TSR_TRY(tsr_dtensor_read(sum, out));
    tsr_dtensor_release(&terms);
    tsr_dtensor_release(&sum);
    return TSR_OK;
}

static tsr_status evaluate(tsr_comm *comm, tsr_tape *tape, tsr_module *model, const points *data,
                           const char *what)
{
    float p[TEST * CLASSES], hits;
    tsr_dtensor *y, *score;
    double loss;

    TSR_TRY(tsr_eval_begin(tape));
    TSR_TRY(tsr_module_call(model, tape, &data->x, 1, &y));
    TSR_TRY(tsr_dtensor_read(y, p));
    TSR_TRY(brier(tape, y, data->target, &score));
    TSR_TRY(tsr_eval_loss(tape, score, &loss, NULL));
    TSR_TRY(tsr_eval_end(tape));
    TSR_TRY(sum_over_data(comm, (float)count_hits(data, p), &hits));
    if (tsr_world_is_speaker(tsr_comm_world(comm))) {
        printf("%s: score %.3f, %.0f of %d unseen points right\n", what, loss, (double)hits, TEST);
    }
    return TSR_OK;
}

static tsr_status train(tsr_world *world, const tsr_mesh_axis *axes, int axis_count, double *losses)
{
    points seen, unseen;
    tsr_param *const *params;
    tsr_optimizer *optimizer;
    tsr_module *model;
    tsr_tape *tape;
    tsr_mesh *mesh;
    tsr_comm *comm;
    int count;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, axis_count > 1, &model));
    TSR_TRY(make_points(comm, TRAIN, 0, &seen));
    TSR_TRY(make_points(comm, TEST, 0.5, &unseen));
    TSR_TRY(tsr_module_params(model, &params, &count));
    TSR_TRY(tsr_optimizer_create(comm, params, count, NULL, &optimizer));
    TSR_TRY(tsr_tape_create(comm, &tape));
    TSR_TRY(evaluate(comm, tape, model, &unseen, "before"));
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY(train_step(tape, optimizer, model, &seen, step, &losses[step]));
    }
    TSR_TRY(evaluate(comm, tape, model, &unseen, "after"));
    tsr_tape_destroy(&tape);
    tsr_optimizer_destroy(&optimizer);
    for (int i = 0; i < 2; i++) {
        points *data = i == 0 ? &seen : &unseen;

        tsr_dtensor_release(&data->x);
        tsr_dtensor_release(&data->target);
    }
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static tsr_status run(tsr_world *world)
{
    double a[STEPS], b[STEPS];

    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 4}}, 1, a));
    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 2}, {"tp", 2}}, 2, b));
    if (tsr_world_is_speaker(world)) {
        lesson_compare("shard=4", a, "shard=2 tp=2", b, STEPS);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
