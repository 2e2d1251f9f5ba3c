/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_text.c
 * Patterns over module paths, nearest names, readable numbers, names of types, and the hash.
 */
#include "base/base.h"

#include "tessera/dtype.h"
#include "tessera/version.h"

#include <string.h>

#include "support/tsr_test.h"

typedef struct pattern_case {
    const char *pattern;
    const char *name;
    bool matches;
} pattern_case;

static void patterns_match_dotted_names(void)
{
    static const pattern_case cases[] = {
        {"embed", "embed", true},
        {"embed", "embedding", false},
        {"embed", "model.embed", false},
        {"layers.*", "layers.0", true},
        {"layers.*", "layers.0.attn", false},
        {"layers.*", "layers", false},
        {"layers.*.attn.{q,k,v}", "layers.11.attn.k", true},
        {"layers.*.attn.{q,k,v}", "layers.11.attn.o", false},
        {"layers.*.attn.{q,k,v}", "layers.11.attn.qk", false},
        {"layers.*.{attn.{q,k},mlp.up}.weight", "layers.1.mlp.up.weight", true},
        {"layers.*.{attn.{q,k},mlp.up}.weight", "layers.1.attn.k.weight", true},
        {"layers.*.{attn.{q,k},mlp.up}.weight", "layers.1.mlp.k.weight", false},
        {"{a,}b", "b", true},
        {"layers.{*,x}.w", "layers.9.w", true},
        {"**.bias", "layers.0.attn.q.bias", true},
        {"**.bias", "bias", true},
        {"**.bias", "xbias", false},
        {"**", "a.b.c", true},
        {"layers.**", "layers.0.attn", true},
        {"layers.**", "layers", true},
        {"layers.**", "layersx", false},
        {"layers.**.w", "layers.w", true},
        {"layers.**.w", "layers.0.1.w", true},
        {"layers.**.w", "layers.0.1.v", false},
        {"ln_*", "ln_1", true},
        {"ln_*", "ln_f.weight", false},
        {"*.*", "a.b", true},
        {"*.*", "a.b.c", false},
        {"a{b", "a{b", true},
        {"", "", true},
        {"", "a", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool matches = tsri_pattern_match(cases[i].pattern, cases[i].name);
        if (matches != cases[i].matches) {
            (void)fprintf(stderr, "%s on %s\n", cases[i].pattern, cases[i].name);
        }
        CHECK_EQ(matches, cases[i].matches);
    }
}

/* Each "**" may take any part of the name: trying all ways would take years. */
static void patterns_of_many_stars_end(void)
{
    const char *pattern = "**a**a**a**a**a**a**a**a**a**a**a**a**b";
    const char *name = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const double begin = tsri_now_s();

    CHECK(!tsri_pattern_match(pattern, name));
    CHECK(!tsri_pattern_match("{**a,*a}{**a,*a}{**a,*a}{**a,*a}{**a,*a}{**a,*a}{**a,*a}b", name));
    CHECK(tsri_pattern_match("**a**a**a**a**a**a**a**a**a**a**a", name));
    CHECK(tsri_now_s() - begin < 10.0);
}

static void what_moves_a_terminal_is_replaced(void)
{
    char text[] = "a\x1b[31m\nb\x7f \xC2\x9B \xC3\xA9";

    CHECK_STR(tsri_make_printable(text), "a?[31m?b? ?? \xC3\xA9");
    (void)TSR_RAISE(TSR_ERR_INVALID, "key \"%s\"", "x\ty\x1b");
    CHECK_STR(tsr_error_message(), "key \"x?y?\"");
    tsr_error_clear();
}

static void edit_distance_counts_changes(void)
{
    char longer[400];

    CHECK_EQ(tsri_edit_distance("kitten", "sitting"), 3);
    CHECK_EQ(tsri_edit_distance("", "abc"), 3);
    CHECK_EQ(tsri_edit_distance("same", "same"), 0);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    CHECK_EQ(tsri_edit_distance(longer, "x"), 128);
    CHECK_EQ(tsri_edit_distance(longer, longer), 0);
}

static void nearest_name_is_near(void)
{
    static const char *const names[] = {"steps", "batch", "micro_batches", "seq"};

    CHECK_STR(tsri_nearest("step", names, 4), "steps");
    CHECK_STR(tsri_nearest("microbatches", names, 4), "micro_batches");
    CHECK_STR(tsri_nearest("seq", names, 4), "seq");
    CHECK(tsri_nearest("optimizer", names, 4) == NULL);
    CHECK(tsri_nearest("x", names, 4) == NULL);
    CHECK(tsri_nearest("x", names, 0) == NULL);
}

static void numbers_are_readable(void)
{
    char text[32];
    const int64_t shape[] = {4096, 11008};

    CHECK_STR(tsri_format_bytes(0, text, sizeof(text)), "0 B");
    CHECK_STR(tsri_format_bytes(1023, text, sizeof(text)), "1023 B");
    CHECK_STR(tsri_format_bytes(12.3 * 1048576, text, sizeof(text)), "12.3 MiB");
    CHECK_STR(tsri_format_shape(shape, 2, text, sizeof(text)), "[4096, 11008]");
    CHECK_STR(tsri_format_shape(shape, 0, text, sizeof(text)), "[]");
    CHECK_STR(tsri_format_shape(shape, 2, text, 8), "[4096, ");
}

static void types_have_sizes_and_names(void)
{
    tsr_dtype dtype = TSR_U8;

    CHECK_EQ(tsr_dtype_size(TSR_BF16), 2);
    CHECK_EQ(tsr_dtype_size(TSR_I64), 8);
    CHECK_EQ(tsr_dtype_size(TSR_DTYPE_DEFAULT), 0);
    CHECK_EQ(tsr_dtype_size((tsr_dtype)99), 0);
    CHECK_STR(tsr_dtype_name((tsr_dtype)99), "?");
    for (int i = TSR_DTYPE_DEFAULT; i <= TSR_U8; i++) {
        CHECK_OK(tsr_dtype_parse(tsr_dtype_name((tsr_dtype)i), &dtype));
        CHECK_EQ(dtype, i);
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtype_parse("float32", &dtype));
    CHECK_EQ(dtype, TSR_U8);
}

static void hash_is_xxh3(void)
{
    /* XXH3_64bits of nothing with seed 0, from the algorithm's description */
    CHECK(tsri_hash("", 0, 0) == 0x2D06800538D394C2ULL);
    CHECK(tsri_hash("abc", 3, 0) == tsri_hash_text("abc"));
    CHECK(tsri_hash("abc", 3, 0) != tsri_hash("abc", 3, 1));
}

static void version_is_that_of_the_header(void)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR,
                   TSR_VERSION_PATCH);
    CHECK_STR(tsr_version(), text);
}

const tsr_test_case tsr_test_cases[] = {
    {"patterns_match_dotted_names", patterns_match_dotted_names},
    {"patterns_of_many_stars_end", patterns_of_many_stars_end},
    {"what_moves_a_terminal_is_replaced", what_moves_a_terminal_is_replaced},
    {"edit_distance_counts_changes", edit_distance_counts_changes},
    {"nearest_name_is_near", nearest_name_is_near},
    {"numbers_are_readable", numbers_are_readable},
    {"types_have_sizes_and_names", types_have_sizes_and_names},
    {"hash_is_xxh3", hash_is_xxh3},
    {"version_is_that_of_the_header", version_is_that_of_the_header},
    {NULL, NULL},
};
