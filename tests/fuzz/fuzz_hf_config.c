/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fuzz_hf_config.c
 * Any bytes as a config.json: a model whose sizes are within their bounds, or refused.
 */
#include "base/base.h"
#include "base/bounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/hf.h"

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static bool is_sound(const tsri_model_spec *spec)
{
    return tsri_bound_allows(TSRI_BOUND_LAYERS, spec->layers) &&
           tsri_bound_allows(TSRI_BOUND_VOCAB, (double)spec->vocab) &&
           tsri_bound_allows(TSRI_BOUND_NORM_EPS, spec->norm_eps) &&
           tsri_model_param_count(spec) > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    char notice[TSRI_HF_NOTICE_BYTES] = "";
    tsri_model_spec spec;
    char path[64];

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) {
        __builtin_trap();
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (tsri_hf_read_config(path, &spec, notice) == TSR_OK && !is_sound(&spec)) {
        abort();
    }
    tsr_error_clear();
    (void)close(fd);
    return 0;
}
