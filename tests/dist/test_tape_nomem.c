/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 */
/**
 * @file test_tape_nomem.c
 * Every allocation of a step fails once: the step fails, nothing leaks, the next step is well.
 */
#include "base/base.h"

#include <string.h>

#include "support/op_cases.h"
#include "support/tape_rig.h"

enum {
    MOST_ALLOCATIONS = 2000
};

typedef struct bench {
    rig r;
    tsr_layout layouts[OP_CASE_MAX_IN];
    float values[OP_CASE_MAX_IN][OP_CASE_MAX_ELEMENTS];
    float *value[OP_CASE_MAX_IN];
    op_result expected, got;
} bench;

static const op_case *find_case(const char *name)
{
    for (int k = 0; k < op_case_count; k++) {
        if (strcmp(op_cases[k].name, name) == 0) {
            return &op_cases[k];
        }
    }
    return NULL;
}

static void check_case(bench *b, const char *name)
{
    const op_case *c = find_case(name);
    int64_t live = 0;
    int failures = 0;
    tsr_status status = TSR_ERR_NOMEM;

    REQUIRE(c != NULL);
    for (int i = 0; i < c->in_count; i++) {
        int32_t ids[OP_CASE_MAX_ELEMENTS];

        b->value[i] = b->values[i];
        op_case_values(c, i, b->values[i], ids);
        REQUIRE_OK(tsr_layout_init(b->r.mesh, c->in[i].shape, c->in[i].ndim, &b->layouts[i]));
    }
    /* Twice, for what is kept from step to step to have its size. */
    REQUIRE_OK(op_case_run(&b->r, c, b->layouts, b->value, true, &b->expected));
    REQUIRE_OK(op_case_run(&b->r, c, b->layouts, b->value, true, &b->expected));
    for (int n = 1; n < MOST_ALLOCATIONS && status != TSR_OK; n++) {
        live = tsri_alloc_live();
        tsri_alloc_fail_at(n);
        status = op_case_run(&b->r, c, b->layouts, b->value, true, &b->got);
        tsri_alloc_fail_at(0);
        if (status != TSR_OK) {
            REQUIRE_EQ(status, TSR_ERR_NOMEM);
            tsr_error_clear();
            failures++;
        }
        REQUIRE_EQ(tsri_alloc_live(), live);
    }
    REQUIRE_OK(status);
    CHECK(failures > 20);
    CHECK_NEAR(b->got.loss, b->expected.loss, 0.0);
    for (int64_t e = 0; e < op_input_count(&c->in[0]); e++) {
        CHECK_NEAR(b->got.grad[0][e], b->expected.grad[0][e], 0.0);
    }
}

static void run_case(const char *name)
{
    const tsr_mesh_axis axes[] = {{"data", 1}};
    bench *b = NULL;

    REQUIRE_OK(tsri_alloc(1, sizeof(*b), &b));
    REQUIRE_OK(rig_open(&b->r, "cpu", axes, 1, 0));
    tsri_recorder_detach(tsri_comm_device(b->r.comm)); /* its ledger only grows */
    check_case(b, name);
    rig_close(&b->r);
    tsri_free(&b);
}

static void test_residual(void)
{
    run_case("residual");
}

static void test_attention(void)
{
    run_case("attention of 1 kv head");
}

static void test_loss(void)
{
    run_case("cross_entropy");
}

const tsr_test_case tsr_test_cases[] = {{"residual", test_residual},
                                        {"attention", test_attention},
                                        {"cross entropy", test_loss},
                                        {NULL, NULL}};
