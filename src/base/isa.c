/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file isa.c
 * Which instructions the kernels use: what the processor has, or less where TSR_CPU_ISA says so.
 *
 * The levels are those for which kernels/cpu is compiled (cmake/TesseraKernels.cmake).
 */
#include "base/base_priv.h"

#include <stdlib.h>
#include <string.h>

static const char *const g_isa_names[] = {"baseline", "avx2", "avx512"};

static tsri_isa isa_of_processor(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
        return TSRI_ISA_BASELINE;
    }
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl")) {
        return TSRI_ISA_AVX2;
    }
    return TSRI_ISA_AVX512;
#else
    return TSRI_ISA_BASELINE;
#endif
}

const char *tsri_isa_name(tsri_isa isa)
{
    return g_isa_names[isa];
}

tsr_status tsri_isa_choose(const char *asked, tsri_isa *out)
{
    const tsri_isa have = isa_of_processor();
    int level = TSRI_ISA_BASELINE;

    if (asked == NULL || *asked == '\0') {
        *out = have;
        return TSR_OK;
    }
    while (level <= TSRI_ISA_AVX512 && strcmp(asked, g_isa_names[level]) != 0) {
        level++;
    }
    if (level > TSRI_ISA_AVX512) {
        return TSR_RAISE(TSR_ERR_INVALID, "TSR_CPU_ISA is \"%s\", not baseline, avx2 or avx512",
                         asked);
    }
    if (level > (int)have) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "TSR_CPU_ISA is %s, this processor has %s", asked,
                         g_isa_names[have]);
    }
    *out = (tsri_isa)level;
    return TSR_OK;
}

tsri_isa tsri_isa_level(void)
{
    int level = atomic_load(&tsri_g_process.isa);

    if (level < 0) {
        tsri_isa chosen = TSRI_ISA_BASELINE;

        if (tsri_isa_choose(getenv("TSR_CPU_ISA"), &chosen) != TSR_OK) {
            tsr_error_clear();
            chosen = isa_of_processor();
        }
        level = (int)chosen;
        atomic_store(&tsri_g_process.isa, level);
    }
    return (tsri_isa)level;
}

bool tsri_isa_has_bf16(void)
{
#if defined(__x86_64__)
    return tsri_isa_level() == TSRI_ISA_AVX512 && __builtin_cpu_supports("avx512bf16") != 0;
#else
    return false;
#endif
}
