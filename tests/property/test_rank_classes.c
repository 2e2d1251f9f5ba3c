/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* timeout: 600 */
/* Ranks of one class do the same: every rank's own ledger equals its class's entry by entry, on
 * meshes and sizes where little divides. And a thousand ranks, timed. */
#include "base/base.h"
#include "base/rng.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "plan/ranks.h"
#include "support/tsr_test.h"

enum {
#if defined(__SANITIZE_ADDRESS__)
    RANDOM_SETTINGS = 30
#else
    RANDOM_SETTINGS = 120
#endif
};

static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

typedef struct setting {
    const char *name;
    int64_t batch, seq, dim, ffn, vocab;
    int mesh[3]; /* replicate, shard, tp */
    int heads, kv_heads;
    int micro_batches, reshard_group;
    bool sequence_parallel, biases, gpt2, checkpoint, tied, one_unit, bf16, by_cols, offload;
} setting;

static const setting settings[] = {
    {"uneven rows", 8, 5, 20, 14, 11, {2, 3, 1}, 2, 0, .micro_batches = 1},
    {"empty shards", 4, 3, 4, 4, 5, {1, 6, 1}, 1, 0, .micro_batches = 1},
    {"three axes", 4, 8, 24, 34, 31, {2, 2, 2}, 4, 2, .micro_batches = 1},
    {"kv copies", 3, 6, 16, 18, 29, {1, 2, 4}, 4, 2, .micro_batches = 1},
    {"one kv head", 5, 6, 16, 22, 29, {2, 1, 4}, 4, 1, .checkpoint = true},
    {"rows of the batch", 7, 4, 8, 10, 13, {3, 2, 1}, 2, 0, .micro_batches = 3},
    {"no rows", 3, 4, 8, 10, 13, {4, 2, 1}, 2, 0, .micro_batches = 1},
    {"sequence", 5, 7, 12, 18, 17, {2, 2, 2}, 2, 0, .sequence_parallel = true},
    {"biases", 4, 4, 12, 18, 17, {2, 2, 2}, 2, 0, .biases = true, .bf16 = true},
    {"gpt2", 4, 5, 12, 50, 19, {2, 2, 2}, 2, 0, .gpt2 = true, .checkpoint = true},
    {"tied", 6, 4, 8, 10, 15, {1, 3, 2}, 2, 0, .tied = true, .one_unit = true},
    {"kept", 8, 4, 20, 14, 11, {2, 4, 1}, 2, 0, .reshard_group = 4},
    {"columns", 6, 4, 20, 14, 13, {2, 3, 2}, 2, 0, .by_cols = true},
    {"offloaded", 4, 4, 20, 14, 13, {2, 2, 2}, 2, 0, .micro_batches = 2, .offload = true},
};

static void fill_model(const setting *s, tsri_model_spec *out)
{
    if (s->gpt2) {
        out->arch = TSRI_ARCH_GPT2;
        out->tied = true;
        out->layers = 2;
        out->heads = s->heads;
        out->dim = s->dim;
        out->ffn = s->ffn;
        out->vocab = s->vocab;
        out->positions = s->seq;
        return;
    }
    out->layers = 2;
    out->heads = s->heads;
    out->kv_heads = s->kv_heads;
    out->dim = s->dim;
    out->ffn = s->ffn;
    out->vocab = s->vocab;
    out->attention_bias = s->biases;
    out->mlp_bias = s->biases;
    out->tied = s->tied;
}

static tsri_job_options options_of(const setting *s, const char *preset)
{
    static const tsr_shard_dim columns[] = {{"**.{embed,head,q,up,down}.weight", 1}};
    tsri_job_options o = {
        .axes = {{"replicate", s->mesh[0]}, {"shard", s->mesh[1]}, {"tp", s->mesh[2]}},
        .axis_count = 3,
        .preset = preset,
        .batch = s->batch,
        .seq = s->seq,
        .micro_batches = s->micro_batches,
        .recompute.every = s->checkpoint ? 1 : 0,
        .sequence_parallel = s->sequence_parallel,
        .one_unit = s->one_unit,
        .seed = 1};

    fill_model(s, &o.model);
    o.fsdp.param_dtype = s->bf16 ? TSR_BF16 : TSR_DTYPE_DEFAULT;
    o.fsdp.offload_params = s->offload;
    o.fsdp.offload_grads = s->offload;
    o.fsdp.reshard_group = strcmp(preset, "fsdp") == 0 ? s->reshard_group : 0;
    o.fsdp.shard_dims = columns;
    o.fsdp.shard_dim_count = s->by_cols ? 1 : 0;
    return o;
}

/* ---- entry by entry ---- */

