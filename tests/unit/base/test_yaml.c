/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_yaml.c
 * The subset of YAML that is read, and what is refused with its line.
 */
#include "base/base.h"
#include "base/yaml.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/tsr_test.h"

static tsr_status parse(const char *text, tsri_yaml_node **out)
{
    return tsri_yaml_parse(text, strlen(text), "c.yaml", out);
}

static void documents_become_trees(void)
{
    static const char text[] = "# comment\n"
                               "model: {preset: llama-tiny}   # flow\n"
                               "mesh:\n"
                               "  replicate: 2\n"
                               "  tp: \"2\"\n"
                               "betas: [0.9, 0.95]\n"
                               "empty:\n"
                               "groups:\n"
                               "  - {match: \"*.bias\", lr: 1}\n"
                               "  - match: norm\n";
    tsri_yaml_node *root = NULL;
    const tsri_yaml_node *node = NULL;

    REQUIRE_OK(parse(text, &root));
    CHECK_EQ(root->kind, TSRI_YAML_MAP);
    CHECK_EQ(root->count, 5);
    node = tsri_yaml_find(root, "model");
    REQUIRE(node != NULL && node->kind == TSRI_YAML_MAP && node->count == 1);
    CHECK_STR(node->children[0].key, "preset");
    CHECK_STR(node->children[0].text, "llama-tiny");
    CHECK_EQ(node->line, 2);
    node = tsri_yaml_find(root, "mesh");
    REQUIRE(node != NULL && node->count == 2);
    CHECK_EQ(node->line, 3);
    CHECK_EQ(node->children[1].line, 5);
    CHECK(node->children[1].quoted && !node->children[0].quoted);
    node = tsri_yaml_find(root, "betas");
    REQUIRE(node != NULL && node->kind == TSRI_YAML_LIST && node->count == 2);
    CHECK_STR(node->children[1].text, "0.95");
    CHECK(node->children[1].key == NULL);
    node = tsri_yaml_find(root, "empty");
    REQUIRE(node != NULL && node->kind == TSRI_YAML_SCALAR);
    CHECK_STR(node->text, "");
    node = tsri_yaml_find(root, "groups");
    REQUIRE(node != NULL && node->count == 2);
    CHECK_STR(tsri_yaml_find(&node->children[0], "match")->text, "*.bias");
    CHECK_EQ(node->children[1].line, 10);
    CHECK(tsri_yaml_find(root, "absent") == NULL);
    tsri_yaml_free(&root);
    CHECK(root == NULL);
    tsri_yaml_free(&root);
}

static void empty_documents_are_empty_maps(void)
{
    static const char *const texts[] = {"", "# only a comment\n", "---\n", "{}"};

    for (int i = 0; i < 4; i++) {
        tsri_yaml_node *root = NULL;
        REQUIRE_OK(parse(texts[i], &root));
        CHECK_EQ(root->kind, TSRI_YAML_MAP);
        CHECK_EQ(root->count, 0);
        tsri_yaml_free(&root);
    }
}

static void what_is_refused_has_its_line(void)
{
    static const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "c.yaml:3: key \"a\" is already on line 1"},
        {"a: &x 1\n", "c.yaml:1: anchors and aliases are not accepted"},
        {"a: 1\nb: *x\n", "c.yaml:2: anchors and aliases are not accepted"},
        {"a: !!str 1\n", "c.yaml:1: tag tag:yaml.org,2002:str is not accepted"},
        {"a: 1\n---\nb: 2\n", "c.yaml:2: more than one document"},
        {"{a: 1}\n\n? [1, 2]\n: 3\n", "c.yaml:3: "},
        {"? [1, 2]\n: 3\n", "c.yaml:1: a key is no plain word"},
        {"a: [1, 2\n", "c.yaml:2: "},
        {"a: 1\n  b: 2\n", "c.yaml:2: "},
        {"a: 1\nb: \"x\\0y\"\n", "c.yaml:2: a text holds a zero byte"},
        {"\n[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]\n", "c.yaml:2: nested deeper than 16"},
        {"a: \xff\n", "c.yaml:1: "},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tsri_yaml_node *root = NULL;
        CHECK_EQ(parse(cases[i].text, &root), TSR_ERR_FORMAT);
        CHECK(root == NULL);
        if (strncmp(tsr_error_message(), cases[i].message, strlen(cases[i].message)) != 0) {
            CHECK_STR(tsr_error_message(), cases[i].message);
        }
        tsr_error_clear();
    }
}

