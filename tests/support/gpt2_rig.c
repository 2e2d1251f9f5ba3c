/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/gpt2_rig.h"

#include "tessera/tessera.h"

#include <string.h>

#include "support/tsr_test.h"

const gpt2_kind gpt2_kinds[] = {
    {.name = "hsdp", .preset = "hsdp", .dropout = 0.1},
    {.name = "ddp", .preset = "ddp", .dropout = 0.1},
    {.name = "zero1", .preset = "zero1"},
    {.name = "zero2", .preset = "zero2", .dropout = 0.1},
    {.name = "hfsdp", .preset = "hfsdp"},
    {.name = "tp", .preset = "hsdp", .dropout = 0.1, .tp = true},
    {.name = "bf16", .preset = "hsdp", .unit = {.param_dtype = TSR_BF16}},
    {.name = "bf16 zero1", .preset = "zero1", .unit = {.param_dtype = TSR_BF16}},
    {.name = "bf16 tp", .preset = "hfsdp", .unit = {.param_dtype = TSR_BF16}, .tp = true},
    {.name = "offload",
     .preset = "hfsdp",
     .unit = {.offload_params = true, .offload_grads = true},
     .dropout = 0.1},
    {.name = "checkpointing", .preset = "hsdp", .dropout = 0.1, .again = true},
    {.name = "activations away", .preset = "fsdp", .again = true, .away = true},
    {.name = "checkpointing tp", .preset = "hfsdp", .dropout = 0.1, .tp = true, .again = true},
    {.name = "never reshard",
     .preset = "hsdp",
     .unit = {.reshard_after_forward = TSR_RESHARD_NEVER}},
    {.name = "tied across units", .preset = "hsdp", .dropout = 0.1, .apart = true},
    {.name = NULL},
};

static tsr_status open_mesh(const gpt2_kind *k, gpt2_rig *r)
{
    const tsr_world_options cpu = {.backend = "cpu", .threads = 1};
    const tsr_comm_options checked = {.record = true, .race_check = true};
    const int size = tsr_test_size();
    const int tp = k->tp && size > 1 ? 2 : 1;
    const int shard = size / tp > 1 ? 2 : 1;
    const tsr_mesh_axis axes[] = {{"replicate", size / tp / shard}, {"shard", shard}, {"tp", tp}};

    TSR_TRY(tsr_world_open(NULL, NULL, &cpu, &r->world));
    TSR_TRY(tsr_mesh_create(size, axes, k->tp ? 3 : 2, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, &checked, &r->comm));
    return TSR_OK;
}

static tsr_status open_model(const gpt2_kind *k, gpt2_rig *r)
{
    static const tsr_tp_rule rules[] = {
        {"embed", {.kind = TSR_TP_VOCAB}},
        {"layers.*.attn.{q,k,v}", {.kind = TSR_TP_COLUMN}},
        {"layers.*.attn.o", {.kind = TSR_TP_ROW}},
        {"layers.*.mlp.up", {.kind = TSR_TP_COLUMN}},
        {"layers.*.mlp.down", {.kind = TSR_TP_ROW}},
    };
    const tsr_gpt2_config config = {.layers = GPT2_LAYERS,
                                    .heads = 4,
                                    .dim = 16,
                                    .ffn = 32,
                                    .vocab = GPT2_VOCAB,
                                    .positions = GPT2_SEQ,
                                    .dropout = k->dropout,
                                    .init_std = 0.2};
    tsr_fsdp_options unit = k->unit;

    TSR_TRY(tsr_fsdp_preset(r->comm, k->preset, &unit));
    TSR_TRY(tsr_gpt2_create(r->comm, &config, &r->model));
    if (k->tp) {
        TSR_TRY(tsr_tp_apply(r->model, "tp", rules, 5));
    }
    for (int i = 0; i < GPT2_LAYERS; i++) {
        tsr_module *layer = tsr_gpt2_layer(r->model, i);

        tsr_module_set_checkpoint(layer, k->again);
        tsr_module_set_checkpoint_offload(layer, k->away);
        TSR_TRY(tsr_fully_shard(layer, &unit));
    }
    if (k->apart) {
        TSR_TRY(tsr_fully_shard(tsr_module_find(r->model, "embed"), &unit));
    }
    TSR_TRY(tsr_fully_shard(r->model, &unit));
    TSR_TRY(tsr_module_materialize(r->model, 3));
    return TSR_OK;
}

static tsr_status open_batches(gpt2_rig *r)
{
    tsr_layout layout;
    int64_t shape[TSR_MAX_DIMS];
    int64_t first[TSR_MAX_DIMS];
    int32_t ids[GPT2_BATCH * GPT2_SEQ];
    int32_t labels[GPT2_BATCH * GPT2_SEQ];

    TSR_TRY(tsr_layout_data(r->comm, (int64_t[]){GPT2_BATCH, GPT2_SEQ}, 2, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), shape, first));
    for (int m = 0; m < GPT2_MICRO; m++) {
        for (int64_t i = 0; i < shape[0] * GPT2_SEQ; i++) {
            const int64_t at = first[0] * GPT2_SEQ + i;

            ids[i] = (int32_t)((at * 29 + m * 7) % GPT2_VOCAB);
            labels[i] = at % 5 == m ? TSR_IGNORE_INDEX : (int32_t)((at * 13 + m) % GPT2_VOCAB);
        }
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids[m]));
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels[m]));
        TSR_TRY(tsr_dtensor_write(r->ids[m], ids));
        TSR_TRY(tsr_dtensor_write(r->labels[m], labels));
    }
    return TSR_OK;
}

tsr_status gpt2_rig_open(const gpt2_kind *k, gpt2_rig *r)
{
    tsr_param *const *params = NULL;
    int count = 0;

    memset(r, 0, sizeof(*r));
    TSR_TRY(open_mesh(k, r));
    TSR_TRY(open_model(k, r));
    TSR_TRY(tsr_module_params(r->model, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, NULL, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(open_batches(r));
    return TSR_OK;
}

void gpt2_rig_close(gpt2_rig *r)
{
    for (int m = 0; m < GPT2_MICRO; m++) {
        tsr_dtensor_release(&r->ids[m]);
        tsr_dtensor_release(&r->labels[m]);
    }
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

tsr_status gpt2_rig_forward(gpt2_rig *r, int micro, tsr_dtensor **loss)
{
    TSR_TRY(tsr_tape_begin(r->tape, micro));
    TSR_TRY(tsr_module_call(r->model, r->tape, &r->ids[micro], 1, loss));
    TSR_TRY(tsr_op_cross_entropy(r->tape, *loss, r->labels[micro], loss));
    return TSR_OK;
}
