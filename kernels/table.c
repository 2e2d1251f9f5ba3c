/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file table.c
 * The tables of the reference and the cpu kernels, generated from the one list of kernels.
 *
 * Each entry is a thunk with the common signature that casts the arguments to the kernel's struct,
 * so a kernel itself has a typed signature and a missing one is a link error.
 */
#include "kernels/cpu/cpu_priv.h"

#include "kernels/kernels.h"

#define TSRK_CHECK_SIZE(upper, lower) \
    _Static_assert(sizeof(tsrk_##lower) <= TSRK_ARGS_MAX_BYTES, "arguments of " #lower);
TSRK_MAP(TSRK_CHECK_SIZE)
#undef TSRK_CHECK_SIZE

#define TSRK_THUNK(upper, lower) \
    static void ref_##lower(const void *args, void *stream) \
    { \
        (void)stream; \
        tsrk_ref_##lower(args); \
    } \
    static void cpu_##lower(const void *args, void *stream) \
    { \
        (void)stream; \
        tsrk_cpu_##lower(args); \
    }
TSRK_MAP(TSRK_THUNK)
#undef TSRK_THUNK

static size_t cpu_workspace(tsrk_id id, const void *args, int threads)
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

#define TSRK_REF_ENTRY(upper, lower) [TSRK_##upper] = ref_##lower,
#define TSRK_CPU_ENTRY(upper, lower) [TSRK_##upper] = cpu_##lower,
static const tsri_kernel_table table_ref = {
    .name = "ref",
    .fn = {TSRK_MAP(TSRK_REF_ENTRY)},
};
static const tsri_kernel_table table_cpu = {
    .name = "cpu",
    .fn = {TSRK_MAP(TSRK_CPU_ENTRY)},
    .workspace = cpu_workspace,
};

const char *tsrk_name(tsrk_id id)
{
#define TSRK_NAME(upper, lower) [TSRK_##upper] = #lower,
    static const char *const names[TSRK_COUNT] = {TSRK_MAP(TSRK_NAME)};
#undef TSRK_NAME
    return (unsigned)id < TSRK_COUNT ? names[id] : "?";
}

const tsri_kernel_table *tsrk_table_ref(void)
{
    return &table_ref;
}

const tsri_kernel_table *tsrk_table_cpu(void)
{
    return &table_cpu;
}
