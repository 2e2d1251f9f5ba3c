/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_world.c
 * Joining, leaving, agreeing, and comparing bytes over all ranks; and simulated worlds.
 */
#include "base/base.h"

#include "tessera/world.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "support/tsr_test.h"

static tsr_world *open_cpu(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    return world;
}

static bool message_has(const char *words)
{
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
        return false;
    }
    return true;
}

static void test_facts(void)
{
    tsr_world *world = open_cpu();
    char host[64] = {0};

    REQUIRE(world != NULL);
    CHECK_EQ(tsr_world_rank(world), tsr_test_rank());
    CHECK_EQ(tsr_world_size(world), tsr_test_size());
    CHECK_EQ(tsr_world_is_speaker(world), tsr_test_rank() == 0);
    CHECK(!tsri_world_is_simulated(world));
    CHECK_STR(tsri_world_backend(world)->name, "cpu");
    REQUIRE(gethostname(host, sizeof(host) - 1) == 0);
    for (int r = 0; r < tsr_test_size(); r++) {
        CHECK_STR(tsr_world_host(world, r), host);
    }
    CHECK_STR(tsr_world_host(world, -1), "?");
    CHECK_STR(tsr_world_host(world, tsr_test_size()), "?");
    tsr_world_close(&world);
    CHECK(world == NULL);
    tsr_world_close(&world);
}

static void test_reopen(void)
{
    int64_t before = tsri_alloc_live();

    for (int i = 0; i < 3; i++) {
        tsr_world *world = open_cpu();

        REQUIRE(world != NULL);
        tsr_world_close(&world);
    }
    CHECK_EQ(tsri_alloc_live(), before);
}

/* The job is left with the last of them. */
static void test_two_worlds(void)
{
    tsr_world *first = open_cpu();
    tsr_world *second = open_cpu();

    REQUIRE(first != NULL && second != NULL);
    CHECK_OK(tsr_world_agree(first, TSR_OK));
    CHECK_OK(tsr_world_agree(second, TSR_OK));
    tsr_world_close(&first);
    CHECK_OK(tsr_world_check_same(second, "a constant", "equal", 5));
    CHECK_EQ(tsr_world_size(second), tsr_test_size());
    first = open_cpu();
    tsr_world_close(&second);
    REQUIRE(first != NULL);
    CHECK_OK(tsr_world_agree(first, TSR_OK));
    tsr_world_close(&first);
}

/* A rank closes its world while the others wait for it in something else. */
static void test_leave_early(void)
{
    tsr_world *world = open_cpu();

    REQUIRE(world != NULL);
    if (tsr_test_rank() == tsr_test_size() - 1 && tsr_test_size() > 1) {
        (void)TSR_RAISE(TSR_ERR_NOMEM, "none left");
    } else if (tsr_test_size() > 1) {
        CHECK_EQ(tsr_world_check_same(world, "the config", "x", 1), TSR_ERR_REMOTE);
        (void)message_has("failed: ERR_NOMEM: none left");
        CHECK_EQ(tsr_world_check_same(world, "the config", "x", 1), TSR_ERR_COMM);
        (void)message_has("failed: ERR_NOMEM: none left");
    }
    tsr_world_close(&world);
    tsr_error_clear();
}

/* After an exchange that failed: does this rank know that all know, and who prints it? */
static void check_told(tsr_status status, int teller)
{
    CHECK_EQ(tsri_error_teller(status), tsr_test_size() > 1 ? teller : -1);
}

static void test_agree(void)
{
    tsr_world *world = open_cpu();
    int last = tsr_test_size() - 1;

    REQUIRE(world != NULL);
    CHECK_OK(tsr_world_agree(world, TSR_OK));
    if (tsr_test_rank() == last) {
        tsr_status mine = TSR_RAISE(TSR_ERR_IO, "disk %d is full", 7);

        CHECK_EQ(tsr_world_agree(world, mine), TSR_ERR_IO);
        CHECK_STR(tsr_error_message(), "disk 7 is full");
        check_told(TSR_ERR_IO, last);
        tsr_error_clear();
    } else {
        CHECK_EQ(tsr_world_agree(world, TSR_OK), TSR_ERR_REMOTE);
        CHECK(message_has("failed: ERR_IO: disk 7 is full"));
        CHECK(message_has(tsr_test_size() == 2 ? "rank 1 on " : "rank 3 on "));
        check_told(TSR_ERR_REMOTE, last);
        tsr_error_clear();
    }
    CHECK_OK(tsr_world_agree(world, TSR_OK));
    tsr_world_close(&world);
}

