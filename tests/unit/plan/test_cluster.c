/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Cluster files: the built-in ones, writing and reading back, and what is refused. */
#include "base/base.h"

#include <string.h>

#include "plan/cluster.h"
#include "support/tsr_test.h"

static tsr_status parse(const char *text, tsri_cluster *out)
{
    return tsri_cluster_parse(text, strlen(text), "c.yaml", out);
}

#define DEVICE "device: {gb_per_s: 10, tflops: {f32: 1, bf16: 2}}\n"
#define LINKS \
    "links: [{name: bus, ranks: 4, gb_per_s: 8}, {name: net, ranks: all, gb_per_s: 1, hop_us: " \
    "5, busy_us: 8}]\n"

static void test_values(void)
{
    tsri_cluster c;

    REQUIRE_OK(
        parse("name: x\ntarget: cpu\n" DEVICE "kernels: {attention: 3, adamw: 7}\n" LINKS, &c));
    CHECK_STR(c.machine.name, "x");
    CHECK(c.machine.inline_compute);
    CHECK_EQ(c.devices, 4);
    CHECK(c.machine.bytes_per_s == 10e9);
    CHECK(c.machine.flops[TSRI_MACHINE_HALF] == 2e12);
    CHECK(c.machine.kernel_rate[TSRK_ATTENTION] == 3e12);
    CHECK(c.machine.kernel_rate[TSRK_ADAMW] == 7e9);
    CHECK_EQ(c.machine.tier_count, 2);
    CHECK_EQ(c.machine.tiers[0].span, 4);
    CHECK_EQ(c.machine.tiers[1].span, 0);
    CHECK(c.machine.tiers[1].hop_s == 5.0 * 1e-6);
    CHECK(c.machine.tiers[0].busy_s == 0.0);
    CHECK(c.machine.tiers[1].busy_s == 8.0 * 1e-6);
    CHECK(c.machine.memory_bytes == 0.0);
}

/* Every name in the list loads; what is written reads back as the same machine. */
static void test_built_in(void)
{
    char names[512];
    char *rest = NULL;
    int count = 0;

    (void)snprintf(names, sizeof(names), "%s", tsri_cluster_names());
    for (char *name = strtok_r(names, ", ", &rest); name != NULL;
         name = strtok_r(NULL, ", ", &rest)) {
        tsri_cluster a;
        tsri_cluster b;
        tsri_text text = {0};

        REQUIRE_OK(tsri_cluster_load(name, &a));
        CHECK(a.machine.memory_bytes > 0 && a.machine.peak_flops[TSRI_MACHINE_HALF] > 0);
        tsri_cluster_print(&a.machine, "  - a test\n", &text);
        REQUIRE_OK(parse(text.data, &b));
        REQUIRE_EQ(a.machine.tier_count, b.machine.tier_count);
        for (int i = 0; i < a.machine.tier_count; i++) {
            const tsri_tier *x = &a.machine.tiers[i];
            const tsri_tier *y = &b.machine.tiers[i];

            CHECK_STR(x->name, y->name);
            CHECK_EQ(x->span, y->span);
            CHECK(x->bytes_per_s == y->bytes_per_s && x->hop_s == y->hop_s &&
                  x->busy_s == y->busy_s);
        }
        for (int i = 0; i < TSRK_COUNT; i++) { /* six digits are written */
            const double x = a.machine.kernel_rate[i];

            CHECK(b.machine.kernel_rate[i] >= x * (1 - 1e-5) &&
                  b.machine.kernel_rate[i] <= x * (1 + 1e-5));
        }
        CHECK_EQ(a.devices, b.devices);
        tsri_text_free(&text);
        count++;
    }
    CHECK(count >= 5);
}

