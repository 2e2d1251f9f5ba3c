/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/**
 * @file test_parts.c
 * Worlds of some ranks: disjoint and nested ones at the same time, each with comms, models and
 * steps of its own; and a world of a communicator of the program's.
 *
 * A part trains as a job of its size would. Reference: one rank with the part's whole batch, in a
 * world of its own. Bound as in test_units_parity.c.
 */
#include "base/base.h"

#include "tessera/unit.h"
#include "tessera/world.h"

#include <mpi.h>

#include <string.h>

#include "comm/comm.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    DIM = 6,
    BATCH = 8,
    SEQ = 2,
    STEPS = 3,
    MOST = 8
};

static const double tolerance = 2e-5;

/* ---- a small model ---- */

typedef struct rig {
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model, *inner;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *labels;
} rig;

static tsr_status inner_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "weight"), NULL, out));
    TSR_TRY(tsr_op_gelu(tape, *out, out));
    return TSR_OK;
}

static tsr_status model_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    rig *r = self;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], tsr_module_value(r->model, "embed"), out));
    TSR_TRY(tsr_module_call(r->inner, tape, out, 1, out));
    return TSR_OK;
}

static tsr_status open_model(rig *r)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.6};

    TSR_TRY(tsr_module_create(r->comm, model_forward, r, NULL, &r->model));
    TSR_TRY(tsr_module_add_param(r->model, "embed", &square, NULL));
    TSR_TRY(tsr_module_create(r->comm, inner_forward, NULL, NULL, &r->inner));
    TSR_TRY(tsr_module_add_param(r->inner, "weight", &square, NULL));
    TSR_TRY(tsr_module_add_child(r->model, "inner", r->inner));
    TSR_TRY(tsr_fully_shard(r->inner, NULL));
    TSR_TRY(tsr_fully_shard(r->model, NULL));
    TSR_TRY(tsr_module_materialize(r->model, 5));
    return TSR_OK;
}

