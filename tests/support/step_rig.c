/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/step_rig.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

#include "autograd/param.h"
#include "fsdp/fsdp.h"
#include "support/tsr_test.h"

enum {
    BATCH = 4,
    SEQ = 3
};

static tsr_status block_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "weight"), NULL, out));
    TSR_TRY(tsr_op_gelu(tape, *out, out));
    return TSR_OK;
}

static tsr_status split_sequence(const step_rig *r, tsr_dtensor *x, tsr_dtensor **out)
{
    tsr_layout layout = *tsr_dtensor_layout(x);

    *out = x;
    if (r->splits >= 0) {
        layout.place[r->splits] = (tsr_placement){.kind = TSR_SHARD, .dim = 1};
        TSR_TRY(tsr_op_redistribute(r->tape, x, &layout, out));
    }
    return TSR_OK;
}

static tsr_status model_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    step_rig *r = self;
    tsr_dtensor *embed = tsr_module_value(r->model, "embed");
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], embed, &h));
    TSR_TRY(split_sequence(r, h, &h));
    TSR_TRY(tsr_module_call(r->block, tape, &h, 1, &h));
    TSR_TRY(tsr_op_linear(tape, h, embed, NULL, out));
    return TSR_OK;
}

static tsr_status open_model(step_rig *r, const step_rig_options *o)
{
    const tsr_param_spec embed = {.shape = {STEP_VOCAB, STEP_DIM}, .ndim = 2, .init_std = 0.6};
    const tsr_param_spec weight = {.shape = {STEP_DIM, STEP_DIM}, .ndim = 2, .init_std = 0.6};
    tsr_param *const *params = NULL;
    int count = 0;

    TSR_TRY(tsr_module_create(r->comm, model_forward, r, NULL, &r->model));
    TSR_TRY(tsr_module_add_param(r->model, "embed", &embed, NULL));
    TSR_TRY(tsr_module_create(r->comm, block_forward, NULL, NULL, &r->block));
    TSR_TRY(tsr_module_add_param(r->block, "weight", &weight, NULL));
    TSR_TRY(tsr_module_add_child(r->model, "block", r->block));
    TSR_TRY(tsr_fully_shard(r->block, &o->unit));
    TSR_TRY(tsr_fully_shard(r->model, &o->unit));
    TSR_TRY(tsr_module_materialize(r->model, 5));
    TSR_TRY(tsr_module_params(r->model, &params, &count));
    for (int i = 0; i < (o->two_optimizers ? count : 1); i++) {
        TSR_TRY(tsr_optimizer_create(r->comm, params + i, o->two_optimizers ? 1 : count,
                                     &o->optimizer, &r->optimizer[i]));
    }
    return TSR_OK;
}

static tsr_status open_hidden(step_rig *r)
{
    const int64_t shape[] = {BATCH, SEQ, STEP_DIM};
    float values[BATCH * SEQ * STEP_DIM];
    int64_t local[TSR_MAX_DIMS];
    int64_t first[TSR_MAX_DIMS];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(r->comm, shape, 3, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), local, first));
    for (int64_t i = 0; i < local[0] * SEQ * STEP_DIM; i++) {
        values[i] = (float)((first[0] * SEQ * STEP_DIM + i) * 13 % 17) / 17.0F - 0.4F;
    }
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_F32, "hidden", &r->hidden));
    TSR_TRY(tsr_dtensor_write(r->hidden, values));
    return TSR_OK;
}

static tsr_status open_batches(step_rig *r)
{
    const int64_t shape[] = {BATCH, SEQ};
    int64_t local[TSR_MAX_DIMS];
    int64_t first[TSR_MAX_DIMS];
    int32_t ids[BATCH * SEQ];
    int32_t labels[BATCH * SEQ];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), local, first));
    for (int m = 0; m < STEP_MICRO; m++) {
        for (int64_t i = 0; i < local[0] * SEQ; i++) {
            const int64_t at = first[0] * SEQ + i;

            ids[i] = (int32_t)((at * 5 + m * 3) % STEP_VOCAB);
            labels[i] = (int32_t)((at * 7 + m) % STEP_DIM);
        }
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids[m]));
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels[m]));
        TSR_TRY(tsr_dtensor_write(r->ids[m], ids));
        TSR_TRY(tsr_dtensor_write(r->labels[m], labels));
    }
    return TSR_OK;
}

tsr_status step_rig_open(const step_rig_options *options, step_rig *rig)
{
    const tsr_world_options cpu = {.backend = "cpu", .threads = 1};
    const int size = tsr_test_size();
    const tsr_mesh_axis axes[] = {{"replicate", size > 2 ? size / 2 : 1},
                                  {"shard", size > 2 ? 2 : size}};
    const tsr_mesh_axis copies[] = {{"copies", size}};
    const tsr_mesh_axis split[] = {{"shard", 2}, {"tp", 2}};
    const tsr_comm_options checked = {.record = true, .race_check = true};
    const int skip = size > 2 ? 0 : 1;

    *rig = (step_rig){.splits = options->tp ? 1 : -1};
    TSR_TRY(tsr_world_open(NULL, NULL, &cpu, &rig->world));
    if (options->single) {
        TSR_TRY(tsr_mesh_create(size, copies, 1, NULL, &rig->mesh));
    } else if (options->tp) {
        TSR_TRY(tsr_mesh_create(size, split, 2, NULL, &rig->mesh));
    } else {
        TSR_TRY(tsr_mesh_create(size, axes + skip, 2 - skip, NULL, &rig->mesh));
    }
    TSR_TRY(tsr_comm_open(rig->world, rig->mesh, &checked, &rig->comm));
    if (options->single) {
        TSR_TRY(tsri_comm_claim_axis(rig->comm, "copies", "one rank"));
    }
    if (options->tp) {
        TSR_TRY(tsri_comm_claim_axis(rig->comm, "tp", "tp"));
    }
    TSR_TRY(open_model(rig, options));
    TSR_TRY(tsr_tape_create(rig->comm, &rig->tape));
    TSR_TRY(open_batches(rig));
    TSR_TRY(open_hidden(rig));
    return TSR_OK;
}

