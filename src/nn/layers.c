/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Ready-made leaves of a model: each is one parameter or two and one operation. */
#include "tessera/layers.h"

#include "base/base.h"

#include "nn/nn.h"

typedef struct layer {
    tsr_module *module; /* borrowed: the layer lives inside it */
    tsr_dtensor *weight, *bias;
    double eps;
} layer;

static void layer_destroy(void *self)
{
    tsri_free(&self);
}

static tsr_status layer_create(tsr_comm *comm, tsr_forward_fn forward, layer **out)
{
    layer *self = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*self), &self));
    TSR_TRY_GOTO(status, tsr_module_create(comm, forward, self, layer_destroy, &self->module),
                 free_self);
    self->module->in_count = 1;
    *out = self;
    return TSR_OK;
free_self:
    tsri_free(&self);
    return status;
}

/* Add the parameter name; on failure the whole layer goes. */
static tsr_status layer_param(layer *self, const char *name, const tsr_param_spec *spec,
                              tsr_dtensor **value)
{
    tsr_param *param = NULL;
    const tsr_status status = tsr_module_add_param(self->module, name, spec, &param);

    if (status != TSR_OK) {
        tsr_module *module = self->module;

        tsr_module_release(&module);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    *value = tsr_param_value(param);
    return TSR_OK;
}

static tsr_status linear_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                 tsr_dtensor **out)
{
    const layer *l = self;

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], l->weight, l->bias, out));
    return TSR_OK;
}

tsr_status tsr_linear_create(tsr_comm *comm, const tsr_linear_options *options, tsr_module **out)
{
    TSRI_WANT(comm, options, out);
    TSRI_WANT_NUMBER(options->init_std);
    TSRI_WANT_COUNT(options->group_rows);

    const double std = options->init_std > 0.0 ? options->init_std : 0.02;
    const tsr_param_spec weight = {.shape = {options->out, options->in},
                                   .ndim = 2,
                                   .init_std = std,
                                   .group_rows = options->group_rows,
                                   .group_name = options->group_name,
                                   .replicate_groups = options->replicate_groups};
    const tsr_param_spec bias = {.shape = {options->out},
                                 .ndim = 1,
                                 .group_rows = options->group_rows,
                                 .group_name = options->group_name,
                                 .replicate_groups = options->replicate_groups};
    layer *self = NULL;

    if (options->in < 1 || options->out < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "linear layer of %lld to %lld features, wants at least 1",
                         (long long)options->in, (long long)options->out);
    }
    TSR_TRY(layer_create(comm, linear_forward, &self));
    TSR_TRY(layer_param(self, "weight", &weight, &self->weight));
    if (options->bias) {
        TSR_TRY(layer_param(self, "bias", &bias, &self->bias));
    }
    *out = self->module;
    return TSR_OK;
}

static tsr_status table_create(tsr_comm *comm, tsr_forward_fn forward, int64_t rows, int64_t dim,
                               double init_std, tsr_module **out)
{
    const tsr_param_spec spec = {
        .shape = {rows, dim}, .ndim = 2, .init_std = init_std > 0.0 ? init_std : 0.02};
    layer *self = NULL;

    if (rows < 1 || dim < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "table of %lld rows of %lld, wants at least 1",
                         (long long)rows, (long long)dim);
    }
    TSR_TRY(layer_create(comm, forward, &self));
    TSR_TRY(layer_param(self, "weight", &spec, &self->weight));
    *out = self->module;
    return TSR_OK;
}

static tsr_status embedding_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in,
                                    int in_count, tsr_dtensor **out)
{
    const layer *l = self;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], l->weight, out));
    return TSR_OK;
}

tsr_status tsr_embedding_create(tsr_comm *comm, int64_t rows, int64_t dim, double init_std,
                                tsr_module **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_NUMBER(init_std);
    TSR_TRY(table_create(comm, embedding_forward, rows, dim, init_std, out));
    return TSR_OK;
}

static tsr_status position_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                   tsr_dtensor **out)
{
    const layer *l = self;

    (void)in_count;
    TSR_TRY(tsr_op_add_position(tape, in[0], l->weight, out));
    return TSR_OK;
}

tsr_status tsr_position_create(tsr_comm *comm, int64_t rows, int64_t dim, double init_std,
                               tsr_module **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_NUMBER(init_std);
    TSR_TRY(table_create(comm, position_forward, rows, dim, init_std, out));
    return TSR_OK;
}

static tsr_status layernorm_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in,
                                    int in_count, tsr_dtensor **out)
{
    const layer *l = self;

    (void)in_count;
    TSR_TRY(tsr_op_layernorm(tape, in[0], l->weight, l->bias, l->eps, out));
    return TSR_OK;
}

static tsr_status rmsnorm_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                  tsr_dtensor **out)
{
    const layer *l = self;

    (void)in_count;
    TSR_TRY(tsr_op_rmsnorm(tape, in[0], l->weight, l->eps, out));
    return TSR_OK;
}

static tsr_status norm_create(tsr_comm *comm, tsr_forward_fn forward, int64_t dim, double eps,
                              layer **out)
{
    const tsr_param_spec ones = {.shape = {dim}, .ndim = 1, .init_mean = 1.0};
    layer *self = NULL;

    if (dim < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "norm over %lld elements, wants at least 1",
                         (long long)dim);
    }
    TSR_TRY(layer_create(comm, forward, &self));
    self->eps = eps;
    TSR_TRY(layer_param(self, "weight", &ones, &self->weight));
    *out = self;
    return TSR_OK;
}

tsr_status tsr_layernorm_create(tsr_comm *comm, int64_t dim, double eps, tsr_module **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_NUMBER(eps);

    const tsr_param_spec zeros = {.shape = {dim}, .ndim = 1};
    layer *self = NULL;

    TSR_TRY(norm_create(comm, layernorm_forward, dim, eps, &self));
    TSR_TRY(layer_param(self, "bias", &zeros, &self->bias));
    *out = self->module;
    return TSR_OK;
}

tsr_status tsr_rmsnorm_create(tsr_comm *comm, int64_t dim, double eps, tsr_module **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_NUMBER(eps);

    layer *self = NULL;

    TSR_TRY(norm_create(comm, rmsnorm_forward, dim, eps, &self));
    *out = self->module;
    return TSR_OK;
}

static tsr_status sequential_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in,
                                     int in_count, tsr_dtensor **out)
{
    tsr_module *module = self;

    if (module->child_count == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "sequence \"%s\" has no children to run", module->path);
    }
    TSR_TRY(tsr_module_call(module->children[0], tape, in, in_count, out));
    for (int i = 1; i < module->child_count; i++) {
        tsr_dtensor *before = *out;

        TSR_TRY(tsr_module_call(module->children[i], tape, &before, 1, out));
        if (*out != before) {
            tsri_tape_let_go(tape, before); /* nobody but the next child sees it */
        }
    }
    return TSR_OK;
}

tsr_status tsr_sequential_create(tsr_comm *comm, tsr_module **out)
{
    TSRI_WANT(comm, out);
    TSR_TRY(tsr_module_create(comm, sequential_forward, NULL, NULL, out));
    return TSR_OK;
}