static tsr_status open_rig(tsr_world *world, rig *r)
{
    const tsr_mesh_axis axis = {"shard", tsr_world_size(world)};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    const tsr_comm_options checked = {.race_check = true};
    const int64_t shape[] = {BATCH, SEQ};
    tsr_param *const *params = NULL;
    tsr_layout layout;
    int count = 0;

    *r = (rig){0};
    TSR_TRY(tsr_mesh_create(tsr_world_size(world), &axis, 1, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, &checked, &r->comm));
    TSR_TRY(open_model(r));
    TSR_TRY(tsr_module_params(r->model, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    tsr_dtensor_release(&r->labels);
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

static tsr_status write_rows(tsr_dtensor *tensor, int a, int b)
{
    int32_t values[BATCH * SEQ];

    for (int64_t i = 0; i < tensor->local_count; i++) {
        values[i] = (int32_t)(((tensor->local_offset[0] * SEQ + i) * a + b) % DIM);
    }
    TSR_TRY(tsr_dtensor_write(tensor, values));
    return TSR_OK;
}

/* Data differ by what: two parts that mixed their gradients would show it. */
static tsr_status step(rig *r, int what, int number, double *norm)
{
    tsr_dtensor *out = NULL;

    TSR_TRY(write_rows(r->ids, 5, what + number));
    TSR_TRY(write_rows(r->labels, 7, 3 * what + number));
    TSR_TRY(tsr_step_begin(r->tape, number, &r->labels, 1));
    TSR_TRY(tsr_tape_begin(r->tape, 0));
    TSR_TRY(tsr_module_call(r->model, r->tape, &r->ids, 1, &out));
    TSR_TRY(tsr_op_cross_entropy(r->tape, out, r->labels, &out));
    TSR_TRY(tsr_backward(r->tape, out));
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, norm, NULL));
    TSR_TRY(tsr_optimizer_step(r->optimizer, 0.1));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* ---- parts ---- */

static tsr_world *open_job(double timeout_s)
{
    const tsr_world_options cpu = {.backend = "cpu", .timeout_s = timeout_s};
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    return world;
}

/* The ranks of parity p, highest first. */
static tsr_world *open_parity(tsr_world *world, int p)
{
    int ranks[MOST];
    int count = 0;
    tsr_world *part = NULL;

    for (int r = tsr_world_size(world) - 1; r >= 0; r--) {
        if (r % 2 == p) {
            ranks[count++] = r;
        }
    }
    CHECK_OK(tsr_world_split(world, ranks, count, &part));
    return part;
}

static void check_as_alone(tsr_world *world, tsr_world *part, int what)
{
    tsr_world *alone = NULL;
    rig r[2];

    REQUIRE_OK(tsr_world_split(world, &(int){tsr_world_rank(world)}, 1, &alone));
    REQUIRE_OK(open_rig(part, &r[0]));
    REQUIRE_OK(open_rig(alone, &r[1]));
    for (int i = 0; i < STEPS; i++) {
        double norm[2] = {0.0};

        REQUIRE_OK(step(&r[0], what, i, &norm[0]));
        REQUIRE_OK(step(&r[1], what, i, &norm[1]));
        CHECK(norm[1] > 0.0);
        CHECK_NEAR(norm[0], norm[1], tolerance * norm[1]);
    }
    close_rig(&r[1]);
    close_rig(&r[0]);
    tsr_world_close(&alone);
}

static void disjoint_parts(void)
{
    tsr_world *world = open_job(0.0);
    const int parity = tsr_world_rank(world) % 2;
    tsr_world *part = open_parity(world, parity);

    CHECK_EQ(tsr_world_size(part), tsr_world_size(world) / 2);
    CHECK_EQ(tsr_world_rank(part), (tsr_world_size(world) - 1 - tsr_world_rank(world)) / 2);
    CHECK_STR(tsr_world_host(part, 0), tsr_world_host(world, 0));
    check_as_alone(world, part, parity);
    tsr_world_close(&part);
    tsr_world_close(&world);
}

/* The job and a part of it take turns; the other part does something else meanwhile. */
static void nested_parts(void)
{
    tsr_world *world = open_job(0.0);
    const int parity = tsr_world_rank(world) % 2;
    tsr_world *part = open_parity(world, parity);
    rig all;
    rig some;
    double norm = 0.0;

    REQUIRE_OK(open_rig(world, &all));
    REQUIRE_OK(open_rig(part, &some));
    for (int i = 0; i < STEPS; i++) {
        REQUIRE_OK(step(&all, 1, i, &norm));
        for (int k = 0; k < 1 + 2 * parity; k++) {
            REQUIRE_OK(step(&some, parity, 3 * i + k, &norm));
        }
    }
    close_rig(&some);
    close_rig(&all);
    check_as_alone(world, world, 2);
    tsr_world_close(&world); /* the part keeps the job */
    REQUIRE_OK(open_rig(part, &some));
    REQUIRE_OK(step(&some, parity, 0, &norm));
    close_rig(&some);
    tsr_world_close(&part);
}

/* A failure in one part is its own. */
static void part_that_fails(void)
{
    tsr_world *world = open_job(0.0);
    const int parity = tsr_world_rank(world) % 2;
    tsr_world *part = open_parity(world, parity);
    tsr_status mine = TSR_OK;

    if (parity == 1 && tsr_world_rank(part) == 0) {
        mine = TSR_RAISE(TSR_ERR_IO, "a disk is full");
    }
    const tsr_status status = tsr_world_agree(part, mine);
    CHECK(parity == 1 ? status != TSR_OK : status == TSR_OK);
    if (parity == 1 && tsr_world_rank(part) != 0) {
        CHECK(status == TSR_ERR_REMOTE);
        CHECK(strstr(tsr_error_message(), "rank 3 on") != NULL); /* by its number in the job */
    }
    tsr_error_clear();
    REQUIRE_OK(tsr_world_agree(world, TSR_OK));
    tsr_world_close(&part);
    tsr_world_close(&world);
}

static void refused(void)
{
    tsr_world *world = open_job(0.0);
    tsr_world *part = NULL;
    const int rank = tsr_world_rank(world);
    const int other = (rank + 1) % tsr_world_size(world);
    const int twice[] = {rank, rank};
    const int outside[] = {rank, tsr_world_size(world)};
    const int orders[2][2] = {{0, 1}, {1, 0}};

    CHECK_STATUS(TSR_ERR_INVALID, tsr_world_split(world, &other, 1, &part));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_world_split(world, twice, 2, &part));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_world_split(world, outside, 2, &part));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_world_split(world, &rank, 0, &part));
    if (rank < 2) {
        const int *ranks = orders[rank];

        CHECK(tsr_world_split(world, ranks, 2, &part) == TSR_ERR_DISAGREE);
        CHECK(strstr(tsr_error_message(), "the list of ranks") != NULL);
    }
    CHECK(part == NULL);
    tsr_error_clear();
    tsr_world_close(&world);
}

/* MPI is this program's, and so is the communicator. */
static void communicator_of_the_program(void)
{
    tsr_world *job = open_job(0.0);
    MPI_Comm half = MPI_COMM_NULL;
    tsr_world *world = NULL;
    const int rank = tsr_world_rank(job);

    REQUIRE(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half) == MPI_SUCCESS);
    const tsr_world_options options = {.backend = "cpu", .mpi_comm = &half};
    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &world));
    REQUIRE(MPI_Comm_free(&half) == MPI_SUCCESS);
    CHECK_EQ(tsr_world_size(world), tsr_world_size(job) / 2);
    CHECK_EQ(tsr_world_rank(world), (tsr_world_size(job) - 1 - rank) / 2);
    check_as_alone(job, world, rank % 2);
    tsr_world_close(&world);
    tsr_world_close(&job);
    const tsr_world_options simulated = {.backend = "sim", .mpi_comm = &half};
    CHECK_STATUS(TSR_ERR_INVALID, tsr_world_open(NULL, NULL, &simulated, &world));
}

const tsr_test_case tsr_test_cases[] = {
    {"disjoint_parts", disjoint_parts},
    {"nested_parts", nested_parts},
    {"part_that_fails", part_that_fails},
    {"refused", refused},
    {"communicator_of_the_program", communicator_of_the_program},
    {NULL, NULL}};
