/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_custom_op.c
 * Custom operations: what the race check and a simulated world see of them, and refusals.
 *
 * Their values and gradients are cases of test_op_gradients.c and test_ops.c.
 */
#include "base/base.h"

#include <string.h>

#include "support/custom_ops.h"
#include "support/tape_rig.h"

static const int64_t shape[] = {4, 6};
static float values[24];

static tsr_dtensor *make_leaf(rig *r, const tsr_layout *layout)
{
    rig_leaf *leaf = NULL;

    for (int i = 0; i < 24; i++) {
        values[i] = 0.125F * (float)(i % 7) - 0.25F;
    }
    CHECK_OK(rig_leaf_add(r, "leaf", layout, values, &leaf));
    return leaf != NULL ? leaf->param.value : NULL;
}

static tsr_status open_rig(rig *r, const char *backend, int size, int rank)
{
    return rig_open(r, backend, &(tsr_mesh_axis){"data", size}, 1, rank);
}

/* The tape goes first: nodes that no backward played hold leaves, which are the rig's. */
static void close_rig(rig *r)
{
    tsr_tape_destroy(&r->tape);
    rig_close(r);
}

/* ---- race check ---- */

/* Zero the bytes of tensor on another stream, which nothing orders. */
static tsr_status zero_elsewhere(const rig *r, tsr_dtensor *tensor)
{
    tsri_call launch = {.stream = tsri_comm_stream(r->comm, TSRI_STREAM_GATHER), .label = "zero"};
    const tsrk_zero args = {.out = tsri_out(&launch, tensor), .bytes = tsri_dtensor_bytes(tensor)};

    return TSRI_LAUNCH(&launch, ZERO, &args);
}

static void accesses_are_seen(void)
{
    for (int which = 0; which < 2; which++) {
        rig r;
        tsr_layout layout;
        tsr_dtensor *x = NULL;
        tsr_dtensor *y = NULL;

        REQUIRE_OK(open_rig(&r, "cpu", tsr_test_size(), 0));
        REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
        x = make_leaf(&r, &layout);
        REQUIRE_OK(rig_begin(&r, 0));
        REQUIRE_OK(softcap(r.tape, x, 2.0F, &y));
        CHECK_STATUS(TSR_ERR_INTERNAL, zero_elsewhere(&r, which == 0 ? x : y));
        close_rig(&r);
    }
}

/* ---- simulated worlds ---- */

static int count_kernels(const rig *r, tsrk_id kernel)
{
    int count = 0;
    int found = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(r->comm), &count);

    for (int i = 0; i < count; i++) {
        found += entries[i].kind == TSRI_ENTRY_KERNEL && entries[i].op == (int)kernel;
    }
    return found;
}

static void sim_has_sizes_and_no_bytes(void)
{
    const int64_t gain_shape[] = {6};
    const int before = custom_ops_runs();
    rig r;
    tsr_layout layout;
    tsr_layout whole;
    tsr_dtensor *x = NULL;
    tsr_dtensor *gain = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *weight = NULL;
    tsr_dtensor *loss = NULL;

    REQUIRE_OK(open_rig(&r, "sim", 3, 1));
    REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
    REQUIRE_OK(rig_layout(&r, gain_shape, 1, (const char *[]){"R"}, &whole));
    x = make_leaf(&r, &layout);
    gain = make_leaf(&r, &whole);
    REQUIRE_OK(rig_floats(&r, &layout, values, &weight));
    REQUIRE_OK(rig_begin(&r, 0));
    REQUIRE_OK(unit_rows(r.tape, x, gain, &y));
    CHECK_EQ(tsr_dtensor_local_count(y), 2 * 6); /* rows 2..3 of 4 over 3 ranks */
    REQUIRE_OK(softcap(r.tape, y, 2.0F, &y));
    REQUIRE_OK(rig_dot(r.tape, y, weight, &loss));
    REQUIRE_OK(tsr_backward(r.tape, loss));
    CHECK_OK(tsr_step_end(r.tape));
    CHECK_EQ(custom_ops_runs(), before);
    CHECK_EQ(count_kernels(&r, TSRK_CUSTOM), 4);
    tsr_dtensor_release(&weight);
    close_rig(&r);
}

/* A second plan of the same step finds every range where the first had it: nothing grows. */
static void real_steps_run_what_sim_planned(void)
{
    size_t now[2];
    size_t peak[3];
    rig r;
    tsr_layout layout;
    tsr_dtensor *x = NULL;
    tsr_dtensor *weight = NULL;

    REQUIRE_OK(open_rig(&r, "cpu", tsr_test_size(), 0));
    REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
    x = make_leaf(&r, &layout);
    REQUIRE_OK(rig_floats(&r, &layout, values, &weight));
    for (int step = 0; step < 3; step++) {
        const int before = custom_ops_runs();
        tsr_dtensor *y = NULL;
        tsr_dtensor *loss = NULL;

        REQUIRE_OK(rig_begin(&r, step));
        REQUIRE_OK(softcap(r.tape, x, 2.0F, &y));
        REQUIRE_OK(rig_dot(r.tape, y, weight, &loss));
        REQUIRE_OK(tsr_backward(r.tape, loss));
        CHECK_OK(tsr_step_end(r.tape));
        CHECK_EQ(custom_ops_runs(), before + 2);
        tsr_comm_memory(r.comm, &now[step > 1], &peak[step]);
    }
    CHECK_EQ(peak[1], peak[2]);
    tsr_dtensor_release(&weight);
    close_rig(&r);
}

/* ---- refusals ---- */

