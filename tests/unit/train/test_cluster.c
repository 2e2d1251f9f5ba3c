/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Cluster files: the built-in ones, writing and reading back, and what is refused. */
#include "base/base.h"

#include <string.h>

#include "support/tsr_test.h"
#include "train/cluster.h"

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
    {"values", test_values},
    {"built_in", test_built_in},
    {"refusals", test_refusals},
    {"missing", test_missing},
    {NULL, NULL},
};