/* Many keys take time as many as they are; each against each would be five billion comparisons. */
static void many_keys_take_little_time(void)
{
    const int count = 100000;
    const double begin = tsri_now_s();
    char *text = NULL;
    size_t used = 0;
    tsri_yaml_node *root = NULL;

    REQUIRE_OK(tsri_alloc((size_t)count, 16, &text));
    for (int i = 0; i < count; i++) {
        used += (size_t)sprintf(text + used, "k%d: %d\n", i, i);
    }
    CHECK_OK(parse(text, &root));
    CHECK_EQ(root->count, count);
    tsri_yaml_free(&root);
    (void)sprintf(text + used, "k7: 1\n");
    CHECK_EQ(parse(text, &root), TSR_ERR_FORMAT);
    CHECK_STR(tsr_error_message(), "c.yaml:100001: key \"k7\" is already on line 8");
    tsr_error_clear();
    tsri_free(&text);
    CHECK(tsri_now_s() - begin < 20.0);
}

static void marks_of_byte_order_are_no_text(void)
{
    tsri_yaml_node *root = NULL;

    REQUIRE_OK(parse("\xEF\xBB\xBF"
                     "a: 1\n",
                     &root));
    CHECK_STR(root->children[0].key, "a");
    tsri_yaml_free(&root);
}

static void pipes_are_refused_at_once(void)
{
    const char *path = tsr_test_scratch_path("pipe.yaml");
    tsri_yaml_node *root = NULL;

    (void)unlink(path);
    REQUIRE_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(tsri_yaml_load_file(path, &root), TSR_ERR_IO);
    CHECK(strstr(tsr_error_message(), "is a pipe") != NULL);
    tsr_error_clear();
    (void)unlink(path);
}

static void memory_may_run_out_anywhere(void)
{
    int64_t before = tsri_alloc_live();
    tsri_yaml_node *root = NULL;
    tsr_status status = TSR_ERR_NOMEM;
    int failures = 0;

    for (int n = 1; status == TSR_ERR_NOMEM && n < 100; n++) {
        tsri_alloc_fail_at(n);
        status = parse("a: {b: [1, 2], c: 3}\nd: x\n", &root);
        failures += status == TSR_ERR_NOMEM;
        if (status != TSR_OK) {
            CHECK_EQ(tsri_alloc_live(), before);
        }
    }
    tsri_alloc_fail_at(0);
    tsr_error_clear();
    CHECK_EQ(status, TSR_OK);
    CHECK(failures >= 10); /* root, 5 keys, 4 texts, 3 arrays */
    tsri_yaml_free(&root);
    CHECK_EQ(tsri_alloc_live(), before);
}

static void files_that_are_absent_say_so(void)
{
    tsri_yaml_node *root = NULL;

    CHECK_EQ(tsri_yaml_load_file("/nowhere/a.yaml", &root), TSR_ERR_IO);
    CHECK_STR(tsr_error_message(), "/nowhere/a.yaml: cannot open: No such file or directory");
    tsr_error_clear();
}

const tsr_test_case tsr_test_cases[] = {
    {"documents_become_trees", documents_become_trees},
    {"empty_documents_are_empty_maps", empty_documents_are_empty_maps},
    {"what_is_refused_has_its_line", what_is_refused_has_its_line},
    {"many_keys_take_little_time", many_keys_take_little_time},
    {"marks_of_byte_order_are_no_text", marks_of_byte_order_are_no_text},
    {"pipes_are_refused_at_once", pipes_are_refused_at_once},
    {"memory_may_run_out_anywhere", memory_may_run_out_anywhere},
    {"files_that_are_absent_say_so", files_that_are_absent_say_so},
    {NULL, NULL},
};
