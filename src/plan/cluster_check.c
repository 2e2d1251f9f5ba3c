/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What no machine has: rates above the maker's peak, and values in another unit than their key's.
 * The bounds are several times what the largest machines have. */
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <math.h>

#include "plan/cluster.h"

static const double giga = 1e9;
static const double tera = 1e12;
static const double gibi = 1024.0 * 1024.0 * 1024.0;
static const double bits = 8.0;
static const double rounding = 1.0 + 1e-9;

bool tsri_here_computes_bf16(void)
{
    return (tsri_cpu_backend()->caps & TSR_CAP_BF16) != 0;
}

/* ---- units ---- */

typedef struct bound {
    const char *key;
    double value, unit;
    double most;     /* in units */
    double mistaken; /* what a value in the unit that people confuse it with is divided by */
    const char *what;
} bound;

static tsr_status check_bound(const bound *b, const char *file)
{
    const double value = b->value / b->unit;

    if (value <= b->most) {
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_INVALID,
                     "%s: %s is %.6g, more than any machine has (%.6g); in %s it "
                     "would be %.4g here",
                     file, b->key, value, b->most, b->what, value / b->mistaken);
}

static tsr_status check_device(const tsri_machine *m, const char *file)
{
    const double memory = m->memory_bytes / gibi;
    const bound bounds[] = {
        {"device.memory_gib", m->memory_bytes, gibi, m->inline_compute ? 65536.0 : 4096.0,
         memory > 1e9 ? gibi : 1024.0, memory > 1e9 ? "bytes" : "MiB"},
        {"device.gb_per_s", m->bytes_per_s, giga, 20000.0, bits, "Gbit/s"},
        {"device.host_gb_per_s", m->host_bytes_per_s, giga, 2000.0, bits, "Gbit/s"},
        {"device.peak_tflops.f32", m->peak_flops[TSRI_MACHINE_F32], tera, 50000.0, 1e3, "GFLOP/s"},
        {"device.peak_tflops.bf16", m->peak_flops[TSRI_MACHINE_HALF], tera, 50000.0, 1e3,
         "GFLOP/s"},
        {"device.tflops.f32", m->flops[TSRI_MACHINE_F32], tera, 50000.0, 1e3, "GFLOP/s"},
        {"device.tflops.bf16", m->flops[TSRI_MACHINE_HALF], tera, 50000.0, 1e3, "GFLOP/s"},
        {"device.launch_us", m->launch_s, 1e-6, 1e5, 1e3, "ns"},
        {"device.collective_us", m->call_s, 1e-6, 1e6, 1e3, "ns"},
    };

    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        TSR_TRY(check_bound(&bounds[i], file));
    }
    if (m->memory_bytes > 0.0 && m->headroom_bytes >= m->memory_bytes) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s: device.headroom_gib is %.4g of a memory of %.4g: nothing is left",
                         file, m->headroom_bytes / gibi, m->memory_bytes / gibi);
    }
    if (m->contention >= 1.0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s: device.contention is %.4g, wants a share of a second below 1", file,
                         m->contention);
    }
    return TSR_OK;
}

/* Of the link between blocks, each device's part. */
static tsr_status check_links(const tsri_machine *m, const char *file)
{
    for (int tier = 0; tier < m->tier_count; tier++) {
        const tsri_tier *t = &m->tiers[tier];
        const double devices = tier > 0 ? (double)m->tiers[tier - 1].span : 1.0;
        const double each = t->bytes_per_s / giga / devices;
        const double most = tier > 0 ? 200.0 : 2000.0;

        if (each > most) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "%s: link %s of %.6g GB/s is %.6g for each device, more than any "
                             "machine has (%.4g); %.6g Gbit/s would be %.6g GB/s",
                             file, t->name, t->bytes_per_s / giga, each, most,
                             t->bytes_per_s / giga, t->bytes_per_s / giga / bits);
        }
        if (t->hop_s > 1.0) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "%s: link %s has a hop_us of %.6g: more than a second", file, t->name,
                             t->hop_s * 1e6);
        }
    }
    return TSR_OK;
}

/* ---- peaks ---- */

static tsr_status raise_above(const char *file, const char *key, double rate, double peak)
{
    return TSR_RAISE(
        TSR_ERR_INVALID,
        "%s: %s is %.6g TFLOP/s, more than the peak of %.6g; products reach 0.6 to 0.8 "
        "of it, %.4g say",
        file, key, rate / tera, peak / tera, 0.7 * peak / tera);
}

static tsr_status check_peaks(const tsri_machine *m, const char *file)
{
    static const char *const keys[] = {"device.tflops.f32", "device.tflops.bf16"};
    static const tsrk_id multiplying[] = {TSRK_MATMUL, TSRK_ATTENTION, TSRK_ATTENTION_BWD};
    const double most = fmax(m->peak_flops[0], m->peak_flops[1]);

    for (int type = 0; type < TSRI_MACHINE_TYPES; type++) {
        if (m->peak_flops[type] > 0.0 && m->flops[type] > m->peak_flops[type] * rounding) {
            return raise_above(file, keys[type], m->flops[type], m->peak_flops[type]);
        }
    }
    for (int i = 0; i < 3 && most > 0.0; i++) {
        if (m->kernel_rate[multiplying[i]] > most * rounding) {
            return raise_above(file, tsrk_name(multiplying[i]), m->kernel_rate[multiplying[i]],
                               most);
        }
    }
    return TSR_OK;
}

tsr_status tsri_cluster_check(const tsri_machine *machine, const char *file)
{
    TSR_TRY(check_device(machine, file));
    TSR_TRY(check_peaks(machine, file));
    TSR_TRY(check_links(machine, file));
    return TSR_OK;
}
