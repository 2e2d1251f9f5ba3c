/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Programs as every rank of a simulated world: those that fit, and planted hangs that are named. */
#include "base/base.h"

#include "tessera/tessera.h"

#include <string.h>

#include "support/tsr_test.h"

enum {
    LAYERS = 3,
    BATCH = 8,
    SEQ = 6,
    DIM = 16,
    STEPS = 2
};

/* What is wrong with a program on one rank. */
typedef enum slip {
    NOTHING,
    UNIT_NOT_SHARDED, /* layer 1 is no unit there */
    LAYER_LEFT_OUT,   /* its forward leaves layer 1 out */
    NO_CLIPPING,      /* it does not ask for the gradient norm */
    STEP_LESS,        /* it ends a step earlier */
    FAILS,            /* it fails by itself */
    COMM_LEFT_OPEN,   /* its comm outlives the program */
    SECOND_COMM,      /* it opens one more */
    OTHER_MESH        /* it names another mesh */
} slip;

typedef struct program {
    tsr_mesh_axis axes[3];
    int axis_count;
    const char *preset;
    slip slip;
    int rank;       /* that slips */
    tsr_comm *left; /* of COMM_LEFT_OPEN */
} program;

/* ---- llama with units, trained ---- */

static tsr_status apply_tp(tsr_module *model)
{
    static const tsr_tp_rule plan[] = {
        {"embed", {.kind = TSR_TP_VOCAB}},
        {"layers.*.attn.{q,k,v}", {.kind = TSR_TP_COLUMN}},
        {"layers.*.attn.o", {.kind = TSR_TP_ROW}},
        {"layers.*.mlp.{gate,up}", {.kind = TSR_TP_COLUMN}},
        {"layers.*.mlp.down", {.kind = TSR_TP_ROW}},
        {"head", {.kind = TSR_TP_COLUMN}},
    };

    TSR_TRY(tsr_tp_apply(model, "tp", plan, 6));
    return TSR_OK;
}

/* The first layers of the model, but not layer 1: a forward with a branch. */
static tsr_status short_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_module *model = self;

    TSR_TRY(tsr_module_call(tsr_module_find(model, "layers.0"), tape, in, in_count, out));
    TSR_TRY(tsr_module_call(tsr_module_find(model, "layers.2"), tape, out, 1, out));
    return TSR_OK;
}

static tsr_status long_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    tsr_module *model = self;

    TSR_TRY(tsr_module_call(tsr_module_find(model, "layers.0"), tape, in, in_count, out));
    TSR_TRY(tsr_module_call(tsr_module_find(model, "layers.1"), tape, out, 1, out));
    TSR_TRY(tsr_module_call(tsr_module_find(model, "layers.2"), tape, out, 1, out));
    return TSR_OK;
}

/* A layer of one matrix pair, split as tensor parallel does. */
static tsr_status layer_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_module *layer = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(layer, "up"), NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(layer, "down"), NULL, out));
    return TSR_OK;
}

static tsr_status add_layer(tsr_comm *comm, tsr_module *stack, const char *name)
{
    const tsr_param_spec up = {.shape = {4 * DIM, DIM}, .ndim = 2};
    const tsr_param_spec down = {.shape = {DIM, 4 * DIM}, .ndim = 2};
    tsr_module *layer = NULL;

    TSR_TRY(tsr_module_create(comm, layer_forward, NULL, NULL, &layer));
    TSR_TRY(tsr_module_add_child(stack, name, layer));
    TSR_TRY(tsr_module_add_param(layer, "up", &up, NULL));
    TSR_TRY(tsr_module_add_param(layer, "down", &down, NULL));
    return TSR_OK;
}

/* embed, then layers called by a forward of its own, then head. */
static tsr_status build_branching(tsr_comm *comm, bool shorter, tsr_module **out)
{
    static const tsr_tp_rule plan[] = {{"stack.layers.*.up", {.kind = TSR_TP_COLUMN}},
                                       {"stack.layers.*.down", {.kind = TSR_TP_ROW}}};
    static const char *const names[LAYERS] = {"layers.0", "layers.1", "layers.2"};
    const tsr_linear_options head = {.in = DIM, .out = 32};
    tsr_module *part = NULL;
    tsr_module *stack = NULL;

    TSR_TRY(tsr_sequential_create(comm, out));
    TSR_TRY(tsr_embedding_create(comm, 32, DIM, 0.0, &part));
    TSR_TRY(tsr_module_add_child(*out, "embed", part));
    TSR_TRY(tsr_module_create(comm, shorter ? short_forward : long_forward, NULL, NULL, &stack));
    TSR_TRY(tsr_module_add_child(*out, "stack", stack));
    for (int i = 0; i < LAYERS; i++) {
        TSR_TRY(add_layer(comm, stack, names[i]));
    }
    TSR_TRY(tsr_linear_create(comm, &head, &part));
    TSR_TRY(tsr_module_add_child(*out, "head", part));
    if (tsr_mesh_axis_find(tsr_comm_mesh(comm), "tp") >= 0) {
        TSR_TRY(tsr_tp_apply(*out, "tp", plan, 2));
    }
    for (int i = 0; i < LAYERS; i++) {
        TSR_TRY(tsr_fully_shard(tsr_module_find(stack, names[i]), NULL));
    }
    TSR_TRY(tsr_fully_shard(*out, NULL));
    return TSR_OK;
}