/* A rank that only heard of a failure does not explain it, though its number is lower. */
static void test_agree_origin(void)
{
    tsr_world *world = open_cpu();
    int last = tsr_test_size() - 1;
    tsr_status mine = TSR_ERR_REMOTE;

    REQUIRE(world != NULL);
    if (tsr_test_rank() == last) {
        mine = TSR_RAISE(TSR_ERR_SHAPE, "odd");
    } else {
        mine = TSR_RAISE(TSR_ERR_REMOTE, "somebody failed");
    }
    CHECK_EQ(tsr_world_agree(world, mine), mine);
    check_told(mine, last);
    tsr_error_clear();
    tsr_world_close(&world);
}

/* A failure that all ranks know is not exchanged again, so that agreeing may be nested. */
static void test_agree_nested(void)
{
    tsr_world *world = open_cpu();
    tsr_status mine = TSR_OK;
    tsr_status status = TSR_OK;

    REQUIRE(world != NULL);
    if (tsr_test_rank() == 0) {
        mine = TSR_RAISE(TSR_ERR_NOMEM, "none left");
    }
    status = tsr_world_agree(world, mine);
    if (tsr_test_rank() == tsr_test_size() - 1) {
        status = tsr_world_agree(world, status); /* on one rank alone */
    }
    CHECK_EQ(status, tsr_test_rank() == 0 ? TSR_ERR_NOMEM : TSR_ERR_REMOTE);
    check_told(status, 0);
    tsr_error_clear();
    CHECK_OK(tsr_world_agree(world, TSR_OK));
    tsr_world_close(&world);
}

/* Every rank passes its own text; the message shows the first rank that differs and where. */
static void check_mismatch(tsr_world *world, const void *data, size_t bytes, const char *words)
{
    tsr_status status = tsr_world_check_same(world, "the config", data, bytes);

    CHECK_EQ(status, tsr_test_size() > 1 ? TSR_ERR_DISAGREE : TSR_OK);
    if (status != TSR_OK) {
        (void)message_has("the config differs between ranks 0 and ");
        (void)message_has(words);
    }
    tsr_error_clear();
}

static void test_check_same(void)
{
    tsr_world *world = open_cpu();
    bool odd = tsr_test_rank() == tsr_test_size() - 1;
    const char *text = odd ? "train:\n  lr: 3e-5\n" : "train:\n  lr: 3e-4\n";
    unsigned char binary[3] = {0x01, odd ? 0x13 : 0x12, 0x02};
    char large[5000];

    REQUIRE(world != NULL);
    CHECK_OK(tsr_world_check_same(world, "nothing", NULL, 0));
    CHECK_OK(tsr_world_check_same(world, "a constant", "equal", 5));
    check_mismatch(world, text, strlen(text),
                   "at character 16: \"train:   lr: 3e-4 \" and \"train:   lr: 3e-5 \"");
    check_mismatch(world, binary, sizeof(binary), "at byte 1: 0x12 and 0x13");
    check_mismatch(world, "longer", odd ? 4 : 6, "at character 4: \"longer\" and \"long\"");
    memset(large, 'x', sizeof(large));
    large[4321] = odd ? 'b' : 'a';
    check_mismatch(world, large, sizeof(large), "at character 4321: \"...xxxx");
    large[4321] = 'x';
    CHECK_OK(tsr_world_check_same(world, "the config", large, sizeof(large)));
    tsr_world_close(&world);
}

/* A rank that failed agrees while the others compare: they learn of it instead of hanging. */
static void test_agree_meets_check(void)
{
    tsr_world *world = open_cpu();
    tsr_status mine = TSR_OK;

    REQUIRE(world != NULL);
    if (tsr_test_rank() == tsr_test_size() - 1) {
        mine = TSR_RAISE(TSR_ERR_IO, "no such file");
        CHECK_EQ(tsr_world_agree(world, mine), TSR_ERR_IO);
    } else {
        CHECK_EQ(tsr_world_check_same(world, "the config", "x", 1), TSR_ERR_REMOTE);
        (void)message_has("failed: ERR_IO: no such file");
    }
    tsr_error_clear();
    if (tsr_test_size() > 1 && tsr_test_rank() == 0) {
        CHECK_STATUS(TSR_ERR_DISAGREE, tsr_world_agree(world, TSR_OK));
    } else if (tsr_test_size() > 1) {
        CHECK_STATUS(TSR_ERR_DISAGREE, tsr_world_check_same(world, "the config", "x", 1));
    }
    CHECK_OK(tsr_world_agree(world, TSR_OK));
    tsr_world_close(&world);
}

