/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The decoder that GPT-2 and Llama share.
 *
 * x = embed(ids) (+ positions); per block x += attn(norm1(x)), x += mlp(norm2(x)); logits =
 * head(norm(x)). Modules are named embed, pos, layers.N.{norm1,attn,norm2,mlp}, norm, head, so that
 * one tensor-parallel plan fits both models. Shapes: x [batch, seq, dim], q [batch, seq, heads,
 * head_dim]. */
#include "decoder_priv.h"

#include "base/base.h"

#include <stdio.h>

typedef struct attention {
    tsr_module *q, *k, *v, *o; /* children, borrowed */
    int heads, kv_heads;
    double rope_theta, dropout;
} attention;

typedef struct mlp {
    tsr_module *gate, *up, *down; /* gate NULL: gelu instead of the silu gate */
    double dropout;
} mlp;

typedef struct block {
    tsr_module *norm1, *attn, *norm2, *mlp;
} block;

typedef struct decoder {
    tsr_module *embed, *pos, *norm, *head; /* pos, head NULL: none, tied */
    tsr_module **layers;
    int layer_count;
    double dropout;
} decoder;

static void self_destroy(void *self)
{
    tsri_free(&self);
}

/* A module whose self is a zeroed struct of bytes. */
static tsr_status open_module(tsr_comm *comm, tsr_forward_fn forward, size_t bytes, void *self_out,
                              tsr_module **out)
{
    void *self = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, bytes, &self));
    TSR_TRY_GOTO(status, tsr_module_create(comm, forward, self, self_destroy, out), free_self);
    (*out)->in_count = 1;
    *(void **)self_out = self;
    return TSR_OK;
free_self:
    tsri_free(&self);
    return status;
}

static tsr_status call(tsr_module *module, tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSR_TRY(tsr_module_call(module, tape, &x, 1, out));
    return TSR_OK;
}

/* The same for a module behind which nothing more is made of x, a value of this scope. */
static tsr_status hand_on(tsr_module *module, tsr_tape *tape, tsr_dtensor **x)
{
    tsr_dtensor *before = *x;

    TSR_TRY(call(module, tape, before, x));
    if (*x != before) {
        tsri_tape_let_go(tape, before);
    }
    return TSR_OK;
}

/* One of q, k, v as [batch, seq, heads, head_dim], turned by its position if rotary. */
static tsr_status project(const attention *self, tsr_module *linear, int heads, bool rotate,
                          tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    tsr_dtensor *flat = NULL;

    TSR_TRY(call(linear, tape, x, &flat));
    TSR_TRY(tsr_op_split_heads(tape, flat, heads, out));
    if (rotate && self->rope_theta > 0.0) {
        TSR_TRY(tsr_op_rope(tape, *out, self->rope_theta, out));
    }
    return TSR_OK;
}

static tsr_status attention_forward(void *context, tsr_tape *tape, tsr_dtensor *const *in,
                                    int in_count, tsr_dtensor **out)
{
    const attention *self = context;
    tsr_dtensor *q = NULL;
    tsr_dtensor *k = NULL;
    tsr_dtensor *v = NULL;
    tsr_dtensor *y = NULL;

    (void)in_count;
    TSR_TRY(project(self, self->q, self->heads, true, tape, in[0], &q));
    TSR_TRY(project(self, self->k, self->kv_heads, true, tape, in[0], &k));
    TSR_TRY(project(self, self->v, self->kv_heads, false, tape, in[0], &v));
    TSR_TRY(tsr_op_attention(tape, q, k, v, 0.0, &y));
    TSR_TRY(tsr_op_merge_heads(tape, y, &y));
    TSR_TRY(call(self->o, tape, y, &y));
    if (self->dropout > 0.0) {
        TSR_TRY(tsr_op_dropout(tape, y, self->dropout, &y));
    }
    *out = y;
    return TSR_OK;
}

static tsr_status mlp_forward(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                              tsr_dtensor **out)
{
    const mlp *self = context;
    tsr_dtensor *up = NULL;
    tsr_dtensor *gate = NULL;
    tsr_dtensor *y = NULL;

    (void)in_count;
    if (self->gate != NULL) {
        TSR_TRY(call(self->gate, tape, in[0], &gate));
        TSR_TRY(call(self->up, tape, in[0], &up));
        TSR_TRY(tsr_op_silu_mul(tape, gate, up, &y));
    } else {
        TSR_TRY(call(self->up, tape, in[0], &up));
        TSR_TRY(tsr_op_gelu(tape, up, &y));
    }
    TSR_TRY(call(self->down, tape, y, &y));
    if (self->dropout > 0.0) {
        TSR_TRY(tsr_op_dropout(tape, y, self->dropout, &y));
    }
    *out = y;
    return TSR_OK;
}