static tsr_status build_llama(tsr_comm *comm, const program *p, bool slips, tsr_module **out)
{
    const tsr_llama_config config = {
        .layers = LAYERS, .heads = 4, .kv_heads = 2, .dim = DIM, .ffn = 40, .vocab = 32};
    tsr_fsdp_options options = {.param_dtype = TSR_BF16};

    TSR_TRY(tsr_llama_create(comm, &config, out));
    if (tsr_mesh_axis_find(tsr_comm_mesh(comm), "tp") >= 0) {
        TSR_TRY(apply_tp(*out));
    }
    TSR_TRY(tsr_fsdp_preset(comm, p->preset, &options));
    for (int i = 0; i < LAYERS; i++) {
        if (!(slips && p->slip == UNIT_NOT_SHARDED && i == 1)) {
            TSR_TRY(tsr_fully_shard(tsr_llama_layer(*out, i), &options));
        }
    }
    TSR_TRY(tsr_fully_shard(*out, &options));
    return TSR_OK;
}

static tsr_status train_step(tsr_module *model, tsr_optimizer *optimizer, tsr_tape *tape, int step,
                             tsr_dtensor *ids, bool clips)
{
    tsr_dtensor *logits = NULL;
    tsr_dtensor *loss = NULL;
    double value = 0.0;

    TSR_TRY(tsr_step_begin(tape, step, &ids, 1));
    TSR_TRY(tsr_tape_begin(tape, 0));
    TSR_TRY(tsr_module_call(model, tape, &ids, 1, &logits));
    TSR_TRY(tsr_op_cross_entropy(tape, logits, ids, &loss));
    TSR_TRY(tsr_backward(tape, loss));
    if (clips) {
        TSR_TRY(tsr_clip_grad_norm(optimizer, tape, 1.0));
    }
    TSR_TRY(tsr_optimizer_step(optimizer, 1e-3));
    TSR_TRY(tsr_step_loss(tape, &value));
    TSR_TRY(tsr_step_end(tape));
    return TSR_OK;
}

static tsr_status train(tsr_comm *comm, tsr_module *model, slip s)
{
    const int64_t shape[] = {BATCH, SEQ};
    tsr_param *const *params = NULL;
    int param_count = 0;
    tsr_optimizer *optimizer = NULL;
    tsr_tape *tape = NULL;
    tsr_dtensor *ids = NULL;
    tsr_layout layout;

    TSR_TRY(tsr_module_materialize(model, 1));
    TSR_TRY(tsr_module_params(model, &params, &param_count));
    TSR_TRY(tsr_optimizer_create(comm, params, param_count, NULL, &optimizer));
    TSR_TRY(tsr_tape_create(comm, &tape));
    TSR_TRY(tsr_layout_data(comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "ids", &ids));
    for (int step = 0; step < (s == STEP_LESS ? STEPS - 1 : STEPS); step++) {
        TSR_TRY(train_step(model, optimizer, tape, step, ids, s != NO_CLIPPING));
    }
    tsr_dtensor_release(&ids);
    tsr_tape_destroy(&tape);
    tsr_optimizer_destroy(&optimizer);
    return TSR_OK;
}

static tsr_status open_comm(tsr_world *world, const program *p, bool other, tsr_comm **out)
{
    tsr_mesh_axis axes[3];
    tsr_mesh *mesh = NULL;

    memcpy(axes, p->axes, sizeof(axes));
    if (other) {
        axes[0].name = "other";
    }
    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, p->axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, out));
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static slip slip_of(const program *p, const tsr_world *world)
{
    return tsr_world_rank(world) == p->rank ? p->slip : NOTHING;
}

