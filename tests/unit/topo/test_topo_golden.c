/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo_golden.c
 * What `tessera topo` says of described machines, as files: tests/golden/topo/NAME.desc (or
 * NAME.synthetic) beside NAME.txt. TSR_UPDATE_GOLDEN=1 writes them anew, for review as a diff.
 *
 * A first line "#: nodes 2 tp 4 shard 1/2 ranks 4" says what is asked.
 */
#include "base/base.h"
#include "base/file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/machine.h"
#include "support/tsr_test.h"
#include "topo/draw.h"

typedef struct asked {
    int nodes, tp;
    tsri_topo_shard shard;
    tsri_topo_ask ask;
} asked;

static void read_asked(const char *text, asked *out)
{
    char line[128] = "";
    char *rest = NULL;

    *out = (asked){.nodes = 1};
    if (strncmp(text, "#: ", 3) != 0) {
        return;
    }
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(text + 3, "\n"), text + 3);
    for (char *key = strtok_r(line, " ", &rest); key != NULL; key = strtok_r(NULL, " ", &rest)) {
        char *value = strtok_r(NULL, " ", &rest);

        REQUIRE(value != NULL);
        if (strcmp(key, "nodes") == 0) {
            out->nodes = (int)strtol(value, NULL, 10);
        } else if (strcmp(key, "tp") == 0) {
            out->tp = (int)strtol(value, NULL, 10);
        } else if (strcmp(key, "ranks") == 0) {
            out->ask.ranks = (int)strtol(value, NULL, 10);
        } else {
            CHECK_STR(key, "shard");
            CHECK_OK(tsri_topo_shard_parse(value, &out->shard));
        }
    }
}

static tsr_status read_machine(const char *text, const char *name, tsri_topo **out)
{
    char *xml = NULL;
    tsr_status status = TSR_OK;

    if (strstr(name, ".synthetic") != NULL) {
        const char *line = strncmp(text, "#:", 2) == 0 ? strchr(text, '\n') + 1 : text;
        char words[256];

        (void)snprintf(words, sizeof(words), "%.*s", (int)strcspn(line, "\n"), line);
        TSR_TRY(tsri_topo_read(TSRI_TOPO_SYNTHETIC, words, out));
        return TSR_OK;
    }
    TSR_TRY(tsr_machine_xml(text, name, &xml));
    status = tsri_topo_read(TSRI_TOPO_XML_TEXT, xml, out);
    tsri_free(&xml);
    TSR_TRY(status);
    return TSR_OK;
}

/* Plan, axes and text; a refusal is part of the text. */
static tsr_status draw(const tsri_topo *topo, const asked *a, FILE *to)
{
    tsri_topo_mapping *plan = NULL;
    tsri_topo_mesh *mesh = NULL;
    tsr_mesh_axis axes[3];
    int count = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_topo_mapping_create(topo, &a->ask, &plan));
    const tsr_status choice =
        tsri_topo_propose(plan, a->nodes, a->tp, a->shard, axes, &count, &plan->notes);

    if (choice != TSR_OK) {
        (void)fprintf(to, "refused: %s\n\n", tsr_error_message());
        tsr_error_clear();
    }
    TSR_TRY_GOTO(status, tsri_topo_draw_text(topo, plan, to), out);
    if (choice == TSR_OK) {
        TSR_TRY_GOTO(status, tsri_topo_mesh_create(topo, plan, a->nodes, axes, count, &mesh), out);
        tsri_topo_draw_mesh(mesh, to);
    }
out:
    tsri_topo_mesh_free(&mesh);
    tsri_topo_mapping_free(&plan);
    return status;
}

/* The description survives its way to another host: what is drawn comes from the copy. */
static tsri_topo *copy(const tsri_topo *topo)
{
    tsri_topo *result = NULL;
    char *text = NULL;

    CHECK_OK(tsri_topo_pack(topo, &text));
    if (text != NULL) {
        CHECK_OK(tsri_topo_unpack(text, strlen(text), "copy", &result));
    }
    tsri_free(&text);
    return result;
}

static void check_columns(const char *text, const char *name)
{
    int column = 0;

    for (const char *c = text; *c != '\0'; c++) {
        column = *c == '\n' ? 0 : column + ((*c & 0xc0) != 0x80);
        if (column > 100) {
            (void)fprintf(stderr, "%s: a line is wider than 100 columns\n", name);
            CHECK(column <= 100);
            return;
        }
    }
}

static void compare(const char *name, const char *text)
{
    const char *update = getenv("TSR_UPDATE_GOLDEN");
    char file[128];
    char *expected = NULL;
    size_t bytes = 0;

    (void)snprintf(file, sizeof(file), "topo/%.*s.txt", (int)strcspn(name, "."), name);
    if (update != NULL && strcmp(update, "1") == 0) {
        CHECK_OK(tsri_file_write(tsr_test_golden_path(file), text, strlen(text)));
        return;
    }
    REQUIRE_OK(tsri_file_read(tsr_test_golden_path(file), &expected, &bytes));
    CHECK_STR(expected, text);
    tsri_free(&expected);
}

static void check_svg(const tsri_topo *topo, const asked *a)
{
    tsri_topo_mapping *plan = NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    REQUIRE(to != NULL);
    CHECK_OK(tsri_topo_mapping_create(topo, &a->ask, &plan));
    CHECK_OK(tsri_topo_draw_svg(topo, plan, NULL, to));
    (void)fclose(to);
    CHECK(strncmp(text, "<svg ", 5) == 0);
    CHECK(strstr(text, "</svg>\n") == text + bytes - 7);
    for (int i = 0; i < topo->gpu_count; i++) {
        char word[24];

        (void)snprintf(word, sizeof(word), ">GPU %d<", i);
        CHECK(strstr(text, word) != NULL);
    }
    tsri_topo_mapping_free(&plan);
    free(text);
}

static void check_machine(const char *name)
{
    char path[160];
    char *description = NULL;
    char *text = NULL;
    size_t bytes = 0;
    tsri_topo *topo = NULL;
    asked a;
    FILE *to = NULL;

    (void)snprintf(path, sizeof(path), "topo/%.120s", name);
    REQUIRE_OK(tsri_file_read(tsr_test_golden_path(path), &description, &bytes));
    read_asked(description, &a);
    CHECK_OK(read_machine(description, name, &topo));
    tsri_free(&description);
    REQUIRE(topo != NULL);
    tsri_topo *other = copy(topo);

    tsri_topo_free(&topo);
    REQUIRE(other != NULL);
    to = open_memstream(&text, &bytes);
    REQUIRE(to != NULL);
    CHECK_OK(draw(other, &a, to));
    (void)fclose(to);
    compare(name, text);
    check_columns(text, name);
    check_svg(other, &a);
    free(text);
    tsri_topo_free(&other);
}

static void machines(void)
{
    DIR *folder = opendir(tsr_test_golden_path("topo"));
    int count = 0;

    REQUIRE(folder != NULL);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strstr(entry->d_name, ".desc") != NULL || strstr(entry->d_name, ".synthetic") != NULL) {
            check_machine(entry->d_name);
            count++;
        }
    }
    (void)closedir(folder);
    CHECK(count >= 28);
    CHECK_EQ(tsri_alloc_live(), 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"machines", machines},
    {NULL, NULL},
};
