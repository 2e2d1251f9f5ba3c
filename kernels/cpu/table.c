/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file table.c
 * The table of one instruction level, generated from the one list of kernels.
 *
 * Each entry is a thunk with the common signature that casts the arguments to the kernel's struct,
 * so a kernel itself has a typed signature and a missing one is a link error.
 */
#include "kernels/cpu/cpu_priv.h"

#define TSRK_THUNK(upper, lower) \
    static tsr_status run_##lower(const void *args, const tsrk_context *context) \
    { \
        return tsrk_cpu_##lower(args, context); \
    }
TSRK_MAP(TSRK_THUNK)
#undef TSRK_THUNK

static size_t workspace_of(tsrk_id id, const void *args, int threads)
{
    if (id == TSRK_MATMUL) {
        return tsrk_cpu_ws_matmul(args, threads);
    }
    if (id == TSRK_LAYERNORM_BWD) {
        return tsrk_cpu_ws_layernorm_bwd(args, threads);
    }
    if (id == TSRK_RMSNORM_BWD) {
        return tsrk_cpu_ws_rmsnorm_bwd(args, threads);
    }
    if (id == TSRK_ATTENTION) {
        return tsrk_cpu_ws_attention(args, threads);
    }
    if (id == TSRK_ATTENTION_BWD) {
        return tsrk_cpu_ws_attention_bwd(args, threads);
    }
    return 0;
}

#define TSRK_ENTRY(upper, lower) [TSRK_##upper] = run_##lower,
static const tsri_kernel_table table = {
    .name = "cpu",
    .fn = {TSRK_MAP(TSRK_ENTRY)},
    .workspace = workspace_of,
};

const tsri_kernel_table *tsrk_cpu_table(void)
{
    return &table;
}