/* A whole program. context: struct program. */
static tsr_status run_program(tsr_world *world, void *context)
{
    program *p = context;
    const slip s = slip_of(p, world);
    tsr_module *model = NULL;
    tsr_comm *comm = NULL;
    tsr_comm *more = NULL;

    if (s == FAILS) {
        return TSR_RAISE(TSR_ERR_IO, "no such file");
    }
    TSR_TRY(open_comm(world, p, s == OTHER_MESH, &comm));
    if (s == SECOND_COMM) {
        TSR_TRY(open_comm(world, p, false, &more));
        tsr_comm_release(&more);
    }
    if (s != OTHER_MESH) {
        if (p->slip == LAYER_LEFT_OUT) {
            TSR_TRY(build_branching(comm, s == LAYER_LEFT_OUT, &model));
        } else {
            TSR_TRY(build_llama(comm, p, s != NOTHING, &model));
        }
        TSR_TRY(train(comm, model, s));
        tsr_module_release(&model);
    }
    if (s == COMM_LEFT_OPEN) {
        p->left = comm;
    } else {
        tsr_comm_release(&comm);
    }
    return TSR_OK;
}

static program hsdp_tp(slip s, int rank)
{
    return (program){.axes = {{"replicate", 2}, {"shard", 2}, {"tp", 2}},
                     .axis_count = 3,
                     .preset = "hsdp",
                     .slip = s,
                     .rank = rank};
}

static program one_axis(slip s, int rank)
{
    return (program){
        .axes = {{"shard", 4}}, .axis_count = 1, .preset = "fsdp", .slip = s, .rank = rank};
}

/* The check fails with all of words[count] in the report and the first of them in the message. */
static void check_found(tsr_sim_program run, void *context, int size, const char *const *words,
                        int count)
{
    char text[8192] = "";
    FILE *report = fmemopen(text, sizeof(text) - 1, "w");

    REQUIRE(report != NULL);
    const tsr_status status = tsr_sim_check(size, run, context, report);

    (void)fclose(report);
    CHECK_EQ(status, TSR_ERR_DISAGREE);
    for (int i = 0; i < count; i++) {
        const char *where = text[0] != '\0' ? text : tsr_error_message();

        if (strstr(where, words[i]) == NULL) {
            (void)fprintf(stderr, "\"%s\" is not in: %s\n", words[i], where);
            CHECK(strstr(where, words[i]) != NULL);
        }
    }
    CHECK(strstr(tsr_error_message(), words[0]) != NULL);
    tsr_error_clear();
}

#define CHECK_FOUND(run, context, size, ...) \
    check_found((run), (context), (size), (const char *const[]){__VA_ARGS__}, \
                (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

/* ---- cases ---- */

static void clean_programs_pass(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};
    program p = hsdp_tp(NOTHING, -1);
    const int64_t live = tsri_alloc_live();

    for (int i = 0; i < 6; i++) {
        p.preset = presets[i];
        CHECK_OK(tsr_sim_check(8, run_program, &p, NULL));
    }
    p = one_axis(NOTHING, -1);
    CHECK_OK(tsr_sim_check(4, run_program, &p, stderr));
    p.axes[0].size = 1;
    CHECK_OK(tsr_sim_check(1, run_program, &p, stderr));
    CHECK_EQ(tsri_alloc_live(), live);
}

/* Layer 1's parameters are the root's there: the first gather of the root already differs. */
static void unit_that_one_rank_does_not_shard(void)
{
    program p = hsdp_tp(UNIT_NOT_SHARDED, 5);

    CHECK_FOUND(run_program, &p, 8, "call 1 over shard (stream gather) differs",
                "rank 5: ", "all_gather of (root)", "layers.1 is never called there by rank 5");
}

/* Without tensor parallelism the engine issues what is left out in its place ... */
static void layer_left_out_is_passed_over(void)
{
    program p = one_axis(LAYER_LEFT_OUT, 2);

    CHECK_OK(tsr_sim_check(4, run_program, &p, stderr));
}

/* ... but nobody issues the reductions of tensor parallelism inside of it. */
static void layer_left_out_of_a_tp_group(void)
{
    program p = hsdp_tp(LAYER_LEFT_OUT, 3);

    CHECK_FOUND(run_program, &p, 8, "call 1 over tp (stream compute) differs",
                "rank 3: ", "rank 2: ", "stack.layers.1");
}

static void norm_that_one_rank_does_not_ask_for(void)
{
    program p = one_axis(NO_CLIPPING, 1);

    CHECK_FOUND(run_program, &p, 4, "over shard (stream compute) differs",
                "ranks 0, 2, 3: all_reduce of grad norm");
}

static void step_that_one_rank_does_not_make(void)
{
    program p = one_axis(STEP_LESS, 0);

    CHECK_FOUND(run_program, &p, 4, "ranks 1 to 3 wait in", "for rank 0, whose program ends",
                "the last call of rank 0 there is");
}

static void comms_are_compared(void)
{
    program p = one_axis(SECOND_COMM, 3);

    CHECK_FOUND(run_program, &p, 4, "rank 0 opens 1 comms, rank 3 opens 2");
    p = one_axis(OTHER_MESH, 1);
    CHECK_FOUND(run_program, &p, 4, "comm 1 of rank 0 is on mesh shard=4, of rank 1 on other=4");
}

/* Layouts over axes a, then b, on half of the ranks b, then a. context: whether they differ. */
static tsr_status redistribute_twice(tsr_world *world, void *context)
{
    const bool *crossed = context;
    const tsr_mesh_axis axes[] = {{"a", 2}, {"b", 2}};
    const char *order[] = {"a", "b"};
    const int64_t shape[] = {8, 8};
    const bool swaps = *crossed && tsr_world_rank(world) % 3 == 0;
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    tsr_dtensor *now = NULL;
    tsr_layout layout;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 2, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(tsr_layout_init(mesh, shape, 2, &layout));
    layout.place[0] = (tsr_placement){TSR_SHARD, 0};
    layout.place[1] = (tsr_placement){TSR_SHARD, 1};
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_F32, "x", &now));
    for (int i = 0; i < 2; i++) {
        tsr_dtensor *next = NULL;

        TSR_TRY(
            tsr_layout_place(&layout, order[swaps ? 1 - i : i], (tsr_placement){TSR_REPLICATE, 0}));
        TSR_TRY(tsr_dtensor_redistribute(now, &layout, &next));
        tsr_dtensor_release(&now);
        now = next;
    }
    tsr_dtensor_release(&now);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static void two_orders_on_two_axes(void)
{
    bool crossed = false;

    CHECK_OK(tsr_sim_check(4, redistribute_twice, &crossed, stderr));
    crossed = true;
    CHECK_FOUND(redistribute_twice, &crossed, 4, "goes round between groups",
                "rank 0 waits in all_gather of redistribute over b (call 1, stream compute)",
                "which waits in all_gather of redistribute over a");
}

