/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Text as samples: every window once per epoch, the same on any division of a batch, and files that
 * cannot be used. */
#include "base/base.h"
#include "base/file.h"
#include "base/rng.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/tsr_test.h"
#include "train/data.h"

enum {
    SEQ = 5
};

static void write_text(const char *name, const char *text, size_t bytes)
{
    CHECK_OK(tsri_file_write(tsr_test_scratch_path(name), text, bytes));
}

static void permutations_are_one_to_one(void)
{
    static const int counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 1025, 4096, 20130};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const int count = counts[c];

        for (uint64_t key = 0; key < 3; key++) {
            unsigned char *hit = NULL;
            int fixed = 0;

            REQUIRE_OK(tsri_alloc((size_t)count, 1, &hit));
            for (int i = 0; i < count; i++) {
                const int64_t to = tsri_permute(key, count, i);

                CHECK(to >= 0 && to < count && hit[to] == 0);
                hit[to >= 0 && to < count ? to : 0] = 1;
                fixed += to == i ? 1 : 0;
            }
            /* A random permutation has one fixed point on average, whatever its size; more than
             * 12 have a probability below 1 / 12!. */
            CHECK(count < 64 || fixed <= 12);
            tsri_free(&hit);
        }
    }
}

/* Sizes that no test can walk through: still inside, and going somewhere else for another key. */
static void permutations_of_large_counts(void)
{
    const int64_t count = ((int64_t)1 << 40) + 12345;
    int same = 0;

    for (int64_t i = 0; i < 100; i++) {
        const int64_t a = tsri_permute(1, count, count - 1 - i);
        const int64_t b = tsri_permute(2, count, count - 1 - i);

        CHECK(a >= 0 && a < count && b >= 0 && b < count);
        same += a == b ? 1 : 0;
    }
    CHECK_EQ(same, 0);
}

/* Bytes 0, 1, 2, ... so that a window tells where it began. */
static void write_counting(void)
{
    char text[256];

    for (int i = 0; i < 256; i++) {
        text[i] = (char)i;
    }
    write_text("b2.txt", text + 100, 7);
    write_text("b1.txt", text, 100);
    write_text("b3.txt", text + 107, 256 - 107);
    write_text("all.txt", text, 256);
}

static tsri_data *open_counting(const char *name, uint64_t seed)
{
    tsri_data *data = NULL;

    write_counting();
    CHECK_OK(tsri_data_open(tsr_test_scratch_path(name), SEQ, seed, &data));
    return data;
}

static void an_epoch_has_every_window_once(void)
{
    tsri_data *data = open_counting("all.txt", 3);
    int32_t ids[SEQ];
    int32_t labels[SEQ];
    int order[2][51];

    REQUIRE(data != NULL);
    REQUIRE_EQ(tsri_data_windows(data), 51); /* (256 - 1) / 5 */
    for (int epoch = 0; epoch < 2; epoch++) {
        bool seen[51] = {false};

        for (int64_t i = 0; i < 51; i++) {
            REQUIRE_OK(tsri_data_read(data, epoch * 51 + i, 1, ids, labels));
            REQUIRE_EQ(ids[0] % SEQ, 0);
            order[epoch][i] = ids[0] / SEQ;
            CHECK(!seen[order[epoch][i]]);
            seen[order[epoch][i]] = true;
            for (int k = 0; k < SEQ; k++) {
                CHECK_EQ(ids[k], ids[0] + k);
                CHECK_EQ(labels[k], ids[k] + 1);
            }
        }
    }
    CHECK(memcmp(order[0], order[1], sizeof(order[0])) != 0);
    tsri_data_close(&data);
}

/* Several files are one text in order of their names, windows across their borders included. */
static void files_stand_one_behind_the_other(void)
{
    tsri_data *one = open_counting("all.txt", 9);
    tsri_data *three = open_counting("b*.txt", 9);
    int32_t a[2][51 * SEQ];
    int32_t b[2][51 * SEQ];

    REQUIRE(one != NULL && three != NULL);
    CHECK_EQ(tsri_data_file_count(three), 3);
    CHECK_EQ(tsri_data_bytes(three), 256);
    REQUIRE_OK(tsri_data_read(one, 0, 51, a[0], a[1]));
    REQUIRE_OK(tsri_data_read(three, 0, 51, b[0], b[1]));
    CHECK(memcmp(a, b, sizeof(a)) == 0);
    tsri_data_close(&one);
    tsri_data_close(&three);
}

/* However a batch is divided among ranks and micro-batches, it is the same rows. */
static void division_changes_nothing(void)
{
    tsri_data *data = open_counting("all.txt", 1);
    int32_t whole[2][12 * SEQ];
    int32_t parts[2][12 * SEQ];
    static const int pieces[] = {1, 2, 3, 4, 6, 12};

    REQUIRE(data != NULL);
    REQUIRE_OK(tsri_data_read(data, 36, 12, whole[0], whole[1]));
    for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++) {
        const int rows = 12 / pieces[p];

        for (int i = pieces[p] - 1; i >= 0; i--) {
            const int at = i * rows * SEQ;

            REQUIRE_OK(tsri_data_read(data, 36 + i * rows, rows, parts[0] + at, parts[1] + at));
        }
        CHECK(memcmp(whole, parts, sizeof(whole)) == 0);
    }
    tsri_data_close(&data);
}