static bool texts_equal(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool entries_equal(const tsri_entry *a, const tsri_entry *b)
{
    return a->kind == b->kind && a->step == b->step && a->stream == b->stream && a->op == b->op &&
           texts_equal(a->label, b->label) && texts_equal(a->group, b->group) &&
           a->group_size == b->group_size && a->axis_mask == b->axis_mask && a->seq == b->seq &&
           a->call == b->call && a->bytes == b->bytes && a->sent_bytes == b->sent_bytes &&
           a->flops == b->flops && a->dtype == b->dtype;
}

static void print_entry(const char *whose, const tsri_entry *e)
{
    (void)fprintf(stderr,
                  "  %s: kind %d step %d stream %d op %d label %s group %s seq %llu bytes %zu "
                  "sent %zu flops %.0f\n",
                  whose, (int)e->kind, e->step, (int)e->stream, e->op,
                  e->label != NULL ? e->label : "-", e->group != NULL ? e->group : "-",
                  (unsigned long long)e->seq, e->bytes, e->sent_bytes, e->flops);
}

/* Index of the first difference, or -1. */
static int first_difference(const tsri_rank_run *a, const tsri_rank_run *b, bool print)
{
    int counts[2] = {0};
    const tsri_entry *left = tsri_ledger_entries(a->ledger, &counts[0]);
    const tsri_entry *right = tsri_ledger_entries(b->ledger, &counts[1]);

    for (int i = 0; i < counts[0] && i < counts[1]; i++) {
        if (!entries_equal(&left[i], &right[i])) {
            if (print) {
                print_entry("rank", &left[i]);
                print_entry("class", &right[i]);
            }
            return i;
        }
    }
    return counts[0] == counts[1] ? -1 : (counts[0] < counts[1] ? counts[0] : counts[1]);
}

static void check_rank(const tsri_job_options *o, const tsri_ranks *ranks, int rank,
                       const char *name)
{
    const tsri_rank_class *c = &ranks->classes[ranks->class_of[rank]];
    tsri_rank_run own;

    REQUIRE_OK(tsri_rank_simulate(o, rank, ranks->size, NULL, &own));
    const int at = first_difference(&own, &c->run, true);

    if (at >= 0) {
        (void)fprintf(stderr, "%s, %s: rank %d and its class's rank %d differ at entry %d\n", name,
                      o->preset, rank, c->representative, at);
    }
    CHECK_EQ(at, -1);
    CHECK_EQ(own.begin[0], c->run.begin[0]);
    CHECK_EQ(own.begin[1], c->run.begin[1]);
    CHECK_EQ(own.end, c->run.end);
    CHECK_EQ(own.summary.total_bytes, c->run.summary.total_bytes);
    CHECK_EQ(own.summary.arena_bytes, c->run.summary.arena_bytes);
    CHECK_EQ(own.summary.host_bytes, c->run.summary.host_bytes);
    tsri_rank_run_destroy(&own);
}

/* How many classes there must be at least: of ledgers that differ. */
static int distinct_ledgers(const tsri_ranks *ranks)
{
    int distinct = 0;

    for (int i = 0; i < ranks->class_count; i++) {
        bool seen = false;

        for (int k = 0; k < i && !seen; k++) {
            seen = first_difference(&ranks->classes[i].run, &ranks->classes[k].run, false) < 0;
        }
        distinct += !seen;
    }
    return distinct;
}

typedef struct tally {
    int ranks, classes, distinct;
} tally;

static void check_setting(const setting *s, const char *preset, tally *sum)
{
    const int size = s->mesh[0] * s->mesh[1] * s->mesh[2];
    const tsri_job_options o = options_of(s, preset);
    tsri_ranks *ranks = NULL;
    const tsr_status status = tsri_ranks_check(&o, size, &ranks);

    if (status != TSR_OK) {
        (void)fprintf(stderr, "%s, %s\n", s->name, preset);
    }
    REQUIRE_OK(status);
    CHECK_STR(ranks->match.text, "");
    for (int rank = 0; rank < size; rank++) {
        check_rank(&o, ranks, rank, s->name);
    }
    sum->ranks += size;
    sum->classes += ranks->class_count;
    sum->distinct += distinct_ledgers(ranks);
    tsri_ranks_destroy(&ranks);
}

/* Classes differ where ledgers do, and hardly anywhere else. */
static void check_tally(const tally *sum)
{
    (void)printf("%d ranks in %d classes, %d distinct ledgers\n", sum->ranks, sum->classes,
                 sum->distinct);
    CHECK(sum->classes < sum->ranks);
    CHECK(sum->classes <= sum->distinct + sum->distinct / 4);
}

static void every_rank_equals_its_class(void)
{
    tally sum = {0};

    for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
        for (int p = 0; p < 6; p++) {
            check_setting(&settings[s], presets[p], &sum);
        }
    }
    check_tally(&sum);
}

