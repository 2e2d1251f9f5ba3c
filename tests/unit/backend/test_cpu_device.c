/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The cpu backend in one process without MPI: memory, settings, reductions, registry. */
#include "backend/cpu/cpu_priv.h"

#include "backend/dispatch.h"
#include "base/base.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

static tsr_device *open_device(void)
{
    tsr_device *device = NULL;
    const tsr_backend *backend = NULL;

    CHECK_OK(tsri_backend_find("cpu", &backend));
    CHECK_OK(tsri_device_open(backend, NULL, &device));
    return device;
}

static void check_says(const char *text)
{
    if (strstr(tsr_error_message(), text) == NULL) {
        CHECK_STR(tsr_error_message(), text);
    }
    tsr_error_clear();
}

/* ---- registry and settings ---- */

static void test_registry(void)
{
    const tsr_backend *backend = NULL;

    CHECK_OK(tsri_backend_find("auto", &backend));
    CHECK_STR(backend->name, "cpu");
    CHECK_OK(tsri_backend_find("sim", &backend));
    CHECK(backend == &tsri_backend_sim);
    CHECK_EQ(tsri_backend_find("cpx", &backend), TSR_ERR_INVALID);
    check_says("cpu, sim, auto; nearest: cpu");
    CHECK(backend == &tsri_backend_sim);
    CHECK_EQ(tsri_backend_cpu.caps & ~(unsigned)TSR_CAP_BF16,
             TSR_CAP_EXECUTES | TSR_CAP_ASYNC | TSR_CAP_HOST | TSR_CAP_WIDE_SUMS);
}

static void test_environment(void)
{
    tsr_device *device = NULL;

    REQUIRE(setenv("TSR_KERNELS", "ref", 1) == 0);
    device = open_device();
    REQUIRE(device != NULL);
    CHECK(device->kernels == tsrk_table_ref());
    CHECK(device->threads >= 1);
    CHECK_NEAR(device->timeout_s, 600, 0);
    tsri_device_close(&device);
    REQUIRE(setenv("TSR_KERNELS", "gpu", 1) == 0);
    CHECK_EQ(tsri_device_open(&tsri_backend_cpu, NULL, &device), TSR_ERR_INVALID);
    check_says("TSR_KERNELS is \"gpu\"");
    REQUIRE(unsetenv("TSR_KERNELS") == 0);
    REQUIRE(setenv("TSR_CPU_TRANSPORT", "pigeon", 1) == 0);
    CHECK_EQ(tsri_device_open(&tsri_backend_cpu, NULL, &device), TSR_ERR_INVALID);
    check_says("TSR_CPU_TRANSPORT is \"pigeon\"");
    REQUIRE(unsetenv("TSR_CPU_TRANSPORT") == 0);
    CHECK_EQ(tsri_device_open(&tsri_backend_cpu, &(tsri_device_options){.device = "1"}, &device),
             TSR_ERR_INVALID);
    check_says("found a choice of device \"1\"");
    /* A world needs the boot, which has not run here. */
    CHECK_EQ(tsri_device_open(&tsri_backend_cpu, &(tsri_device_options){.world_size = 2}, &device),
             TSR_ERR_STATE);
    tsr_error_clear();
    CHECK(device == NULL);
}

/* An allocation that fails while a device opens leaves nothing behind. */
static void test_open_without_memory(void)
{
    int64_t before = tsri_alloc_live();
    bool opened = false;

    for (int n = 1; n < 20 && !opened; n++) {
        tsr_device *device = NULL;
        tsri_alloc_fail_at(n);
        tsr_status status = tsri_device_open(&tsri_backend_cpu, NULL, &device);
        tsri_alloc_fail_at(0);
        opened = status == TSR_OK;
        CHECK(opened || status == TSR_ERR_NOMEM);
        tsr_error_clear();
        tsri_device_close(&device);
        CHECK_EQ(tsri_alloc_live(), before);
    }
    CHECK(opened);
}

/* ---- memory ---- */

static void test_too_large(void)
{
    tsr_device *device = open_device();
    tsr_buffer *buffer = NULL;

    REQUIRE(device != NULL);
    CHECK_EQ(tsri_buffer_alloc(device, (size_t)1 << 50, TSRI_MEM_OTHER, "x", &buffer),
             TSR_ERR_NOMEM);
    check_says("a buffer of 1125899906842624 bytes");
    CHECK(buffer == NULL);
    CHECK_OK(tsri_buffer_alloc(device, 0, TSRI_MEM_OTHER, "nothing", &buffer));
    tsri_buffer_release(&buffer);
    tsri_device_close(&device);
}

#define LIVE 60