/* One number for all ends, or three; what has none is the same on all. */
static void test_ends(void)
{
    tsri_cluster c;

    REQUIRE_OK(parse("name: x\nbf16: emulated\n"
                     "device: {gb_per_s: [5, 10, 20], launch_us: [9, 5, 4], memory_gib: 4, "
                     "headroom_gib: 1, contention: 0.5, tflops: {f32: 1, bf16: 2}}\n"
                     "kernels: {attention: [1, 2, 3]}\n"
                     "links: [{name: net, ranks: all, gb_per_s: [1, 2, 2]}]\n",
                     &c));
    CHECK(!c.assumed);
    CHECK(c.slow.bytes_per_s == 5e9 && c.machine.bytes_per_s == 10e9 && c.fast.bytes_per_s == 20e9);
    CHECK(c.slow.launch_s > c.machine.launch_s && c.machine.launch_s > c.fast.launch_s);
    CHECK(c.slow.kernel_rate[TSRK_ATTENTION] == 1e12 && c.fast.kernel_rate[TSRK_ATTENTION] == 3e12);
    CHECK(c.slow.tiers[0].bytes_per_s == 1e9 && c.machine.tiers[0].bytes_per_s == 2e9);
    CHECK(c.slow.flops[0] == 1e12 && c.fast.flops[0] == 1e12);
    CHECK_STR(c.slow.name, "x");
    CHECK_STR(c.machine.name, "x");
    CHECK_STR(c.fast.tiers[0].name, "net");
    CHECK(!c.slow.inline_compute && !c.machine.native_bf16 && !c.fast.native_bf16);
    CHECK(c.fast.headroom_bytes == 1024.0 * 1024.0 * 1024.0);
    CHECK(c.machine.contention == 0.5);
    /* Without any, 20 % either way. */
    REQUIRE_OK(parse("name: x\ntarget: cpu\n" DEVICE LINKS, &c));
    CHECK(c.assumed);
    CHECK(c.slow.flops[0] == 0.8 * 1e12 && c.machine.flops[0] == 1e12 && c.fast.flops[0] == 1.2e12);
    CHECK(c.machine.native_bf16 == tsri_here_computes_bf16());
}

typedef struct refusal {
    const char *text, *message;
} refusal;