static void failures_are_told(void)
{
    program p = one_axis(FAILS, 2);

    CHECK_EQ(tsr_sim_check(4, run_program, &p, NULL), TSR_ERR_IO);
    CHECK_STR(tsr_error_message(), "simulated rank 2 of 4: no such file");
    p = one_axis(COMM_LEFT_OPEN, 1);
    CHECK_EQ(tsr_sim_check(4, run_program, &p, NULL), TSR_ERR_STATE);
    CHECK_STR(tsr_error_message(),
              "simulated rank 1 of 4: the program returned with a comm open, on mesh shard=4");
    tsr_error_clear();
    tsr_comm_release(&p.left);
    CHECK_STATUS(TSR_ERR_INVALID, tsr_sim_check(0, run_program, &p, NULL));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_sim_check(4, NULL, NULL, NULL));
}

/* Opens and closes, leaving nothing behind when it fails. */
static tsr_status only_open(tsr_world *world, void *context)
{
    const tsr_mesh_axis axes[] = {{"shard", 3}};
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    tsr_status status = TSR_OK;

    (void)context;
    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 1, NULL, &mesh));
    TSR_TRY_GOTO(status, tsr_comm_open(world, mesh, NULL, &comm), release_mesh);
    tsr_comm_release(&comm);
release_mesh:
    tsr_mesh_release(&mesh);
    return status;
}

static void memory_may_run_out(void)
{
    int n = 0;
    tsr_status status = TSR_ERR_NOMEM;

    while (status != TSR_OK && n < 1000) {
        const int64_t live = tsri_alloc_live();

        tsri_alloc_fail_at(++n);
        status = tsr_sim_check(3, only_open, NULL, NULL);
        tsri_alloc_fail_at(0);
        CHECK(status == TSR_OK || status == TSR_ERR_NOMEM);
        CHECK_EQ(tsri_alloc_live(), live);
        tsr_error_clear();
    }
    CHECK_EQ(status, TSR_OK);
    CHECK(n > 30);
}

const tsr_test_case tsr_test_cases[] = {
    {"clean_programs_pass", clean_programs_pass},
    {"unit_that_one_rank_does_not_shard", unit_that_one_rank_does_not_shard},
    {"layer_left_out_is_passed_over", layer_left_out_is_passed_over},
    {"layer_left_out_of_a_tp_group", layer_left_out_of_a_tp_group},
    {"norm_that_one_rank_does_not_ask_for", norm_that_one_rank_does_not_ask_for},
    {"step_that_one_rank_does_not_make", step_that_one_rank_does_not_make},
    {"comms_are_compared", comms_are_compared},
    {"two_orders_on_two_axes", two_orders_on_two_axes},
    {"failures_are_told", failures_are_told},
    {"memory_may_run_out", memory_may_run_out},
    {NULL, NULL},
};
