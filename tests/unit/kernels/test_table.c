/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_table.c
 * The kernel tables: complete, named, and routed to the kernel that the name says.
 */
#include <stdint.h>

#include "kernels/kernels.h"
#include "support/tsr_test.h"

static int repeats(const tsri_kernel_table *table, int i)
{
    int found = 0;
    for (int j = 0; j < i; j++) {
        found += table->fn[i] == table->fn[j];
    }
    return found;
}

static void complete_and_distinct(void)
{
    const tsri_kernel_table *tables[] = {tsrk_table_ref(), tsrk_table_cpu()};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < TSRK_COUNT; i++) {
            CHECK(tables[t]->fn[i] != NULL);
            CHECK_EQ(repeats(tables[t], i), 0);
        }
    }
    CHECK_STR(tables[0]->name, "ref");
    CHECK_STR(tables[1]->name, "cpu");
    CHECK(tables[0]->workspace == NULL);
}

static void names(void)
{
    CHECK_STR(tsrk_name(TSRK_MATMUL), "matmul");
    CHECK_STR(tsrk_name(TSRK_INIT_NORMAL), "init_normal");
    CHECK_STR(tsrk_name(TSRK_COUNT), "?");
}

/* Two kernels with arguments of one layout tell apart whether entries are in the order of the ids.
 */
static void entries_run_their_kernel(void)
{
    const tsri_kernel_table *tables[] = {tsrk_table_ref(), tsrk_table_cpu()};
    const tsrk_context context = {.threads = 1};
    for (int t = 0; t < 2; t++) {
        float a[3] = {1.0F, 2.0F, 3.0F};
        float y[3] = {0.0F, 0.0F, 0.0F};
        tsrk_scale scale = {
            .x = a, .y = y, .n = 3, .factor = 2.0F, .x_type = TSR_F32, .y_type = TSR_F32};
        CHECK_OK(tables[t]->fn[TSRK_SCALE](&scale, &context));
        CHECK_NEAR(y[2], 6.0, 0.0);
        tsrk_zero zero = {.out = y, .bytes = 2 * sizeof y[0]};
        CHECK_OK(tables[t]->fn[TSRK_ZERO](&zero, &context));
        CHECK_NEAR(y[1], 0.0, 0.0);
        CHECK_NEAR(y[2], 6.0, 0.0);
    }
}

/* Workspace follows from sizes, types and threads: pointers must not matter. */
static void workspace_is_a_function_of_sizes(void)
{
    const tsri_kernel_table *cpu = tsrk_table_cpu();
    float any = 0.0F;
    tsrk_attention without = {.batch = 2,
                              .seq = 100,
                              .kv_seq = 100,
                              .heads = 4,
                              .kv_heads = 2,
                              .dim = 32,
                              .scale = 1.0F,
                              .type = TSR_BF16};
    tsrk_attention with = without;
    with.q = with.k = with.v = with.out = with.workspace = &any;
    size_t one = cpu->workspace(TSRK_ATTENTION, &without, 1);
    CHECK(one > 0);
    CHECK_EQ(cpu->workspace(TSRK_ATTENTION, &with, 1), one);
    CHECK_EQ(cpu->workspace(TSRK_ATTENTION, &with, 3), 3 * one);
    tsrk_matmul plain = {
        .m = 500, .n = 500, .k = 500, .a_type = TSR_F32, .b_type = TSR_F32, .c_type = TSR_F32};
    tsrk_matmul bound = plain;
    bound.a = bound.b = &any;
    one = cpu->workspace(TSRK_MATMUL, &plain, 1);
    CHECK(one > 0);
    CHECK_EQ(cpu->workspace(TSRK_MATMUL, &bound, 1), one);
    size_t two = cpu->workspace(TSRK_MATMUL, &plain, 2); /* a team packs one slice ahead */
    size_t member = cpu->workspace(TSRK_MATMUL, &plain, 3) - two;
    CHECK(member > 0 && two > one + member);
    CHECK_EQ(cpu->workspace(TSRK_MATMUL, &plain, 4), two + (2 * member));
    plain.c_type = TSR_BF16; /* sums wait in f32 */
    CHECK(cpu->workspace(TSRK_MATMUL, &plain, 1) >= one + ((size_t)500 * 500 * sizeof(float)));
    tsrk_zero zero = {.out = &any, .bytes = sizeof any};
    CHECK_EQ(cpu->workspace(TSRK_ZERO, &zero, 4), 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"complete_and_distinct", complete_and_distinct},
    {"names", names},
    {"entries_run_their_kernel", entries_run_their_kernel},
    {"workspace_is_a_function_of_sizes", workspace_is_a_function_of_sizes},
    {NULL, NULL},
};
