/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 8 */
/* labels: parity */
/**
 * @file test_parity.c
 * The parity matrix: every way to be parallel against the same model on one rank, with 1 and 3
 * micro-batches, sizes that do not divide, overlap on and off; and for each a sabotaged twin.
 *
 * Compared are loss, gradient norm, every gradient and every updated parameter. With and without
 * overlap the bits are equal. A twin drops one reduction, counts one twice, or reads parameters one
 * place too far, and must miss the bound by far.
 */
#include <string.h>

#include "support/parity.h"
#include "support/tsr_test.h"

static const parity_case cases[] = {
    {"one_rank", "ddp", 1, 1, 1, false, false},  {"ddp", "ddp", 2, 4, 1, true, false},
    {"zero1", "zero1", 2, 4, 1, true, false},    {"zero2", "zero2", 2, 4, 1, true, false},
    {"fsdp", "fsdp", 2, 4, 1, true, false},      {"hsdp", "hsdp", 2, 4, 1, true, false},
    {"hfsdp", "hfsdp", 2, 4, 1, true, false},    {"tp", "ddp", 1, 1, 8, false, false},
    {"tp_sequence", "ddp", 1, 1, 8, true, true}, {"tp_fsdp", "fsdp", 2, 2, 2, true, false},
    {"tp_hsdp", "hsdp", 2, 2, 2, true, false},   {"tp_hfsdp", "hfsdp", 2, 2, 2, true, false},
};

/* ---- the matrix ---- */

static void check_twins(tsr_world *world, const parity_case *c, int micro_batches, parity_record *r)
{
    /* The second reduction of a unit, or that of the second unit; parameters of the third unit,
     * which has several. */
    static const struct {
        tsri_sabotage_kind kind;
        int nth;
    } twins[] = {{TSRI_SABOTAGE_DROP, 1},
                 {TSRI_SABOTAGE_DROP, 2},
                 {TSRI_SABOTAGE_DOUBLE, 1},
                 {TSRI_SABOTAGE_DOUBLE, 2},
                 {TSRI_SABOTAGE_SHIFT, 3}};

    for (size_t i = 0; i < sizeof(twins) / sizeof(twins[0]); i++) {
        const tsri_job_options o = parity_options(c, micro_batches, true);
        parity_run l = {.r = r};
        bool struck = false;

        if (twins[i].kind != TSRI_SABOTAGE_SHIFT && !c->has_reductions) {
            continue;
        }
        REQUIRE_OK(parity_run_layout(world, c, &o, twins[i].kind, twins[i].nth, &l, &struck));
        CHECK(struck);
        /* Ten bounds: that it fails is no matter of rounding. */
        CHECK(l.worst > 10.0);
    }
}

static void check_case(tsr_world *world, const parity_case *c, int micro_batches)
{
    const tsri_job_options o = parity_options(c, micro_batches, true);
    const tsri_job_options serial = parity_options(c, micro_batches, false);
    parity_record r = {0};
    parity_run overlapped = {.r = &r};
    parity_run plain = {.r = &r};
    bool struck = false;

    REQUIRE_OK(parity_record_single(world, &o, &r));
    REQUIRE_OK(parity_run_layout(world, c, &o, TSRI_SABOTAGE_NONE, 0, &overlapped, &struck));
    CHECK(!struck);
    CHECK_NEAR(overlapped.worst, 0.0, 1.0);
    if (!(overlapped.worst <= 1.0)) {
        CHECK_STR(overlapped.where, "as on one rank");
    }
    REQUIRE_OK(parity_run_layout(world, c, &serial, TSRI_SABOTAGE_NONE, 0, &plain, &struck));
    CHECK(plain.bits == overlapped.bits);
    check_twins(world, c, micro_batches, &r);
    parity_record_free(&r);
}

static void run_case(const char *name)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    const parity_case *c = NULL;
    tsr_world *world = NULL;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        c = strcmp(cases[i].name, name) == 0 ? &cases[i] : c;
    }
    REQUIRE(c != NULL);
    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    check_case(world, c, 1);
    check_case(world, c, 3);
    tsr_world_close(&world);
}

static void one_rank(void)
{
    run_case("one_rank");
}

static void ddp(void)
{
    run_case("ddp");
}

static void zero1(void)
{
    run_case("zero1");
}

static void zero2(void)
{
    run_case("zero2");
}

static void fsdp(void)
{
    run_case("fsdp");
}

static void hsdp(void)
{
    run_case("hsdp");
}

static void hfsdp(void)
{
    run_case("hfsdp");
}

static void tp(void)
{
    run_case("tp");
}

static void tp_sequence(void)
{
    run_case("tp_sequence");
}

static void tp_fsdp(void)
{
    run_case("tp_fsdp");
}

static void tp_hsdp(void)
{
    run_case("tp_hsdp");
}

static void tp_hfsdp(void)
{
    run_case("tp_hfsdp");
}

const tsr_test_case tsr_test_cases[] = {
    {"one_rank", one_rank}, {"ddp", ddp},         {"zero1", zero1},
    {"zero2", zero2},       {"fsdp", fsdp},       {"hsdp", hsdp},
    {"hfsdp", hfsdp},       {"tp", tp},           {"tp_sequence", tp_sequence},
    {"tp_fsdp", tp_fsdp},   {"tp_hsdp", tp_hsdp}, {"tp_hfsdp", tp_hfsdp},
    {NULL, NULL},
};
