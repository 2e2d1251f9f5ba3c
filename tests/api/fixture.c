/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "api/fixture.h"

#include <string.h>

enum {
    BATCH = 2,
    SEQ = 4,
    DIM = 16,
    HEADS = 2,
    VOCAB = 32
};

/* One for the process: the job is joined once. */
static tsr_world *job;

static float product_out[4];

static tsr_status place(tsr_op_axis *axis)
{
    tsr_op_place_pointwise(axis);
    return TSR_OK;
}

static void copy(const tsr_op_work *work)
{
    memcpy(work->out.data, work->in[0].data, (size_t)work->in[0].count * sizeof(float));
}

static void fill_options(api_fixture *f)
{
    f->sink = tmpfile();
    f->rank = tsr_test_rank();
    f->size = tsr_test_size();
    for (int r = 0; r < 8; r++) {
        f->everyone[r] = r;
    }
    f->axes[0] = (tsr_mesh_axis){"shard", f->size};
    f->axes[1] = (tsr_mesh_axis){"tp", 1};
    f->names[0] = "shard";
    f->op_names[0] = "linear";
    f->shape[0] = BATCH;
    f->shape[1] = SEQ;
    f->world_options = (tsr_world_options){.backend = "sim"};
    f->spec = (tsr_param_spec){.shape = {4}, .ndim = 1};
    f->linear_options = (tsr_linear_options){.in = 4, .out = 4};
    f->gpt2_config = (tsr_gpt2_config){
        .layers = 1, .heads = HEADS, .dim = DIM, .ffn = DIM, .vocab = VOCAB, .positions = SEQ};
    f->llama_config =
        (tsr_llama_config){.layers = 1, .heads = HEADS, .dim = DIM, .ffn = DIM, .vocab = VOCAB};
    f->rules[0] = (tsr_tp_rule){"layers.*.attn.q", {.kind = TSR_TP_COLUMN}};
    f->op = (tsr_custom_op){.name = "copy", .place = place, .forward = copy};
    f->op_shapes = (tsr_op_shapes){.where = "copy", .in_count = 1, .in = {{.ndim = 1}}};
    f->op_axis = (tsr_op_axis){.shapes = &f->op_shapes, .name = "shard", .size = 2};
    f->product =
        (tsr_product){.a = f->floats, .b = f->floats, .c = product_out, .m = 2, .n = 2, .k = 2};
    f->schedule = (tsr_schedule){.lr = 0.1, .steps = 10};
}

static tsr_status value(api_fixture *f, const int64_t *shape, int ndim, tsr_dtype dtype,
                        tsr_dtensor **out)
{
    tsr_layout layout;

    TSR_TRY(tsr_layout_init(f->mesh, shape, ndim, &layout));
    TSR_TRY(tsr_dtensor_create(f->comm, &layout, dtype, NULL, out));
    return TSR_OK;
}

static tsr_status open_values(api_fixture *f)
{
    const int64_t x[] = {BATCH, SEQ, DIM};
    const int64_t heads[] = {BATCH, SEQ, HEADS, DIM / HEADS};
    const int64_t logits[] = {BATCH, SEQ, VOCAB};
    const int64_t square[] = {DIM, DIM};
    const int64_t table[] = {VOCAB, DIM};

    TSR_TRY(tsr_layout_data(f->comm, f->shape, 2, &f->layout));
    TSR_TRY(tsr_dtensor_create(f->comm, &f->layout, TSR_I32, "ids", &f->ids));
    TSR_TRY(tsr_dtensor_create(f->comm, &f->layout, TSR_I32, "labels", &f->labels));
    TSR_TRY(value(f, x, 3, TSR_F32, &f->x));
    TSR_TRY(value(f, heads, 4, TSR_F32, &f->heads));
    TSR_TRY(value(f, logits, 3, TSR_F32, &f->logits));
    TSR_TRY(value(f, square, 2, TSR_F32, &f->square));
    TSR_TRY(value(f, table, 2, TSR_F32, &f->table));
    TSR_TRY(value(f, square, 1, TSR_F32, &f->gain));
    TSR_TRY(tsr_layout_data(f->comm, x, 3, &f->x_layout));
    TSR_TRY(tsr_layout_init(f->mesh, x, 3, &f->layout2));
    return TSR_OK;
}

static tsr_status open_base(api_fixture *f)
{
    const tsr_comm_options record = {.record = true};

    if (job == NULL) {
        TSR_TRY(tsr_world_open(NULL, NULL, NULL, &job));
    }
    f->world = job;
    TSR_TRY(tsr_mesh_create(f->size, f->axes, 2, NULL, &f->mesh));
    f->meshes[0] = f->mesh;
    TSR_TRY(tsr_comm_open(f->world, f->mesh, &record, &f->comm));
    TSR_TRY(open_values(f));
    return TSR_OK;
}

static tsr_status open_model(api_fixture *f)
{
    tsr_module *branch = NULL;

    TSR_TRY(tsr_llama_create(f->comm, &f->llama_config, &f->model));
    TSR_TRY(tsr_gpt2_create(f->comm, &f->gpt2_config, &f->gpt2));
    TSR_TRY(tsr_sequential_create(f->comm, &branch));
    f->branch = branch;
    f->linear = tsr_module_find(f->model, "layers.0.attn.q");
    f->layer = tsr_llama_layer(f->model, 0);
    TSR_TRY(tsr_module_params(f->model, &f->params, &f->count));
    f->param = f->params[0];
    return TSR_OK;
}

