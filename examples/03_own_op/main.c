/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* An operation of our own, with a placement rule and a gradient, on two meshes; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 20,
    DIM = 32,
    WIDE = 96
};

/* token_shift: y[b, t, d] = (1 - mix[d]) x[b, t, d] + mix[d] x[b, t - 1, d], with 0 before t = 0.
 *
 * On one axis: batch rows know nothing of each other, so x Shard(0) stays, with mix whole. Nor do
 * features: x Shard(2) stays, with mix Shard(0). Positions do: x Shard(1) has to be whole. */
static tsr_status shift_place(tsr_op_axis *axis)
{
    const bool by_feature = axis->in[0].kind == TSR_SHARD && axis->in[0].dim == 2;

    if (!by_feature && !(axis->in[0].kind == TSR_SHARD && axis->in[0].dim == 0)) {
        axis->in[0] = tsr_replicate();
    }
    axis->in[1] = by_feature ? tsr_shard(0) : tsr_replicate();
    axis->out = axis->in[0];
    return TSR_OK;
}

static void shift_forward(const tsr_op_work *work)
{
    const int64_t seq = work->in[0].shape[1], dim = work->in[0].shape[2];
    const float *x = work->in[0].data, *mix = work->in[1].data;
    float *y = work->out.data;

    for (int64_t i = 0; i < work->out.count; i++) {
        const float m = mix[i % dim], before = i / dim % seq > 0 ? x[i - dim] : 0;

        y[i] = (1 - m) * x[i] + m * before;
    }
}

/* din[i].data is NULL where nobody wants that gradient. We write and never add: adds_grad is 0. */
static void shift_backward(const tsr_op_work *work)
{
    const int64_t seq = work->in[0].shape[1], dim = work->in[0].shape[2];
    const float *x = work->in[0].data, *mix = work->in[1].data, *dy = work->dout.data;
    float *dx = work->din[0].data, *dmix = work->din[1].data;

    for (int64_t d = 0; dmix != NULL && d < dim; d++) {
        dmix[d] = 0; /* also on a rank without rows */
    }
    for (int64_t i = 0; i < work->dout.count; i++) {
        const float before = i / dim % seq > 0 ? x[i - dim] : 0;

        if (dmix != NULL) {
            dmix[i % dim] += dy[i] * (before - x[i]);
        }
        if (dx != NULL) {
            const float m = mix[i % dim], after = i / dim % seq < seq - 1 ? dy[i + dim] : 0;

            dx[i] = (1 - m) * dy[i] + m * after;
        }
    }
}

static const tsr_custom_op token_shift = {.name = "token_shift",
                                          .place = shift_place,
                                          .forward = shift_forward,
                                          .backward = shift_backward,
                                          .keep_in = 1 << 0 | 1 << 1};

/* x + down(gelu(token_shift(up x, mix))) */
static tsr_status mixer_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_dtensor *h[2] = {NULL, tsr_module_value(self, "mix")};

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "up"), NULL, &h[0]));
    TSR_TRY(tsr_op_custom(tape, &token_shift, h, 2, NULL, 0, &h[0]));
    TSR_TRY(tsr_op_gelu(tape, h[0], &h[0]));
    TSR_TRY(tsr_op_linear(tape, h[0], tsr_module_value(self, "down"), NULL, &h[0]));
    return tsr_op_add(tape, in[0], h[0], out);
}

static tsr_status build(tsr_comm *comm, bool tp, tsr_module **model)
{
    static const tsr_tp_rule plan[] = {{"mixer.{up,mix}", {.kind = TSR_TP_COLUMN}},
                                       {"mixer.down", {.kind = TSR_TP_ROW}},
                                       {"{embed,head}", {.kind = TSR_TP_VOCAB}}};
    static const char *const names[] = {"embed", "mixer", "head"};
    const tsr_param_spec up = {.shape = {WIDE, DIM}, .ndim = 2, .init_std = 0.2};
    const tsr_param_spec mix = {.shape = {WIDE}, .ndim = 1, .init_mean = 0.5};
    const tsr_param_spec down = {.shape = {DIM, WIDE}, .ndim = 2, .init_std = 0.1};
    tsr_module *part[3];

    TSR_TRY(tsr_embedding_create(comm, LESSON_VOCAB, DIM, 0.5, &part[0]));
    TSR_TRY(tsr_module_create(comm, mixer_forward, NULL, NULL, &part[1]));
    TSR_TRY(tsr_module_add_param(part[1], "up", &up, NULL));
    TSR_TRY(tsr_module_add_param(part[1], "mix", &mix, NULL));
    TSR_TRY(tsr_module_add_param(part[1], "down", &down, NULL));
    TSR_TRY(
        tsr_linear_create(comm, &(tsr_linear_options){.in = DIM, .out = LESSON_VOCAB}, &part[2]));
    TSR_TRY(tsr_sequential_create(comm, model));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(tsr_module_add_child(*model, names[i], part[i]));
    }
    TSR_TRY(tp ? tsr_tp_apply(*model, "tp", plan, 3) : TSR_OK);
    TSR_TRY(tsr_fully_shard(part[1], NULL));
    TSR_TRY(tsr_fully_shard(*model, NULL));
    return tsr_module_materialize(*model, 1);
}

/* Train on the mesh of these axes. */
static tsr_status train(tsr_world *world, const tsr_mesh_axis *axes, int axis_count, double *losses)
{
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, axis_count > 1, &model));
    TSR_TRY(lesson_train(comm, model, NULL, STEPS, losses, NULL));
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
