/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/**
 * @file test_slow_rank.c
 * Training says which rank the others wait for: here the one whose data come late, because this
 * program is linked with a reader of its own before tsri_data_read (--wrap).
 */
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"

#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "support/tsr_test.h"
#include "train/data.h"
#include "train/loop.h"

enum {
    STEPS = 24
};

/* Test state of the reader. */
static int slow_rank = -1;
static double delay_s;

/* NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names */
tsr_status __real_tsri_data_read(tsri_data *data, int64_t first, int64_t count, int32_t *ids,
                                 int32_t *labels);
tsr_status __wrap_tsri_data_read(tsri_data *data, int64_t first, int64_t count, int32_t *ids,
                                 int32_t *labels);
tsr_status __wrap_tsri_data_read(tsri_data *data, int64_t first, int64_t count, int32_t *ids,
                                 int32_t *labels)
{
    const struct timespec delay = {.tv_nsec = (long)(delay_s * 1e9)};

    if (tsr_test_rank() == slow_rank) {
        (void)nanosleep(&delay, NULL);
    }
    return __real_tsri_data_read(data, first, count, ids, labels);
}
/* NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming) */

typedef struct heard {
    int notes, rows, rows_of_slow;
    char text[256];
} heard;

static void hear_note(void *context, const char *text)
{
    heard *h = context;

    h->notes++;
    (void)snprintf(h->text, sizeof(h->text), "%s", text);
}

static void hear_row(void *context, const tsri_train_row *row)
{
    heard *h = context;

    CHECK(row->own.min_s > 0.0);
    CHECK(row->own.max_s <= row->step_s * 1.5);
    h->rows++;
    h->rows_of_slow += row->own.slowest == slow_rank ? 1 : 0;
}

static void train(int slow, double delay, heard *out)
{
    static const char model[] =
        "model: {arch: llama, layers: 1, dim: 32, heads: 2, ffn: 64, vocab: 256}\n"
        "train: {steps: 24, batch: 8, seq: 16, lr: 1e-3}\n"
        "parallel: {param_dtype: f32}\n";
    char words[2][512];
    const char *const overrides[] = {words[0], words[1]};
    tsr_world *world = NULL;
    tsri_config *config = NULL;
    tsri_train_report report;
    const tsri_train_observer observer = {.row = hear_row, .note = hear_note, .context = out};
    char text[4096];

    *out = (heard){0};
    slow_rank = slow;
    delay_s = delay;
    memset(text, 'a', sizeof(text));
    REQUIRE_OK(tsr_world_open(NULL, NULL, NULL, &world));
    if (tsr_test_rank() == 0) {
        CHECK_OK(tsri_file_write(tsr_test_scratch_path("slow.txt"), text, sizeof(text)));
        CHECK_OK(tsri_file_write(tsr_test_scratch_path("slow.yaml"), model, sizeof(model) - 1));
    }
    REQUIRE_OK(tsr_world_agree(world, TSR_OK));
    (void)snprintf(words[0], sizeof(words[0]), "data.path=%s", tsr_test_scratch_path("slow.txt"));
    (void)snprintf(words[1], sizeof(words[1]), "run.dir=%s", tsr_test_scratch_path("slow-run"));
    tsr_status loaded = tsri_config_load(tsr_test_scratch_path("slow.yaml"), overrides, 2, &config);
    CHECK_OK(tsri_train_run(world, config, loaded, &observer, &report));
    CHECK_EQ(report.steps, STEPS);
    tsri_config_free(&config);
    tsr_world_close(&world);
}

static void a_slow_rank_is_named(void)
{
    const int last = tsr_test_size() - 1;
    char want[64];
    heard h;

    train(last, 0.05, &h);
    if (tsr_test_rank() != 0) {
        return;
    }
    (void)snprintf(want, sizeof(want), "rank %d on host ", last);
    /* All rows are one period, unless the machine holds another rank up for one of them. */
    CHECK(h.notes >= 1 && h.notes <= STEPS / TSRI_STRAGGLER_ROWS);
    CHECK(strstr(h.text, want) != NULL);
    CHECK(strstr(h.text, "for 10 rows now") != NULL);
    CHECK_EQ(h.rows, STEPS);
    CHECK(h.rows_of_slow >= TSRI_STRAGGLER_ROWS);
}

/* All read as slowly: nobody waits for one of them. */
static void equal_ranks_are_not(void)
{
    heard h;

    train(tsr_test_rank(), 0.05, &h);
    if (tsr_test_rank() == 0) {
        CHECK_EQ(h.notes, 0);
        CHECK_EQ(h.rows, STEPS);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"a_slow_rank_is_named", a_slow_rank_is_named},
    {"equal_ranks_are_not", equal_ranks_are_not},
    {NULL, NULL},
};