static tsr_status block_forward(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    const block *self = context;
    tsr_dtensor *h = NULL;
    tsr_dtensor *x = NULL;

    (void)in_count;
    TSR_TRY(call(self->norm1, tape, in[0], &h));
    TSR_TRY(call(self->attn, tape, h, &h));
    TSR_TRY(tsr_op_add(tape, in[0], h, &x));
    TSR_TRY(call(self->norm2, tape, x, &h));
    TSR_TRY(call(self->mlp, tape, h, &h));
    TSR_TRY(tsr_op_add(tape, x, h, out));
    return TSR_OK;
}

static tsr_status decoder_forward(void *context, tsr_tape *tape, tsr_dtensor *const *in,
                                  int in_count, tsr_dtensor **out)
{
    const decoder *self = context;
    tsr_dtensor *x = NULL;

    (void)in_count;
    TSR_TRY(call(self->embed, tape, in[0], &x));
    if (self->pos != NULL) {
        TSR_TRY(call(self->pos, tape, x, &x));
    }
    if (self->dropout > 0.0) {
        TSR_TRY(tsr_op_dropout(tape, x, self->dropout, &x));
    }
    for (int i = 0; i < self->layer_count; i++) {
        TSR_TRY(hand_on(self->layers[i], tape, &x));
    }
    TSR_TRY(hand_on(self->norm, tape, &x));
    if (self->head != NULL) {
        TSR_TRY(call(self->head, tape, x, out));
    } else {
        TSR_TRY(tsr_op_linear(tape, x, tsr_module_value(self->embed, "weight"), NULL, out));
    }
    return TSR_OK;
}

static tsr_status add_linear(tsr_module *parent, const char *name,
                             const tsr_linear_options *options, tsr_module **out)
{
    TSR_TRY(tsr_linear_create(parent->comm, options, out));
    TSR_TRY(tsr_module_add_child(parent, name, *out));
    return TSR_OK;
}

static tsr_status add_norm(tsr_module *parent, const char *name, const decoder_config *c,
                           tsr_module **out)
{
    if (c->norm == NORM_LAYER) {
        TSR_TRY(tsr_layernorm_create(parent->comm, c->dim, c->norm_eps, out));
    } else {
        TSR_TRY(tsr_rmsnorm_create(parent->comm, c->dim, c->norm_eps, out));
    }
    TSR_TRY(tsr_module_add_child(parent, name, *out));
    return TSR_OK;
}

static tsr_status add_attention(tsr_module *parent, const decoder_config *c, tsr_module **out)
{
    const tsr_linear_options q = {.in = c->dim,
                                  .out = c->heads * c->head_dim,
                                  .bias = c->attention_bias,
                                  .init_std = c->init_std,
                                  .group_rows = c->head_dim,
                                  .group_name = "heads"};
    const tsr_linear_options kv = {.in = c->dim,
                                   .out = c->kv_heads * c->head_dim,
                                   .bias = c->attention_bias,
                                   .init_std = c->init_std,
                                   .group_rows = c->head_dim,
                                   .group_name = "kv heads",
                                   .replicate_groups = true};
    const tsr_linear_options o = {.in = c->heads * c->head_dim,
                                  .out = c->dim,
                                  .bias = c->attention_bias,
                                  .init_std = c->residual_init_std};
    attention *self = NULL;
    tsr_module *module = NULL;

    TSR_TRY(open_module(parent->comm, attention_forward, sizeof(*self), &self, &module));
    TSR_TRY(tsr_module_add_child(parent, "attn", module));
    self->heads = c->heads;
    self->kv_heads = c->kv_heads;
    self->rope_theta = c->rope_theta;
    self->dropout = c->dropout;
    TSR_TRY(add_linear(module, "q", &q, &self->q));
    TSR_TRY(add_linear(module, "k", &kv, &self->k));
    TSR_TRY(add_linear(module, "v", &kv, &self->v));
    TSR_TRY(add_linear(module, "o", &o, &self->o));
    *out = module;
    return TSR_OK;
}

static tsr_status add_mlp(tsr_module *parent, const decoder_config *c, tsr_module **out)
{
    const tsr_linear_options up = {
        .in = c->dim, .out = c->ffn, .bias = c->mlp_bias, .init_std = c->init_std};
    const tsr_linear_options down = {
        .in = c->ffn, .out = c->dim, .bias = c->mlp_bias, .init_std = c->residual_init_std};
    mlp *self = NULL;
    tsr_module *module = NULL;

    TSR_TRY(open_module(parent->comm, mlp_forward, sizeof(*self), &self, &module));
    TSR_TRY(tsr_module_add_child(parent, "mlp", module));
    self->dropout = c->dropout;
    if (c->gated) {
        TSR_TRY(add_linear(module, "gate", &up, &self->gate));
    }
    TSR_TRY(add_linear(module, "up", &up, &self->up));
    TSR_TRY(add_linear(module, "down", &down, &self->down));
    *out = module;
    return TSR_OK;
}