static tsr_status open_ready(api_fixture *f)
{
    TSR_TRY(tsr_fully_shard(f->layer, NULL));
    TSR_TRY(tsr_fully_shard(f->model, NULL));
    TSR_TRY(tsr_module_materialize(f->model, 1));
    TSR_TRY(tsr_optimizer_create(f->comm, f->params, f->count, NULL, &f->optimizer));
    TSR_TRY(tsr_tape_create(f->comm, &f->tape));
    TSR_TRY(tsr_state_open(f->model, f->optimizer, f->tape, &f->state));
    return TSR_OK;
}

static tsr_status open_forward(api_fixture *f, bool evaluates)
{
    tsr_dtensor *logits = NULL;

    TSR_TRY(evaluates ? tsr_eval_begin(f->tape) : tsr_tape_begin(f->tape, 0));
    TSR_TRY(tsr_module_call(f->model, f->tape, &f->ids, 1, &logits));
    TSR_TRY(tsr_op_cross_entropy(f->tape, logits, f->labels, &f->loss));
    return TSR_OK;
}

static tsr_status go(api_fixture *f, api_stage stage)
{
    fill_options(f);
    TSR_TRY(open_base(f));
    if (stage >= API_MODEL) {
        TSR_TRY(open_model(f));
    }
    if (stage >= API_READY) {
        TSR_TRY(open_ready(f));
    }
    if (stage == API_EVAL) {
        return open_forward(f, true);
    }
    if (stage >= API_STEP) {
        TSR_TRY(tsr_step_begin(f->tape, 0, &f->labels, 1));
    }
    if (stage >= API_FORWARD) {
        TSR_TRY(open_forward(f, false));
    }
    if (stage >= API_GRADED) {
        TSR_TRY(tsr_backward(f->tape, f->loss));
    }
    if (stage >= API_CLIPPED) {
        TSR_TRY(tsr_clip_grad_norm(f->optimizer, f->tape, 1.0));
    }
    if (stage >= API_ENDED) {
        TSR_TRY(tsr_optimizer_step(f->optimizer, 0.1));
        TSR_TRY(tsr_step_end(f->tape));
    }
    return TSR_OK;
}

tsr_status api_open(api_fixture *f, api_stage stage)
{
    tsr_status status = TSR_OK;

    memset(f, 0, sizeof(*f));
    status = go(f, stage);
    if (status != TSR_OK) {
        api_close(f);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

void api_close(api_fixture *f)
{
    tsr_dtensor **tensors[] = {&f->ids,    &f->labels, &f->x,    &f->heads,   &f->logits,
                               &f->square, &f->table,  &f->gain, &f->tensor2, &f->tensor_extra};

    tsr_error_clear();
    tsr_state_close(&f->state);
    tsr_state_close(&f->state2);
    tsr_tape_destroy(&f->tape);
    tsr_tape_destroy(&f->tape2);
    tsr_optimizer_destroy(&f->optimizer);
    tsr_optimizer_destroy(&f->optimizer2);
    tsr_module_release(&f->module_extra);
    tsr_module_release(&f->module2);
    tsr_module_release(&f->branch);
    tsr_module_release(&f->gpt2);
    tsr_module_release(&f->model);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        tsr_dtensor_release(tensors[i]);
    }
    tsr_comm_release(&f->comm_extra);
    tsr_comm_release(&f->comm2);
    tsr_comm_release(&f->comm);
    tsr_mesh_release(&f->mesh_extra);
    tsr_mesh_release(&f->mesh2);
    tsr_mesh_release(&f->mesh);
    tsr_world_close(&f->world2);
    if (f->sink != NULL) {
        (void)fclose(f->sink);
    }
}

void api_end(void)
{
    tsr_world_close(&job);
}

tsr_mesh *api_lend_mesh(api_fixture *f)
{
    f->mesh_extra = f->mesh;
    return f->mesh;
}

tsr_comm *api_lend_comm(api_fixture *f)
{
    f->comm_extra = f->comm;
    return f->comm;
}

tsr_dtensor *api_lend_tensor(api_fixture *f)
{
    f->tensor_extra = f->x;
    return f->x;
}

tsr_module *api_lend_module(api_fixture *f)
{
    f->module_extra = f->model;
    return f->model;
}

tsr_module *api_new_module(api_fixture *f)
{
    tsr_module *module = NULL;

    CHECK_OK(tsr_sequential_create(f->comm, &module));
    return module;
}

tsr_status api_program(tsr_world *world, void *context)
{
    (void)world;
    (void)context;
    return TSR_OK;
}

bool api_message_names(const char *name)
{
    char text[64];
    bool found = false;

    (void)snprintf(text, sizeof(text), ": %s is NULL", name);
    found = strstr(tsr_error_message(), text) != NULL;
    if (!found) {
        (void)fprintf(stderr, "  wants \"%s\" in \"%s\"\n", text, tsr_error_message());
    }
    tsr_error_clear();
    return found;
}

bool api_is_refusal(tsr_status status)
{
    const bool refused =
        status != TSR_OK && status != TSR_ERR_INTERNAL && tsr_error_message()[0] != '\0';

    if (!refused) {
        (void)fprintf(stderr, "  %s: \"%s\"\n", tsr_status_name(status), tsr_error_message());
    }
    tsr_error_clear();
    return refused;
}
