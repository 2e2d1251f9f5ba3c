/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file host.c
 * A product of matrices at once, on the calling thread and its team: for what runs as a kernel of a
 * program's own, where nothing can be enqueued.
 */
#include "backend/backend.h"
#include "base/base.h"

#include <omp.h>

tsr_status tsri_host_matmul(const tsrk_matmul *matmul)
{
    const tsri_kernel_table *table = tsrk_table_cpu();
    tsrk_matmul args = *matmul;
    void *workspace = NULL;
    const size_t bytes = table->workspace(TSRK_MATMUL, &args, omp_get_max_threads());

    TSR_TRY(tsri_alloc(bytes > 0 ? bytes : 1, 1, &workspace));
    args.workspace = workspace;
    tsrk_cpu_matmul(&args);
    tsri_free(&workspace);
    return TSR_OK;
}
