/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_filter.c
 * Open MPI's notices are taken out, everything else goes through, however it is cut into pieces.
 */
#include "cli/cli_priv.h"

#include "base/base.h"

#include <string.h>
#include <unistd.h>

#include "support/tsr_test.h"

#define DASHES "--------------------------------------------------------------------------\n"

typedef struct seen {
    char text[8192];
    tsri_filter filter;
} seen;

/* Feed text in pieces of the given size; the result is what came out. */
static void pass(seen *s, const char *text, size_t piece)
{
    int ends[2] = {-1, -1};
    ssize_t bytes = 0;

    memset(s->text, 0, sizeof(s->text));
    REQUIRE(pipe(ends) == 0);
    tsri_filter_init(&s->filter, ends[1]);
    for (size_t at = 0, length = strlen(text); at < length; at += piece) {
        tsri_filter_feed(&s->filter, text + at, length - at < piece ? length - at : piece);
    }
    tsri_filter_finish(&s->filter);
    (void)close(ends[1]);
    bytes = read(ends[0], s->text, sizeof(s->text) - 1);
    CHECK(bytes >= 0);
    (void)close(ends[0]);
}

static void check(const char *text, const char *want)
{
    static const size_t pieces[] = {1, 2, 7, 64, 100000};
    static seen s;

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        pass(&s, text, pieces[i]);
        CHECK_STR(s.text, want);
    }
}

static void test_through(void)
{
    check("", "");
    check("plain\n", "plain\n");
    check("no end", "no end");
    check("\n\n", "\n\n");
    check("[rank 1/4] ERR_IO: no\n[rank 1/4]   #0 f (a.c:1)\n",
          "[rank 1/4] ERR_IO: no\n[rank 1/4]   #0 f (a.c:1)\n");
    check("---- a table ----\n-\n--\n", "---- a table ----\n-\n--\n");
    check("-" DASHES "x\n", "-" DASHES "x\n");
    check("step 1\rstep 2\rstep 3", "step 1\rstep 2\rstep 3");
    check("[vm:12] Signal: Segmentation fault (11)\n", "[vm:12] Signal: Segmentation fault (11)\n");
    check("3 total steps\nmpirun\n", "3 total steps\nmpirun\n");
}

static void test_dropped(void)
{
    check("a\n" DASHES "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith "
          "errorcode 1.\n" DASHES "b\n",
          "a\nb\n");
    check(
        DASHES
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n" DASHES,
        "");
    check("[vm:12] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
          "[vm:12] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help\nx\n",
          "x\n");
    check("mpirun: Forwarding signal 10 to job\n2 total processes failed to start\n", "");
}

/* A notice behind a rank's line that has no end yet. */
static void test_behind_text(void)
{
    check("waiting 3" DASHES "MPI_ABORT was invoked on rank 1\n" DASHES "more\n",
          "waiting 3\nmore\n");
    check("a - b -- c-" DASHES "d\n", "a - b -- c-" DASHES "d\n");
    check("a-b-", "a-b-");
    check("a-b-\n", "a-b-\n");
}

static void test_unknown_notice(void)
{
    check(DASHES "There are not enough slots available in the system\n" DASHES,
          "There are not enough slots available in the system\n");
    check(DASHES "never ends\n", DASHES "never ends\n");
}

/* What may explain a failure is not shown beside what does. */
static void test_explained(void)
{
    const char *killed =
        DASHES "mpirun noticed that process rank 3 with PID 0 on node vm exited on "
               "signal 9 (Killed).\n" DASHES;
    const char *told = "tessera: rank 3 on host vm was killed by signal 9 (Killed); the job was "
                       "ended\n";
    char text[1024];

    (void)snprintf(text, sizeof(text), "%sA system call failed\n%s%s%sIt failed again\n%s", DASHES,
                   DASHES, killed, DASHES, DASHES);
    check(text, told);
    check("[rank 1/2] ERR_IO: no disk\n" DASHES "A system call failed\n" DASHES
          "[vm:77] anything\n",
          "[rank 1/2] ERR_IO: no disk\n");
    check(DASHES "A system call failed\n" DASHES "[rank 1/2] nothing wrong\n[vm:77] anything\n",
          "[rank 1/2] nothing wrong\n[vm:77] anything\nA system call failed\n");
}

