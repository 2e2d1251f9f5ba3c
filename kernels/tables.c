/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tables.c
 * The reference's table, the cpu's table of the instruction level at work, and what forwards to it.
 */
#include "base/base.h"

#include <omp.h>

#include "kernels/kernels.h"

#define TSRK_CHECK_SIZE(upper, lower) \
    _Static_assert(sizeof(tsrk_##lower) <= TSRK_ARGS_MAX_BYTES, "arguments of " #lower);
TSRK_MAP(TSRK_CHECK_SIZE)
#undef TSRK_CHECK_SIZE

#define TSRK_THUNK(upper, lower) \
    static tsr_status ref_##lower(const void *args, const tsrk_context *context) \
    { \
        (void)context; \
        return tsrk_ref_##lower(args); \
    }
TSRK_MAP(TSRK_THUNK)
#undef TSRK_THUNK

#define TSRK_ENTRY(upper, lower) [TSRK_##upper] = ref_##lower,
static const tsri_kernel_table table_ref = {
    .name = "ref",
    .fn = {TSRK_MAP(TSRK_ENTRY)},
};
#undef TSRK_ENTRY

const tsri_kernel_table *tsrk_baseline_table(void);
const tsri_kernel_table *tsrk_avx2_table(void);
const tsri_kernel_table *tsrk_avx512_table(void);

const tsri_kernel_table *tsrk_table_ref(void)
{
    return &table_ref;
}

const tsri_kernel_table *tsrk_table_cpu(void)
{
#if defined(__x86_64__)
    if (tsri_isa_level() == TSRI_ISA_AVX512) {
        return tsrk_avx512_table();
    }
    if (tsri_isa_level() == TSRI_ISA_AVX2) {
        return tsrk_avx2_table();
    }
#endif
    return tsrk_baseline_table();
}

#define TSRK_FORWARD(upper, lower) \
    tsr_status tsrk_cpu_##lower(const tsrk_##lower *args) \
    { \
        const tsrk_context context = {.threads = omp_get_max_threads()}; \
        return tsrk_table_cpu()->fn[TSRK_##upper](args, &context); \
    }
TSRK_MAP(TSRK_FORWARD)
#undef TSRK_FORWARD

const char *tsrk_name(tsrk_id id)
{
#define TSRK_NAME(upper, lower) [TSRK_##upper] = #lower,
    static const char *const names[TSRK_COUNT] = {TSRK_MAP(TSRK_NAME)};
#undef TSRK_NAME
    return (unsigned)id < TSRK_COUNT ? names[id] : "?";
}
