/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 8 */
/* Experts on an axis of their own, beside tensor parallelism on another; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 20,
    DIM = 32,
    EXPERTS = 4,
    WIDE = 24, /* features of one expert */
    FEATURES = EXPERTS * WIDE
};

/* y[b, t, e * WIDE + f] = h[b, t, e * WIDE + f] * sigmoid(score[b, t, e]) */
static tsr_status by_expert_place(tsr_op_axis *axis)
{
    const tsr_op_shapes *shapes = axis->shapes;

    if (axis->in[0].kind == TSR_SHARD && axis->in[0].dim == 2 &&
        shapes->in[1].shape[2] % axis->size) {
        return TSR_RAISE(TSR_ERR_PLACEMENT, "%s: %lld experts over axis \"%s\" of %d",
                         shapes->where, (long long)shapes->in[1].shape[2], axis->name, axis->size);
    }
    tsr_op_place_pointwise(axis); /* batch by batch, or experts by experts */
    return TSR_OK;
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static void by_expert_forward(const tsr_op_work *work)
{
    const float *h = work->in[0].data, *score = work->in[1].data;
    float *y = work->out.data;

    for (int64_t i = 0; i < work->out.count; i++) {
        y[i] = h[i] * sigmoid(score[i / WIDE]);
    }
}

static void by_expert_backward(const tsr_op_work *work)
{
    const float *h = work->in[0].data, *score = work->in[1].data, *dy = work->dout.data;
    float *dh = work->din[0].data, *dscore = work->din[1].data;

    for (int64_t i = 0; i < work->dout.count; i++) {
        const float s = sigmoid(score[i / WIDE]);

        if (dh != NULL) {
            dh[i] = dy[i] * s;
        }
        if (dscore != NULL) {
            dscore[i / WIDE] = (i % WIDE > 0 ? dscore[i / WIDE] : 0) + dy[i] * h[i] * s * (1 - s);
        }
    }
}

static const tsr_custom_op by_expert = {.name = "by_expert",
                                        .place = by_expert_place,
                                        .forward = by_expert_forward,
                                        .backward = by_expert_backward,
                                        .keep_in = 1 << 0 | 1 << 1};

/* x + sum over experts e of sigmoid(router_e x) down_e gelu(up_e x) */
static tsr_status experts_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                  tsr_dtensor **out)
{
    tsr_dtensor *h[2];

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "up"), NULL, &h[0]));
    TSR_TRY(tsr_op_gelu(tape, h[0], &h[0]));
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "router"), NULL, &h[1]));
    TSR_TRY(tsr_op_custom(tape, &by_expert, h, 2, NULL, 0, &h[0]));
    TSR_TRY(tsr_op_linear(tape, h[0], tsr_module_value(self, "down"), NULL, &h[0]));
    return tsr_op_add(tape, in[0], h[0], out);
}

static tsr_status build(tsr_comm *comm, bool split, tsr_module **model)
{
    static const tsr_tp_rule tables[] = {{"{embed,head}", {.kind = TSR_TP_VOCAB}}};
    static const tsr_tp_rule experts[] = {{"experts.{up,router}", {.kind = TSR_TP_COLUMN}},
                                          {"experts.down", {.kind = TSR_TP_ROW}}};
    static const char *const names[] = {"up", "router", "down"};
    const tsr_param_spec specs[] = {{.shape = {FEATURES, DIM},
                                     .ndim = 2,
                                     .init_std = 0.2,
                                     .group_rows = WIDE,
                                     .group_name = "experts"},
                                    {.shape = {EXPERTS, DIM}, .ndim = 2, .init_std = 0.2},
                                    {.shape = {DIM, FEATURES}, .ndim = 2, .init_std = 0.1}};
    tsr_module *part[3];

    TSR_TRY(tsr_embedding_create(comm, LESSON_VOCAB, DIM, 0.5, &part[0]));
    TSR_TRY(tsr_module_create(comm, experts_forward, NULL, NULL, &part[1]));
    TSR_TRY(
        tsr_linear_create(comm, &(tsr_linear_options){.in = DIM, .out = LESSON_VOCAB}, &part[2]));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(tsr_module_add_param(part[1], names[i], &specs[i], NULL));
    }
    TSR_TRY(tsr_sequential_create(comm, model));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(
            tsr_module_add_child(*model, (const char *[]){"embed", "experts", "head"}[i], part[i]));
    }
    if (split) {
        TSR_TRY(tsr_tp_apply(*model, "tp", tables, 1));
        TSR_TRY(tsr_tp_apply(*model, "expert", experts, 2)); /* the same tool on another axis */
    }
    TSR_TRY(tsr_fully_shard(part[1], NULL));
    TSR_TRY(tsr_fully_shard(*model, NULL));
    return tsr_module_materialize(*model, 1);
}

static tsr_status train(tsr_world *world, const tsr_mesh_axis *axes, int axis_count, double *losses)
{
    FILE *plan = axis_count > 1 && tsr_world_is_speaker(world) ? stdout : NULL;
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, axis_count > 1, &model));
    TSR_TRY(lesson_train(comm, model, STEPS, losses, plan));
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static tsr_status run(tsr_world *world)
{
    double a[STEPS], b[STEPS];

    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 2}, {"expert", 2}, {"tp", 2}}, 3, a));
    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 8}}, 1, b));
    if (tsr_world_is_speaker(world)) {
        lesson_compare("shard=2 expert=2 tp=2", a, "shard=8", b, STEPS);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