static void test_killed(void)
{
    check(
        DASHES "mpirun noticed that process rank 3 with PID 0 on node big-node.7 exited on "
               "signal 9 (Killed).\n" DASHES,
        "tessera: rank 3 on host big-node.7 was killed by signal 9 (Killed); the job was ended\n");
    check(DASHES
          "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on "
          "node a\n  Remote daemon: [[1,0],1] on node b\n\nThis is usually due to\n" DASHES,
          "tessera: host b no longer answers (network or host down); the job was ended\n");
    check("x\n" DASHES "Primary job  terminated normally, but\n" DASHES DASHES
          "mpirun noticed that process rank 1 with PID 5 on node vm exited on signal 11 "
          "(Segmentation fault).\n" DASHES "y\n",
          "x\ntessera: rank 1 on host vm was killed by signal 11 (Segmentation fault); the job was "
          "ended\ny\n");
}

/* Kept for the launcher, which knows whether it is news. */
static void test_exit_code(void)
{
    static seen s;

    pass(&s,
         DASHES "mpirun detected that one or more processes exited with non-zero status, thus "
                "causing\nthe job to be terminated. The first process to do so was:\n\n"
                "  Process name: [[53915,1],12]\n  Exit code:    97\n" DASHES,
         10);
    CHECK_STR(s.text, "");
    CHECK_EQ(s.filter.exit_rank, 12);
    CHECK_EQ(s.filter.exit_code, 97);
    CHECK(!s.filter.spoke);
    CHECK(!s.filter.told);
}

/* A rank's trail that mpirun wrote into the middle of a notice is not lost with it. */
static void test_rescued(void)
{
    check(DASHES
          "MPI_ABORT was invoked on rank 1\n[rank 1/2] ERR_IO: no disk\nwith errorcode 1.\n" DASHES,
          "[rank 1/2] ERR_IO: no disk\n");
}

/* What may be the start of a notice is held, but not for long. */
static void test_idle(void)
{
    static seen s;
    int ends[2] = {-1, -1};
    char got[8] = {0};

    REQUIRE(pipe(ends) == 0);
    tsri_filter_init(&s.filter, ends[1]);
    tsri_filter_feed(&s.filter, "--", 2);
    CHECK(!s.filter.spoke);
    tsri_filter_idle(&s.filter);
    CHECK(s.filter.spoke);
    tsri_filter_feed(&s.filter, "-\n", 2);
    CHECK_EQ(read(ends[0], got, sizeof(got)), 4);
    CHECK_STR(got, "---\n");
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* A notice of more text than is kept goes through whole. */
static void test_large(void)
{
    static seen s;
    static char text[4096];
    size_t most = sizeof(s.filter.text);
    int ends[2] = {-1, -1};
    size_t fed = 0;

    memset(text, 'x', sizeof(text));
    REQUIRE(pipe(ends) == 0);
    tsri_filter_init(&s.filter, ends[1]);
    tsri_filter_feed(&s.filter, DASHES, strlen(DASHES));
    while (fed < 2 * most) {
        tsri_filter_feed(&s.filter, text, sizeof(text));
        fed += sizeof(text);
    }
    tsri_filter_finish(&s.filter);
    (void)close(ends[1]);
    fed += strlen(DASHES);
    for (ssize_t got = 1; got > 0;) {
        got = read(ends[0], text, sizeof(text));
        fed -= got > 0 ? (size_t)got : 0;
    }
    CHECK_EQ(fed, 0);
    (void)close(ends[0]);
}

const tsr_test_case tsr_test_cases[] = {
    {"through", test_through},
    {"dropped", test_dropped},
    {"behind_text", test_behind_text},
    {"unknown", test_unknown_notice},
    {"explained", test_explained},
    {"killed", test_killed},
    {"exit_code", test_exit_code},
    {"rescued", test_rescued},
    {"idle", test_idle},
    {"large", test_large},
    {NULL, NULL},
};