static void test_refusals(void)
{
    static const refusal cases[] = {
        {"", "name is missing"},
        {"name: x\n" LINKS, "tflops.f32 is missing"},
        {"name: x\ndevice: {gb_per_s: 1, tflops: {f32: 1}}\n" LINKS, "tflops.bf16 is missing"},
        {"name: x\n" DEVICE, "links is missing"},
        {"name: x\ndevice: {gb_per: 1}\n",
         "c.yaml:2: \"gb_per\" is no key of a cluster file here; nearest: gb_per_s"},
        {"nam: x\n", "nearest: name"},
        {"name: x\ntarget: tpu\n", "wants cpu or cuda"},
        {"name: x\ndevice: {gb_per_s: -1}\n", "\"-1\", wants a number of at least 0"},
        {"name: x\ndevice: {gb_per_s: nan}\n", "wants a number"},
        {"name: x\nkernels: {attn: 1}\n", "\"attn\" is no key"},
        {"name: x\nlinks: []\n", "wants a list of 1 to 4 links"},
        {"name: x\nlinks: [{name: a, ranks: 4, gb_per_s: 1}]\n", "joins all ranks"},
        {"name: x\nlinks: [{name: a, ranks: all, gb_per_s: 1}, {name: b, ranks: all, gb_per_s: "
         "1}]\n",
         "joins all ranks"},
        {"name: x\nlinks: [{name: a, ranks: 4, gb_per_s: 1}, {name: b, ranks: 6, gb_per_s: 1}, "
         "{name: c, ranks: all, gb_per_s: 1}]\n",
         "link b joins 6 ranks, wants a multiple of the 4"},
        {"name: x\nlinks: [{name: a, ranks: 0.5, gb_per_s: 1}]\n",
         "wants a number of ranks, or all"},
        {"name: x\nlinks: [{name: a, ranks: all}]\n", "wants name, ranks and gb_per_s"},
        {"- 1\n", "wants keys with values"},
        {"name: x\nbf16: yes\n", "bf16 wants native or emulated"},
        {"name: x\ndevice: {gb_per_s: [1, 2]}\n", "three as [slow, usual, fast]"},
        {"name: x\ndevice: {gb_per_s: [1, 3, 2]}\n", "in order: slow, usual, fast"},
        {"name: x\ndevice: {gb_per_s: [1, x, 2]}\n", "gb_per_s is \"x\""},
        /* what no machine has */
        {"name: x\ndevice: {memory_gib: 81559, gb_per_s: 1, tflops: {f32: 1, bf16: 1}}\n" LINKS,
         "in MiB it would be 79.65 here"},
        {"name: x\ndevice: {memory_gib: 85899345920, gb_per_s: 1, tflops: {f32: 1, bf16: "
         "1}}\n" LINKS,
         "in bytes it would be 80 here"},
        {"name: x\ndevice: {gb_per_s: 26800, tflops: {f32: 1, bf16: 1}}\n" LINKS,
         "in Gbit/s it would be 3350 here"},
        {"name: x\ndevice: {gb_per_s: 1, tflops: {f32: 1, bf16: 989000}}\n" LINKS,
         "in GFLOP/s it would be 989 here"},
        {"name: x\ndevice: {gb_per_s: 1, tflops: {f32: 1, bf16: 700}, peak_tflops: {f32: 2, bf16: "
         "600}}\n" LINKS,
         "device.tflops.bf16 is 700 TFLOP/s, more than the peak of 600"},
        {"name: x\ndevice: {gb_per_s: 1, tflops: {f32: 1, bf16: [300, 500, 700]}, peak_tflops: "
         "{f32: 2, bf16: 600}}\n" LINKS,
         "is 700 TFLOP/s, more than the peak"},
        {"name: x\ndevice: {gb_per_s: 1, tflops: {f32: 1, bf16: 1}, peak_tflops: {f32: 2, bf16: "
         "600}}\nkernels: {attention: 700}\n" LINKS,
         "attention is 700 TFLOP/s"},
        {"name: x\n" DEVICE "links: [{name: nvlink, ranks: 8, gb_per_s: 360}, {name: nic, ranks: "
         "all, gb_per_s: 3200}]\n",
         "3200 Gbit/s would be 400 GB/s"},
        {"name: x\n" DEVICE "links: [{name: nvlink, ranks: 8, gb_per_s: 7200}, {name: nic, ranks: "
         "all, gb_per_s: 400}]\n",
         "7200 Gbit/s would be 900 GB/s"},
        {"name: x\ndevice: {memory_gib: 4, headroom_gib: 4, gb_per_s: 1, tflops: {f32: 1, bf16: "
         "1}}\n" LINKS,
         "nothing is left"},
        {"name: x\ndevice: {contention: 1, gb_per_s: 1, tflops: {f32: 1, bf16: 1}}\n" LINKS,
         "below 1"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tsri_cluster c;

        CHECK(parse(cases[i].text, &c) != TSR_OK);
        CHECK(strstr(tsr_error_message(), cases[i].message) != NULL);
        if (strstr(tsr_error_message(), cases[i].message) == NULL) {
            (void)fprintf(stderr, "case %zu: %s\n", i, tsr_error_message());
        }
        tsr_error_clear();
    }
}

static void test_missing(void)
{
    tsri_cluster c;

    CHECK_EQ(tsri_cluster_load("8xH10", &c), TSR_ERR_IO);
    CHECK(strstr(tsr_error_message(), "nearest: 8xH100") != NULL);
    tsr_error_clear();
}

const tsr_test_case tsr_test_cases[] = {
    {"values", test_values},     {"built_in", test_built_in}, {"ends", test_ends},
    {"refusals", test_refusals}, {"missing", test_missing},   {NULL, NULL},
};