static tsr_status place_as_told(tsr_op_axis *axis)
{
    tsr_placement told[2];

    memcpy(told, axis->shapes->attr, sizeof(told));
    axis->in[0] = told[0];
    axis->out = told[1];
    return TSR_OK;
}

static tsr_status save_five(tsr_op_shapes *shapes)
{
    shapes->saved_count = 5;
    return TSR_OK;
}

static void run_nothing(const tsr_op_work *work)
{
    (void)work;
}

static void check_refused(rig *r, const tsr_custom_op *op, tsr_dtensor *x, const void *attr,
                          size_t bytes, tsr_status status, const char *message)
{
    tsr_dtensor *y = NULL;

    CHECK_EQ(tsr_op_custom(r->tape, op, &x, 1, attr, bytes, &y), status);
    if (strstr(tsr_error_message(), message) == NULL) {
        CHECK_STR(tsr_error_message(), message);
    }
    CHECK(y == NULL);
    tsr_error_clear();
}

static void definitions_are_checked(void)
{
    static const char large[TSR_OP_ATTR_BYTES + 1];
    tsr_custom_op op = {.name = "nothing", .place = place_as_told, .forward = run_nothing};
    rig r;
    tsr_layout layout;
    tsr_dtensor *x = NULL;
    tsr_dtensor *many[5];
    tsr_dtensor *y = NULL;

    REQUIRE_OK(open_rig(&r, "cpu", tsr_test_size(), 0));
    REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
    x = make_leaf(&r, &layout);
    REQUIRE_OK(rig_begin(&r, 0));
    check_refused(&r, &op, x, large, sizeof(large), TSR_ERR_INVALID,
                  "nothing with 97 bytes of settings, at most 96");
    check_refused(&r, &op, x, NULL, 8, TSR_ERR_INVALID, "settings at NULL");
    for (int i = 0; i < 5; i++) {
        many[i] = x;
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsr_op_custom(r.tape, &op, many, 5, NULL, 0, &y));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_op_custom(r.tape, &op, many, 0, NULL, 0, &y));
    op.shape = save_five;
    check_refused(&r, &op, x, NULL, 0, TSR_ERR_INVALID, "nothing: saves 5 values, at most 4");
    op.forward = NULL;
    check_refused(&r, &op, x, NULL, 0, TSR_ERR_INVALID, "nothing has no forward");
    op.place = NULL;
    check_refused(&r, &op, x, NULL, 0, TSR_ERR_INVALID, "nothing has no place");
    op.name = NULL;
    check_refused(&r, &op, x, NULL, 0, TSR_ERR_INVALID, "(null) has no name");
    close_rig(&r);
}

static void rules_are_checked(void)
{
    static const tsr_custom_op op = {
        .name = "nothing", .place = place_as_told, .forward = run_nothing};
    rig r;
    tsr_layout layout;
    tsr_dtensor *x = NULL;

    REQUIRE_OK(open_rig(&r, "sim", 2, 0));
    REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
    x = make_leaf(&r, &layout);
    REQUIRE_OK(rig_begin(&r, 0));
    check_refused(&r, &op, x, (tsr_placement[]){tsr_shard(2), tsr_shard(0)},
                  2 * sizeof(tsr_placement), TSR_ERR_PLACEMENT,
                  "nothing: Shard(2) of input 0 of 2 dims on axis \"data\"");
    check_refused(&r, &op, x, (tsr_placement[]){tsr_shard(0), tsr_shard(-1)},
                  2 * sizeof(tsr_placement), TSR_ERR_PLACEMENT,
                  "nothing: Shard(-1) of output 0 of 2 dims on axis \"data\"");
    check_refused(&r, &op, x, (tsr_placement[]){tsr_shard(0), tsr_replicate()},
                  2 * sizeof(tsr_placement), TSR_ERR_PLACEMENT,
                  "nothing: on axis \"data\" the output is Replicate, but input 0 is Shard");
    check_refused(&r, &op, x, (tsr_placement[]){tsr_partial(), tsr_partial()},
                  2 * sizeof(tsr_placement), TSR_ERR_PLACEMENT, "to Partial");
    close_rig(&r);
}

/* A backend that computes elsewhere: the cpu's table without the one capability. */
static void devices_without_host_addresses_are_refused(void)
{
    rig r;
    tsr_layout layout;
    tsr_dtensor *x = NULL;
    tsr_dtensor *y = NULL;
    tsr_backend remote = tsri_backend_cpu;

    REQUIRE_OK(open_rig(&r, "cpu", tsr_test_size(), 0));
    REQUIRE_OK(rig_layout(&r, shape, 2, (const char *[]){"S0"}, &layout));
    x = make_leaf(&r, &layout);
    REQUIRE_OK(rig_begin(&r, 0));
    remote.caps &= ~(uint32_t)TSR_CAP_HOST;
    tsri_comm_device(r.comm)->backend = &remote;
    CHECK_STATUS(TSR_ERR_UNSUPPORTED, softcap(r.tape, x, 2.0F, &y));
    tsri_comm_device(r.comm)->backend = &tsri_backend_cpu;
    close_rig(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"accesses_are_seen", accesses_are_seen},
    {"sim_has_sizes_and_no_bytes", sim_has_sizes_and_no_bytes},
    {"real_steps_run_what_sim_planned", real_steps_run_what_sim_planned},
    {"definitions_are_checked", definitions_are_checked},
    {"rules_are_checked", rules_are_checked},
    {"devices_without_host_addresses_are_refused", devices_without_host_addresses_are_refused},
    {NULL, NULL},
};
