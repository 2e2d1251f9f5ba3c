/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fuzz_safetensors.c
 * Any bytes as a safetensors file: opened and read to the last element, or refused.
 */
#include "base/base.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_ends(tsri_safetensors *st, const tsri_safetensors_tensor *t)
{
    float value = 0.0F;
    int32_t number = 0;

    if (t->count > 0) {
        (void)tsri_safetensors_read_f32(st, t, 0, 1, &value);
        (void)tsri_safetensors_read_f32(st, t, t->count - 1, 1, &value);
        (void)tsri_safetensors_read_i32(st, t, t->count - 1, 1, &number);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    tsri_safetensors *st = NULL;
    char path[64];

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) {
        __builtin_trap();
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (tsri_safetensors_open(path, &st) == TSR_OK) {
        for (int i = 0; i < tsri_safetensors_count(st); i++) {
            read_ends(st, tsri_safetensors_at(st, i));
        }
        tsri_safetensors_close(&st);
    }
    tsr_error_clear();
    (void)close(fd);
    return 0;
}