void step_rig_close(step_rig *rig)
{
    for (int m = 0; m < STEP_MICRO; m++) {
        tsr_dtensor_release(&rig->ids[m]);
        tsr_dtensor_release(&rig->labels[m]);
    }
    tsr_dtensor_release(&rig->hidden);
    if (rig->comm != NULL) {
        CHECK_EQ(tsri_recorder_race_count(tsri_comm_device(rig->comm)), 0);
    }
    tsr_tape_destroy(&rig->tape);
    tsr_optimizer_destroy(&rig->optimizer[0]);
    tsr_optimizer_destroy(&rig->optimizer[1]);
    tsr_module_release(&rig->model);
    tsr_comm_release(&rig->comm);
    tsr_mesh_release(&rig->mesh);
    tsr_world_close(&rig->world);
}

tsr_status step_rig_begin(step_rig *rig, int64_t step, int micro_batches)
{
    TSR_TRY(tsr_step_begin(rig->tape, step, rig->labels, micro_batches));
    return TSR_OK;
}

tsr_status step_rig_forward(step_rig *rig, int micro, double factor, tsr_dtensor **loss)
{
    tsr_dtensor *logits = NULL;

    TSR_TRY(tsr_tape_begin(rig->tape, micro));
    TSR_TRY(tsr_module_call(rig->model, rig->tape, &rig->ids[micro], 1, &logits));
    TSR_TRY(tsr_op_cross_entropy(rig->tape, logits, rig->labels[micro], loss));
    for (int times = factor != 1.0 ? 2 : 0; times > 0; times--) {
        TSR_TRY(tsr_op_scale(rig->tape, *loss, factor, loss));
    }
    return TSR_OK;
}

tsr_status step_rig_micro(step_rig *rig, int micro, double factor)
{
    tsr_dtensor *loss = NULL;

    TSR_TRY(step_rig_forward(rig, micro, factor, &loss));
    TSR_TRY(tsr_backward(rig->tape, loss));
    return TSR_OK;
}

tsr_status step_rig_block(step_rig *rig, int micro)
{
    tsr_dtensor *x = rig->hidden;

    TSR_TRY(tsr_tape_begin(rig->tape, micro));
    TSR_TRY(split_sequence(rig, x, &x));
    TSR_TRY(tsr_module_call(rig->block, rig->tape, &x, 1, &x));
    TSR_TRY(tsr_op_cross_entropy(rig->tape, x, rig->labels[micro], &x));
    TSR_TRY(tsr_backward(rig->tape, x));
    return TSR_OK;
}

tsr_status step_rig_run(step_rig *rig, int64_t step, int micro_batches, double factor)
{
    TSR_TRY(step_rig_begin(rig, step, micro_batches));
    for (int m = 0; m < micro_batches; m++) {
        TSR_TRY(step_rig_micro(rig, m, factor));
    }
    return TSR_OK;
}

tsr_status step_rig_read(const step_rig *rig, float *out)
{
    tsr_param *const *params = NULL;
    int count = 0;
    int64_t at = 0;

    memset(out, 0, STEP_ELEMENTS * sizeof(float));
    TSR_TRY(tsr_module_params(rig->model, &params, &count));
    for (int i = 0; i < count; i++) {
        const tsr_param *p = params[i];

        TSR_TRY(tsri_read(p->master.buffer, p->master.offset, out + at,
                          (size_t)tsri_param_own_count(p) * sizeof(float),
                          tsri_comm_stream(rig->comm, TSRI_STREAM_COMPUTE)));
        at += tsri_param_own_count(p);
    }
    return TSR_OK;
}

bool step_rig_near(const step_rig *rig, const float *whole, double tolerance)
{
    tsr_param *const *params = NULL;
    float own[STEP_ELEMENTS];
    int64_t base = 0;
    int64_t at = 0;
    int count = 0;

    if (step_rig_read(rig, own) != TSR_OK ||
        tsr_module_params(rig->model, &params, &count) != TSR_OK) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        const tsr_param *p = params[i];

        const tsri_block b = p->master.piece.block;
        for (int64_t e = p->master.piece.begin; e < p->master.piece.end; e++, at++) {
            const int64_t g = (b.first_row + e / b.cols) * STEP_DIM + b.first_col + e % b.cols;

            if (!(fabs((double)own[at] - (double)whole[base + g]) <= tolerance)) {
                return false;
            }
        }
        base += tsr_param_count(p);
    }
    return true;
}