static int draw(uint64_t key, uint64_t index, int least, int most)
{
    return least + (int)(tsri_rng_word(key, index) % (uint32_t)(most - least + 1));
}

/* Any sizes that the model takes. */
static void random_settings(void)
{
    tally sum = {0};

    for (uint64_t key = 1; key <= RANDOM_SETTINGS; key++) {
        const int tp = 1 << draw(key, 0, 0, 2);
        const int heads = tp * draw(key, 1, 1, 2);
        const setting s = {.name = "random",
                           .mesh = {draw(key, 2, 1, 3), draw(key, 3, 1, 4), tp},
                           .heads = heads,
                           .kv_heads = draw(key, 4, 0, 1) == 0 ? heads : 1,
                           .dim = (int64_t)heads * 2 * draw(key, 5, 1, 4),
                           .ffn = draw(key, 6, 1, 60),
                           .vocab = draw(key, 7, 2, 60),
                           .batch = draw(key, 8, 1, 9),
                           .seq = draw(key, 9, 1, 9),
                           .micro_batches = draw(key, 10, 1, 2),
                           .sequence_parallel = draw(key, 11, 0, 1) == 1,
                           .biases = draw(key, 12, 0, 1) == 1,
                           .gpt2 = draw(key, 13, 0, 3) == 0,
                           .checkpoint = draw(key, 14, 0, 2) == 0,
                           .tied = draw(key, 15, 0, 2) == 0,
                           .one_unit = draw(key, 16, 0, 4) == 0,
                           .bf16 = draw(key, 17, 0, 2) == 0,
                           .offload = draw(key, 18, 0, 4) == 0};

        check_setting(&s, presets[draw(key, 19, 0, 5)], &sum);
    }
    check_tally(&sum);
}

/* ---- a thousand ranks ---- */

static tsri_job_options large_job(const char *preset, int replicate, int shard, int tp)
{
    tsri_job_options o = {.axes = {{"replicate", replicate}, {"shard", shard}, {"tp", tp}},
                          .axis_count = 3,
                          .preset = preset,
                          .batch = 1024,
                          .seq = 2048,
                          .recompute.every = 1,
                          .seed = 1};

    o.fsdp.param_dtype = TSR_BF16;
    CHECK_OK(tsri_model_preset("llama-20b", &o.model));
    return o;
}

static void check_large(const char *preset, int replicate, int shard, int tp)
{
    const tsri_job_options o = large_job(preset, replicate, shard, tp);
    const double begin_s = tsri_now_s();
    struct rusage usage;
    tsri_ranks *ranks = NULL;

    REQUIRE_OK(tsri_ranks_check(&o, replicate * shard * tp, &ranks));
    (void)getrusage(RUSAGE_SELF, &usage);
    (void)printf("llama-20b, %s on replicate=%d shard=%d tp=%d: %d classes, %d entries, "
                 "%.2f s, at most %ld MiB so far\n",
                 preset, replicate, shard, tp, ranks->class_count, ranks->classes[0].run.end,
                 tsri_now_s() - begin_s, usage.ru_maxrss / 1024);
    CHECK_STR(ranks->match.text, "");
    CHECK(ranks->class_count <= 64);
    tsri_ranks_destroy(&ranks);
}

static void check_three(int replicate, int shard, int tp)
{
    static const char *const three[] = {"fsdp", "hsdp", "hfsdp"};

    for (int i = 0; i < 3; i++) {
        check_large(three[i], replicate, shard, tp);
    }
}

static void a_thousand_data_ranks(void)
{
    check_three(128, 8, 1);
}

static void a_thousand_ranks_with_tp(void)
{
    check_three(32, 8, 4);
}

static void numbering_a_thousand_ranks(void)
{
    const tsri_job_options o = large_job("hfsdp", 32, 8, 4);
    static uint64_t numbers[1024];
    const tsr_world_options sim = {.backend = "sim", .sim_size = 1024};
    tsr_world *world = NULL;
    tsri_job *job = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &sim, &world));
    REQUIRE_OK(tsri_job_open(world, &o, &job));
    const double begin_s = tsri_now_s();

    CHECK_OK(tsri_ranks_number(job, numbers));
    (void)printf("1024 ranks of %d parameters numbered in %.3f s\n", job->param_count,
                 tsri_now_s() - begin_s);
    tsri_job_close(&job);
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_rank_equals_its_class", every_rank_equals_its_class},
    {"random_settings", random_settings},
    {"numbering_a_thousand_ranks", numbering_a_thousand_ranks},
    {"a_thousand_data_ranks", a_thousand_data_ranks},
    {"a_thousand_ranks_with_tp", a_thousand_ranks_with_tp},
    {NULL, NULL},
};