/* Random buffers: disjoint, aligned, zeroed even where memory is used again; all comes back. */
static void test_random_buffers(void)
{
    tsr_device *device = open_device();
    tsr_buffer *buffer[LIVE] = {NULL};
    uint64_t draw = 0;

    REQUIRE(device != NULL);
    const tsri_cpu_heap *heap = &((tsri_cpu_device *)device)->heap;
    for (int step = 0; step < 2000; step++) {
        int i = (int)(tsri_rng_word(7, draw++) % LIVE);
        if (buffer[i] != NULL) {
            unsigned char *at = buffer[i]->address;
            bool intact = at[0] == (unsigned char)(i + 1) &&
                          at[buffer[i]->bytes - 1] == (unsigned char)(i + 1);
            REQUIRE(intact);
            tsri_buffer_release(&buffer[i]);
            continue;
        }
        size_t most = step % 9 == 0 ? (size_t)5 << 20 : 20000;
        size_t bytes = 2 + (tsri_rng_word(7, draw++) % most);
        REQUIRE_OK(tsri_buffer_alloc(device, bytes, TSRI_MEM_OTHER, "x", &buffer[i]));
        unsigned char *at = buffer[i]->address;
        REQUIRE(at[0] == 0 && at[bytes / 2] == 0 && at[bytes - 1] == 0);
        REQUIRE((uintptr_t)at % 256 == 0);
        at[0] = at[bytes / 2] = at[bytes - 1] = (unsigned char)(i + 1);
        for (int f = 1; f < heap->free_count; f++) {
            REQUIRE(heap->free[f - 1].offset + heap->free[f - 1].bytes < heap->free[f].offset);
        }
    }
    for (int i = 0; i < LIVE; i++) {
        tsri_buffer_release(&buffer[i]);
    }
    CHECK_EQ(heap->free_count, 1);
    CHECK_EQ(heap->free[0].bytes, heap->bytes);
    CHECK_EQ(heap->live_bytes, 0);
    tsri_device_close(&device);
}

/* ---- reductions ---- */

/* Every f16 goes to f32 and back unchanged; NaNs stay NaNs. */
static void test_f16_round_trip(void)
{
    int wrong = 0;

    for (unsigned bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        uint16_t back = 0;
        float wide = 0;
        tsri_cpu_widen(TSR_F16, &half, &wide, 1);
        tsri_cpu_narrow(TSR_F16, &wide, &back, 1);
        bool nan = (bits & 0x7C00U) == 0x7C00U && (bits & 0x3FFU) != 0;
        bool fine =
            nan ? isnan(wide) && (back & 0x7C00U) == 0x7C00U && (back & 0x3FFU) != 0 : back == half;
        wrong += fine ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
}

/* Halfway between two neighbours goes to the even one, just above it up, just below it down. */
static void check_rounding(tsr_dtype dtype, unsigned first, unsigned last)
{
    int wrong = 0;

    for (unsigned bits = first; bits < last; bits++) {
        uint16_t pair[2] = {(uint16_t)bits, (uint16_t)(bits + 1)};
        uint16_t got[3] = {0};
        float wide[2];
        tsri_cpu_widen(dtype, pair, wide, 2);
        float middle = (wide[0] / 2) + (wide[1] / 2);
        float values[3] = {middle, nextafterf(middle, 0), nextafterf(middle, HUGE_VALF)};
        tsri_cpu_narrow(dtype, values, got, 3);
        uint16_t even = (bits & 1U) == 0 ? pair[0] : pair[1];
        wrong += got[0] == even && got[1] == pair[0] && got[2] == pair[1] ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
}

static void test_rounding(void)
{
    uint16_t half = 0;
    float values[] = {65519.0F, 65520.0F, 1e30F, -1e30F};
    static const uint16_t want[] = {0x7BFF, 0x7C00, 0x7C00, 0xFC00};

    check_rounding(TSR_F16, 0, 0x7BFF);
    check_rounding(TSR_BF16, 0x0100, 0x7F00);
    for (int i = 0; i < 4; i++) {
        tsri_cpu_narrow(TSR_F16, &values[i], &half, 1);
        CHECK_EQ(half, want[i]);
    }
}

static float terms[5][5000];

/* terms[0..n) afresh; want: their sum in order. */
static void draw_terms(int n, int64_t count, float *want)
{
    for (int m = 0; m < n; m++) {
        for (int64_t i = 0; i < count; i++) {
            terms[m][i] = tsri_rng_uniform((uint64_t)m, (uint64_t)i) - 0.5F;
            want[i] = m == 0 ? terms[m][i] : want[i] + terms[m][i];
        }
    }
}

static int64_t count_wrong_sums(int n, int out, int64_t count)
{
    static float want[5000];
    const void *source[5];
    int64_t wrong = 0;

    for (int m = 0; m < n; m++) {
        source[m] = terms[m];
    }
    draw_terms(n, count, want);
    tsri_cpu_reduce(TSR_F32, TSRI_SUM, source, n, terms[out], count);
    for (int64_t i = 0; i < count; i++) {
        wrong += terms[out][i] == want[i] ? 0 : 1;
    }
    return wrong;
}

/* Any number of sources, any source as output, sizes around a block: the order of sources. */
static void test_reduce_in_place(void)
{
    static const int64_t sizes[] = {1, 7, 2047, 2048, 2049, 5000};

    for (int n = 1; n <= 5; n++) {
        for (int out = 0; out < n; out++) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                CHECK_EQ(count_wrong_sums(n, out, sizes[s]), 0);
            }
        }
    }
}

static void test_integers_wrap(void)
{
    const int32_t a = INT32_MAX;
    const int32_t b = 2;
    int32_t out = 0;
    const void *source[] = {&a, &b};

    tsri_cpu_reduce(TSR_I32, TSRI_SUM, source, 2, &out, 1);
    CHECK_EQ(out, INT32_MIN + 1);
    tsri_cpu_reduce(TSR_I32, TSRI_MAX, source, 2, &out, 1);
    CHECK_EQ(out, INT32_MAX);
}

const tsr_test_case tsr_test_cases[] = {
    {"registry", test_registry},
    {"environment", test_environment},
    {"open_without_memory", test_open_without_memory},
    {"too_large", test_too_large},
    {"random_buffers", test_random_buffers},
    {"f16_round_trip", test_f16_round_trip},
    {"rounding", test_rounding},
    {"reduce_in_place", test_reduce_in_place},
    {"integers_wrap", test_integers_wrap},
    {NULL, NULL},
};