static tsr_status add_block(tsr_module *parent, int index, const decoder_config *c,
                            tsr_module **out)
{
    char name[32];
    block *self = NULL;
    tsr_module *module = NULL;

    (void)snprintf(name, sizeof(name), "layers.%d", index);
    TSR_TRY(open_module(parent->comm, block_forward, sizeof(*self), &self, &module));
    TSR_TRY(tsr_module_add_child(parent, name, module));
    TSR_TRY(add_norm(module, "norm1", c, &self->norm1));
    TSR_TRY(add_attention(module, c, &self->attn));
    TSR_TRY(add_norm(module, "norm2", c, &self->norm2));
    TSR_TRY(add_mlp(module, c, &self->mlp));
    *out = module;
    return TSR_OK;
}

static tsr_status check_config(const decoder_config *c)
{
    if (c->layers < 1 || c->heads < 1 || c->dim < 1 || c->ffn < 1 || c->vocab < 1) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s of %d layers, %d heads, dim %lld, ffn %lld, vocab %lld: each wants at "
                         "least 1",
                         c->what, c->layers, c->heads, (long long)c->dim, (long long)c->ffn,
                         (long long)c->vocab);
    }
    if (c->head_dim < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of dim %lld with %d heads: %lld %% %d != 0", c->what,
                         (long long)c->dim, c->heads, (long long)c->dim, c->heads);
    }
    if (c->kv_heads < 1 || c->heads % c->kv_heads != 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %d heads and %d kv heads: %d %% %d != 0", c->what,
                         c->heads, c->kv_heads, c->heads, c->kv_heads);
    }
    if (c->rope_theta > 0.0 && c->head_dim % 2 != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s with rotary positions wants an even head dim, not %lld", c->what,
                         (long long)c->head_dim);
    }
    if (!(c->dropout >= 0.0 && c->dropout < 1.0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s with dropout %g, wants 0 <= p < 1", c->what,
                         c->dropout);
    }
    return TSR_OK;
}

static void decoder_destroy(void *context)
{
    decoder *self = context;

    tsri_free(&self->layers);
    tsri_free(&self);
}

/* What turns ids into the residual stream. */
static tsr_status add_embeddings(tsr_module *model, decoder *self, const decoder_config *c)
{
    TSR_TRY(tsr_embedding_create(model->comm, c->vocab, c->dim, c->init_std, &self->embed));
    TSR_TRY(tsr_module_add_child(model, "embed", self->embed));
    if (c->positions > 0) {
        TSR_TRY(tsr_position_create(model->comm, c->positions, c->dim, c->init_std, &self->pos));
        TSR_TRY(tsr_module_add_child(model, "pos", self->pos));
    }
    return TSR_OK;
}

static tsr_status fill_decoder(tsr_module *model, decoder *self, const decoder_config *c)
{
    const tsr_linear_options head = {.in = c->dim, .out = c->vocab, .init_std = c->init_std};

    TSR_TRY(tsri_alloc((size_t)c->layers, sizeof(tsr_module *), &self->layers));
    self->layer_count = c->layers;
    self->dropout = c->dropout;
    TSR_TRY(add_embeddings(model, self, c));
    for (int i = 0; i < c->layers; i++) {
        TSR_TRY(add_block(model, i, c, &self->layers[i]));
    }
    TSR_TRY(add_norm(model, "norm", c, &self->norm));
    if (!c->tied) {
        TSR_TRY(add_linear(model, "head", &head, &self->head));
    }
    return TSR_OK;
}

tsr_status tsri_decoder_create(tsr_comm *comm, const decoder_config *config, tsr_module **out)
{
    decoder *self = NULL;
    tsr_module *model = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_config(config));
    TSR_TRY(open_module(comm, decoder_forward, sizeof(*self), &self, &model));
    model->destroy = decoder_destroy;
    TSR_TRY_GOTO(status, fill_decoder(model, self, config), release_model);
    *out = model;
    return TSR_OK;
release_model:
    tsr_module_release(&model);
    return status;
}

tsr_module *tsri_decoder_layer(tsr_module *model, int index)
{
    const decoder *self = model->self;

    if (model->forward != decoder_forward || index < 0 || index >= self->layer_count) {
        return NULL;
    }
    return self->layers[index];
}
