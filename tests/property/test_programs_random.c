/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 8 */
/* hostile: 2 4 */
/* labels: parity */
/**
 * @file test_programs_random.c
 * Random small programs on random meshes against the same in double on whole tensors: loss, norms,
 * every gradient, every updated value. Under the race check.
 *
 * TSR_DRAWS=n TSR_SEED=s draw n programs from seed s on; TSR_DRAW_ON and TSR_DRAW_OFF ("tp,skip")
 * name the kinds that may be drawn, see program_draw.h. A program that fails is printed, and what
 * is left of it when all has been taken out that it fails without.
 */
#include "base/base.h"

#include "tessera/world.h"

#include <mpi.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/array.h"
#include "support/program.h"
#include "support/program_draw.h"
#include "support/program_run.h"
#include "support/program_shrink.h"
#include "support/program_truth.h"
#include "support/program_words.h"
#include "support/tsr_test.h"

enum {
    DRAW_SECONDS = 120 /* of one run; waiting for a rank that is lost included */
};

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

/* ---- one run on all ranks ---- */

typedef struct verdict {
    bool failed, struck, vacuous;
    int error_ranks; /* where the library returned an error */
    double worst;
} verdict;

/* The report of the first rank that failed by itself, else of the first that failed. */
static verdict gather(const program_report *mine, program_report *first)
{
    int ranks[2] = {mine->failed ? 1 : 0, mine->status != TSR_OK ? 1 : 0};
    int sums[2] = {0};
    const bool of_others = mine->status == TSR_ERR_REMOTE || mine->status == TSR_ERR_COMM;
    int from =
        mine->failed ? tsr_test_rank() + (of_others ? tsr_test_size() : 0) : 2 * tsr_test_size();
    int root = 0;
    double worst = isnan(mine->worst) ? HUGE_VAL : mine->worst;
    verdict v = {.struck = mine->struck};

    (void)MPI_Allreduce(ranks, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    (void)MPI_Allreduce(&from, &root, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    (void)MPI_Allreduce(&worst, &v.worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    *first = *mine;
    (void)MPI_Bcast(first, (int)sizeof(*first), MPI_BYTE, root % tsr_test_size(), MPI_COMM_WORLD);
    v.failed = sums[0] > 0;
    v.error_ranks = sums[1];
    return v;
}

typedef struct truths {
    program_truth exact, rounded;
} truths;

static void run(const program *p, program_sabotage sabotage, int nth, verdict *out,
                program_report *first)
{
    static truths t;
    const double unit = tsr_array_unit(p->param_dtype);
    const program_run_options options = {&t.exact, &t.rounded, sabotage, nth};
    const double timeout_s = (double)number_of("TSR_DRAW_TIMEOUT", DRAW_SECONDS / 2);
    const tsr_world_options cpu = {.backend = "cpu", .threads = 1, .timeout_s = timeout_s};
    tsr_world *world = NULL;
    program_report mine = {0};

    (void)alarm(DRAW_SECONDS);
    *out = (verdict){.failed = true};
    REQUIRE_OK(program_truth_run(p, 0.0, 0.0, &t.exact));
    REQUIRE_OK(program_truth_run(p, unit, tsr_array_unit(p->reduce_dtype), &t.rounded));
    if (t.exact.finite) {
        REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
        program_run(world, p, &options, &mine);
        tsr_world_close(&world);
    }
    *out = gather(&mine, first);
    out->vacuous = !t.exact.finite;
    program_truth_free(&t.exact);
    program_truth_free(&t.rounded);
}

/* ---- failures ---- */

/* As far as a name may begin. */
static bool same_message(const char *a, const char *b)
{
    const char *x = strstr(a, ": ");
    const char *y = strstr(b, ": ");

    for (int i = 0; x != NULL && y != NULL && i < 36 && x[i] == y[i]; i++) {
        if (i == 35 || x[i] == '\0') {
            return true;
        }
    }
    return false;
}

/* In the same way: with the same status and message as far as that has no names, or a wrong number
 * of the same kind. */
static bool still_fails(const program *p, void *context)
{
    const program_report *as = context;
    verdict v;
    program_report report;

    run(p, PROGRAM_HONEST, 0, &v, &report);
    if (!v.failed || report.status != as->status) {
        return false;
    }
    if (as->status != TSR_OK) {
        return same_message(report.text, as->text);
    }
    return (strstr(report.text, "loss") != NULL) == (strstr(as->text, "loss") != NULL);
}

static void report_failure(const program *p, const program_report *report, const char *what)
{
    if (tsr_test_rank() == 0) {
        const char *on = getenv("TSR_DRAW_ON");
        const char *off = getenv("TSR_DRAW_OFF");

        (void)fprintf(stderr, "FAIL seed %llu on %d ranks, %s (on %s, off %s): %s\n",
                      (unsigned long long)p->seed, tsr_test_size(), what, on != NULL ? on : "all",
                      off != NULL ? off : "none", report->text);
        program_print(p, stderr);
        (void)fflush(stderr);
    }
}

static void shrink(program *p, program_report *as)
{
    verdict v;
    program_report report;

    if (number_of("TSR_SHRINK", 1) == 0) {
        return;
    }
    program_shrink(p, still_fails, as);
    run(p, PROGRAM_HONEST, 0, &v, &report);
    report_failure(p, &report, "made smaller");
}

/* Kinds that are drawn by name alone: TSR_DRAW_OFF=none draws them all. */
static const char by_name[] = "";

static uint64_t allowed_kinds(void)
{
    const char *on = getenv("TSR_DRAW_ON");
    const char *off = getenv("TSR_DRAW_OFF");

    return program_on_parse(on) & ~program_on_parse(off != NULL ? off : on != NULL ? "" : by_name);
}

static void draws(void)
{
    static const int in_ci[] = {0, 16, 34, 0, 40, 0, 0, 0, 10};
    const long first = number_of("TSR_SEED", 1);
    const long count = number_of("TSR_DRAWS", in_ci[tsr_test_size()]);
    const char *verbose = getenv("TSR_TEST_VERBOSE"); /* "brief": without the programs */

    for (long seed = first; seed < first + count; seed++) {
        static program p;
        verdict v;
        program_report report;

        program_draw((uint64_t)seed, tsr_test_size(), allowed_kinds(), &p);
        if (verbose != NULL && strcmp(verbose, "brief") != 0 && tsr_test_rank() == 0) {
            program_print(&p, stderr);
        }
        run(&p, PROGRAM_HONEST, 0, &v, &report);
        if (v.vacuous && tsr_test_rank() == 0) {
            (void)fprintf(stderr, "seed %ld: the truth is not finite\n", seed);
        }
        CHECK(!v.failed);
        if (v.failed) {
            report_failure(&p, &report, "as drawn");
            shrink(&p, &report);
        }
        if (verbose != NULL && tsr_test_rank() == 0) {
            (void)fprintf(stderr, "seed %ld: worst %.3g of its tolerance\n", seed, v.worst);
        }
    }
}

/* The comparison is worth something: a reduction left out or counted twice is seen. */
static void sees_a_wrong_reduction(void)
{
    const int count = tsr_test_size() > 1 && tsr_test_size() < 8 ? 8 : 0;
    int struck = 0;
    int seen = 0;

    for (int i = 0; i < count; i++) {
        static program p;
        verdict v;
        program_report report;

        program_draw((uint64_t)1000 + (uint64_t)i / 2, tsr_test_size(),
                     program_on_parse("tp,nested,order,levels,checkpoint,tied"), &p);
        run(&p, i % 2 == 0 ? PROGRAM_DROP : PROGRAM_DOUBLE, 1, &v, &report);
        struck += v.struck ? 1 : 0;
        seen += v.struck && v.failed ? 1 : 0;
    }
    CHECK(count == 0 || struck >= count / 2);
    CHECK(4 * seen >= 3 * struck);
}

const tsr_test_case tsr_test_cases[] = {
    {"draws", draws},
    {"sees_a_wrong_reduction", sees_a_wrong_reduction},
    {NULL, NULL},
};