static void seeds_give_other_orders(void)
{
    tsri_data *a = open_counting("all.txt", 1);
    tsri_data *b = open_counting("all.txt", 2);
    int32_t rows[4][51 * SEQ];

    REQUIRE(a != NULL && b != NULL);
    REQUIRE_OK(tsri_data_read(a, 0, 51, rows[0], rows[1]));
    REQUIRE_OK(tsri_data_read(b, 0, 51, rows[2], rows[3]));
    CHECK(memcmp(rows[0], rows[2], sizeof(rows[0])) != 0);
    tsri_data_close(&a);
    tsri_data_close(&b);
}

static void refuse(const char *name, tsr_status status, const char *words)
{
    tsri_data *data = NULL;

    CHECK_EQ(tsri_data_open(tsr_test_scratch_path(name), SEQ, 0, &data), status);
    CHECK(data == NULL);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void files_that_cannot_be_used(void)
{
    tsri_data *data = NULL;

    write_text("empty.txt", "", 0);
    write_text("short.txt", "12345", 5);
    (void)mkdir(tsr_test_scratch_path("folder"), 0777);
    refuse("none.txt", TSR_ERR_IO, "none.txt: there is no such file");
    refuse("none-*.txt", TSR_ERR_IO, "none-*.txt: there is no such file");
    refuse("empty.txt", TSR_ERR_INVALID, "empty.txt is empty");
    refuse("short.txt", TSR_ERR_INVALID, "5 bytes of text are shorter than one sequence");
    refuse("folder", TSR_ERR_IO, "is a folder");
    refuse("fold*", TSR_ERR_IO, "is a folder");
    CHECK_EQ(tsri_data_open("/dev/null", SEQ, 0, &data), TSR_ERR_IO);
    CHECK(strstr(tsr_error_message(), "no plain file") != NULL);
    tsr_error_clear();
    CHECK_EQ(tsri_data_open("", SEQ, 0, &data), TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "data.path is not given") != NULL);
    tsr_error_clear();
    write_text("enough.txt", "123456", 6);
    CHECK_OK(tsri_data_open(tsr_test_scratch_path("enough.txt"), SEQ, 0, &data));
    CHECK_EQ(tsri_data_windows(data), 1);
    tsri_data_close(&data);
    /* A name that looks like a pattern. */
    write_text("odd[1].txt", "123456", 6);
    CHECK_OK(tsri_data_open(tsr_test_scratch_path("odd[1].txt"), SEQ, 0, &data));
    tsri_data_close(&data);
}

/* A file that shrinks under us is told of, once a window behind its end is read. */
static void a_file_that_shrinks(void)
{
    tsri_data *data = open_counting("all.txt", 1);
    int32_t ids[51 * SEQ];
    int32_t labels[51 * SEQ];

    REQUIRE(data != NULL);
    REQUIRE_EQ(truncate(tsr_test_scratch_path("all.txt"), 40), 0);
    CHECK_EQ(tsri_data_read(data, 0, 51, ids, labels), TSR_ERR_IO);
    CHECK(strstr(tsr_error_message(), "any more, it had 256 bytes") != NULL);
    tsr_error_clear();
    tsri_data_close(&data);
}

static void descriptions_tell_files_apart(void)
{
    char a[128];
    char b[128];
    tsri_data *data = open_counting("all.txt", 1);

    REQUIRE(data != NULL);
    CHECK_OK(tsri_data_describe(data, a, sizeof(a)));
    tsri_data_close(&data);
    data = open_counting("b*.txt", 2);
    CHECK_OK(tsri_data_describe(data, b, sizeof(b)));
    CHECK(strcmp(a, b) != 0); /* other borders */
    tsri_data_close(&data);
    data = open_counting("all.txt", 5);
    CHECK_OK(tsri_data_describe(data, b, sizeof(b)));
    CHECK_STR(a, b); /* the order of samples is no matter of files */
    tsri_data_close(&data);
    write_text("all2.txt", "0123456789", 10);
    CHECK_OK(tsri_data_open(tsr_test_scratch_path("all2.txt"), SEQ, 0, &data));
    CHECK_OK(tsri_data_describe(data, a, sizeof(a)));
    tsri_data_close(&data);
    write_text("all2.txt", "0123456788", 10);
    CHECK_OK(tsri_data_open(tsr_test_scratch_path("all2.txt"), SEQ, 0, &data));
    CHECK_OK(tsri_data_describe(data, b, sizeof(b)));
    CHECK(strcmp(a, b) != 0);
    tsri_data_close(&data);
}

/* The bits that runs depend on: a resumed run must find the same order in later versions. */
static void order_is_pinned(void)
{
    const uint64_t key = tsri_rng_key(1, tsri_hash_text("order of samples"), 0, 0);
    static const int64_t expected[6] = {4474, 9107, 16971, 9643, 14970, 6830};

    for (int i = 0; i < 6; i++) {
        CHECK_EQ(tsri_permute(key, 20130, i), expected[i]);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"permutations_are_one_to_one", permutations_are_one_to_one},
    {"permutations_of_large_counts", permutations_of_large_counts},
    {"an_epoch_has_every_window_once", an_epoch_has_every_window_once},
    {"files_stand_one_behind_the_other", files_stand_one_behind_the_other},
    {"division_changes_nothing", division_changes_nothing},
    {"seeds_give_other_orders", seeds_give_other_orders},
    {"files_that_cannot_be_used", files_that_cannot_be_used},
    {"a_file_that_shrinks", a_file_that_shrinks},
    {"descriptions_tell_files_apart", descriptions_tell_files_apart},
    {"order_is_pinned", order_is_pinned},
    {NULL, NULL},
};
