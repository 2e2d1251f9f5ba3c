/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The job that a configuration means. */
#include "job/from_config.h"

static void fill_loss_scale(const tsri_config_train *t, tsri_job_options *out)
{
    const bool f16 = out->fsdp.param_dtype == TSR_F16 || out->fsdp.reduce_dtype == TSR_F16;

    out->scale_loss = t->loss_scale == 2 || (t->loss_scale == 0 && f16);
    out->loss_scale.init = t->loss_scale_init;
    out->loss_scale.interval = (int)t->loss_scale_interval;
}

static void fill_names(const tsri_option_names *names, tsri_job_names *out)
{
    out->count = names->count;
    for (int i = 0; i < names->count; i++) {
        out->at[i] = names->at[i];
    }
}

static void fill_parallel(const tsri_config *config, bool bf16, tsri_job_options *out)
{
    const tsri_config_parallel *p = &config->parallel;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

    out->preset = tsri_preset_at(p->preset);
    out->sequence_parallel = p->sequence_parallel;
    out->recompute.every = p->activation_checkpointing; /* none 0, block 1, selective 2 */
    out->one_unit = p->units == 1;
    out->no_tp = p->tp_plan == 1;
    out->fsdp = (tsr_fsdp_options){
        .param_dtype = dtypes[p->param_dtype > 0 ? p->param_dtype - 1
                              : bf16             ? 1
                                                 : 0],
        .reduce_dtype = dtypes[p->reduce_dtype],
        .offload_params = tsri_config_offloads(p, "parameters"),
        .offload_grads = tsri_config_offloads(p, "gradients"),
        .reshard_after_forward = (tsr_reshard)p->reshard_after_forward,
        .prefetch_depth = (int)p->prefetch + 1,
        .backward_prefetch = (tsr_prefetch)(p->backward_prefetch + 1),
        .reshard_group = (int)p->reshard_group,
    };
    fill_names(&p->shard_dims, &out->split_cols);
    fill_names(&p->ignored, &out->ignored);
    fill_names(&p->activation_keep, &out->recompute.keep);
    out->recompute.offload = tsri_config_offloads(p, "activations");
    out->optim.offload = tsri_config_offloads(p, "optimizer");
    out->data_axis_count = p->data_axes.count;
    for (int i = 0; i < p->data_axes.count; i++) {
        out->data_axes[i] = p->data_axes.at[i];
    }
}

void tsri_job_from_config(const tsri_config *config, bool bf16, tsri_job_options *out)
{
    const tsri_config_optim *o = &config->optim;
    const tsri_config_train *t = &config->train;

    *out = (tsri_job_options){
        .model = config->spec,
        .axis_count = config->mesh.count,
        .seed = (uint64_t)t->seed,
        .optim = {.kind = (tsr_optimizer_kind)(o->kind + 1),
                  .beta1 = o->betas[0],
                  .beta2 = o->betas[1],
                  .eps = o->eps,
                  .weight_decay = o->weight_decay,
                  .momentum = o->momentum,
                  .nesterov = o->nesterov,
                  .groups = config->groups,
                  .group_count = o->groups.count},
        .batch = t->batch / t->micro_batches,
        .seq = t->seq,
        .micro_batches = (int)t->micro_batches,
    };
    for (int i = 0; i < config->mesh.count; i++) {
        out->axes[i] = (tsr_mesh_axis){config->mesh.names[i], config->mesh.axes[i].size};
    }
    fill_parallel(config, bf16, out);
    fill_loss_scale(t, out);
}

tsr_schedule tsri_schedule_from_config(const tsri_config *config)
{
    const tsri_config_train *t = &config->train;

    return (tsr_schedule){.kind = (tsr_schedule_kind)(t->schedule + 1),
                          .lr = t->lr,
                          .min_lr = t->min_lr,
                          .warmup = t->warmup,
                          .steps = t->steps};
}