static void check_open_fails(const tsr_world_options *options, const char *words)
{
    tsr_world *world = NULL;

    CHECK_EQ(tsr_world_open(NULL, NULL, options, &world), TSR_ERR_INVALID);
    CHECK(world == NULL);
    (void)message_has(words);
    tsr_error_clear();
}

static void test_open_errors(void)
{
    check_open_fails(&(tsr_world_options){.backend = "cpi"}, "cpu");
    check_open_fails(&(tsr_world_options){.threads = -1}, "-1 threads");
    check_open_fails(&(tsr_world_options){.timeout_s = -2.0}, "timeout of -2 s");
    check_open_fails(&(tsr_world_options){.timeout_s = NAN}, "timeout of ");
    check_open_fails(&(tsr_world_options){.backend = "sim", .sim_rank = 4, .sim_size = 4},
                     "simulated rank 4 of 4");
    check_open_fails(&(tsr_world_options){.backend = "sim", .sim_size = -1},
                     "simulated rank 0 of -1");
}

/* One rank alone asks for what does not exist: every rank fails, none waits. */
static void test_open_one_fails(void)
{
    bool odd = tsr_test_rank() == tsr_test_size() - 1;
    tsr_world *world = NULL;
    tsr_status status = tsr_world_open(
        NULL, NULL, &(tsr_world_options){.backend = odd ? "none_such" : "cpu"}, &world);

    CHECK_EQ(status, odd ? TSR_ERR_INVALID : TSR_ERR_REMOTE);
    (void)message_has("none_such");
    tsr_error_clear();
}

static void test_simulated(void)
{
    tsr_world_options options = {.backend = "sim", .sim_rank = 5, .sim_size = 4096};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &world));
    CHECK_EQ(tsr_world_rank(world), 5);
    CHECK_EQ(tsr_world_size(world), 4096);
    CHECK(!tsr_world_is_speaker(world));
    CHECK(tsri_world_is_simulated(world));
    CHECK_STR(tsr_world_host(world, 4095), "simulated");
    CHECK_OK(tsr_world_agree(world, TSR_OK));
    CHECK_STATUS(TSR_ERR_IO, tsr_world_agree(world, TSR_RAISE(TSR_ERR_IO, "mine")));
    CHECK_OK(tsr_world_check_same(world, "rank", &(int){tsr_test_rank()}, sizeof(int)));
    CHECK_EQ(tsri_rank(), tsr_test_rank());
    tsr_world_close(&world);
    REQUIRE_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "sim"}, &world));
    CHECK_EQ(tsr_world_size(world), 1);
    CHECK(!tsr_world_is_speaker(world));
    tsr_world_close(&world);
}

/* A rank alone in the middle of a job: what it opens meets nobody, and the job goes on. */
static void test_alone(void)
{
    const tsr_mesh_axis axis = {"shard", 1};
    tsr_world *world = open_cpu();
    tsr_world *alone = NULL;
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;

    REQUIRE(world != NULL);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_world_open_alone(world, 0, &alone));
    if (tsr_test_rank() == tsr_test_size() - 1) { /* one of them, while the others are elsewhere */
        REQUIRE_OK(tsri_world_open_alone(world, 3, &alone));
        CHECK_EQ(tsr_world_size(alone), 1);
        CHECK_EQ(tsr_world_rank(alone), 0);
        CHECK(!tsr_world_is_speaker(alone));
        CHECK_STR(tsr_world_host(alone, 0), tsr_world_host(world, tsr_test_rank()));
        CHECK_STATUS(TSR_ERR_IO, tsr_world_agree(alone, TSR_RAISE(TSR_ERR_IO, "mine")));
        REQUIRE_OK(tsr_mesh_create(1, &axis, 1, NULL, &mesh));
        REQUIRE_OK(tsr_comm_open(alone, mesh, NULL, &comm));
        CHECK_EQ(tsri_comm_device(comm)->threads, 3);
        tsr_comm_release(&comm);
        tsr_mesh_release(&mesh);
        tsr_world_close(&alone);
        tsr_error_clear();
    }
    CHECK_OK(tsr_world_agree(world, TSR_OK)); /* the job was not left */
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"facts", test_facts},
    {"alone", test_alone},
    {"reopen", test_reopen},
    {"two_worlds", test_two_worlds},
    {"leave_early", test_leave_early},
    {"agree", test_agree},
    {"agree_origin", test_agree_origin},
    {"agree_nested", test_agree_nested},
    {"check_same", test_check_same},
    {"agree_meets_check", test_agree_meets_check},
    {"open_errors", test_open_errors},
    {"open_one_fails", test_open_one_fails},
    {"simulated", test_simulated},
    {NULL, NULL},
};
