/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* One value of the configuration: from YAML, checked by its row, and back. */
#include "config/options.h"

#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/mesh_text.h"

enum {
    MAX_CHOICES = 16,
    WORD_BYTES = 48,
    PLACE_BYTES = 512,
    TYPE_BYTES = 256,
    SHOWN = 60 /* characters of a wrong value */
};

/* ---- lists of words, "a, b" ---- */

typedef struct words {
    char at[MAX_CHOICES][WORD_BYTES];
    const char *names[MAX_CHOICES];
    int count;
} words;

static void split(const char *list, words *out)
{
    out->count = 0;
    for (const char *at = list; *at != '\0' && out->count < MAX_CHOICES;) {
        size_t length = strcspn(at, ",");

        (void)snprintf(out->at[out->count], WORD_BYTES, "%.*s", (int)length, at);
        out->names[out->count] = out->at[out->count];
        out->count++;
        at += length;
        at += strspn(at, ", ");
    }
}

static int find_word(const words *list, const char *word)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->at[i], word) == 0) {
            return i;
        }
    }
    return -1;
}

const char *tsri_option_choice(const tsri_option *option, int index, char *text, size_t size)
{
    words list;

    split(option->choices, &list);
    (void)snprintf(text, size, "%s", index >= 0 && index < list.count ? list.at[index] : "?");
    return text;
}

/* ---- what is wanted ---- */

/* The ends of what a number may be; false: there are none. */
static bool get_limits(const tsri_option *o, double *least, double *most)
{
    *least = o->min;
    *most = o->max;
    if (o->bound != TSRI_BOUND_NONE) {
        tsri_bound_get(o->bound, least, most);
    }
    return o->type != TSRI_OPTION_NAMES && *least < *most;
}

static void add_limits(const tsri_option *o, char *text, size_t size)
{
    const size_t used = strlen(text);
    double least = 0.0;
    double most = 0.0;

    if (get_limits(o, &least, &most)) {
        (void)snprintf(text + used, size - used,
                       o->open ? " above %.15g and below %.15g" : ", %.15g to %.15g", least, most);
    }
}

const char *tsri_option_type_text(const tsri_option *o, char *text, size_t size)
{
    switch (o->type) {
    case TSRI_OPTION_INT:
        (void)snprintf(text, size, "a whole number");
        break;
    case TSRI_OPTION_NUMBER:
        (void)snprintf(text, size, "a number");
        break;
    case TSRI_OPTION_PAIR:
        (void)snprintf(text, size, "a list of two numbers");
        break;
    case TSRI_OPTION_BOOL:
        (void)snprintf(text, size, "true or false");
        break;
    case TSRI_OPTION_CHOICE:
        (void)snprintf(text, size, "one of %s", o->choices);
        break;
    case TSRI_OPTION_TEXT:
        (void)snprintf(text, size, "%s%s", o->choices != NULL ? "one of " : "text",
                       o->choices != NULL ? o->choices : "");
        break;
    case TSRI_OPTION_MESH:
        (void)snprintf(text, size, "auto, or axes with sizes such as {replicate: 2, tp: 2}");
        break;
    case TSRI_OPTION_NAMES:
        (void)snprintf(text, size, "%s, or a list of %s", o->fallback,
                       o->choices != NULL ? o->choices : "names");
        break;
    case TSRI_OPTION_GROUPS:
        (void)snprintf(text, size, "a list of {match, lr_scale, weight_decay}");
        break;
    }
    add_limits(o, text, size);
    return text;
}

/* ---- wrong values ---- */

/* What is being read, and where. */
typedef struct context {
    const tsri_option *option;
    const tsri_option_place *place;
} context;

static const char *kind_text(const tsri_yaml_node *node, char *text, size_t size)
{
    if (node->kind == TSRI_YAML_MAP) {
        return "a map";
    }
    if (node->kind == TSRI_YAML_LIST) {
        return "a list";
    }
    if (node->text[0] == '\0') {
        return "empty";
    }
    (void)snprintf(text, size, "\"%.*s\"", SHOWN, node->text);
    return text;
}

static tsr_status raise_wrong(const context *c, const tsri_yaml_node *node, const char *wanted)
{
    char place[PLACE_BYTES];
    char type[TYPE_BYTES];
    char have[TYPE_BYTES];

    if (wanted == NULL) {
        wanted = tsri_option_type_text(c->option, type, sizeof(type));
    }
    return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %s, wants %s",
                     tsri_option_place_text(c->place, place, sizeof(place)), c->option->path,
                     kind_text(node, have, sizeof(have)), wanted);
}

static tsr_status raise_many(const context *c, int count, int most)
{
    char place[PLACE_BYTES];

    return TSR_RAISE(TSR_ERR_INVALID, "%s: %s has %d entries, at most %d are possible",
                     tsri_option_place_text(c->place, place, sizeof(place)), c->option->path, count,
                     most);
}

static tsr_status raise_choice(const context *c, const char *have, const words *list)
{
    const char *near = tsri_nearest(have, list->names, list->count);
    char place[PLACE_BYTES];

    return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is \"%.*s\", wants one of %s%s%s",
                     tsri_option_place_text(c->place, place, sizeof(place)), c->option->path, SHOWN,
                     have, c->option->choices, near != NULL ? "; the nearest is " : "",
                     near != NULL ? near : "");
}

/* Values that are legal but that this version cannot act on. */
static tsr_status check_works(const context *c, const char *text)
{
    char place[PLACE_BYTES];
    words list;

    if (c->option->works == NULL) {
        return TSR_OK;
    }
    split(c->option->works, &list);
    if (find_word(&list, text) >= 0) {
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: %s: %s is not available in this version, only %s",
                     tsri_option_place_text(c->place, place, sizeof(place)), c->option->path, text,
                     c->option->works);
}

/* ---- reading ---- */

static tsr_status read_scalar(const context *c, const tsri_yaml_node *node, const char **out)
{
    if (node->kind != TSRI_YAML_SCALAR) {
        return raise_wrong(c, node, NULL);
    }
    *out = node->text;
    return TSR_OK;
}

static bool in_range(const tsri_option *o, double value)
{
    double least = 0.0;
    double most = 0.0;

    if (!get_limits(o, &least, &most)) {
        return true;
    }
    if (o->bound != TSRI_BOUND_NONE && value == strtod(o->fallback, NULL)) {
        return true; /* such as 0, which asks for what would be there without the key */
    }
    return o->open ? value > least && value < most : value >= least && value <= most;
}

static tsr_status read_real(const context *c, const tsri_yaml_node *node, double *out)
{
    const char *text = "";
    char *end = NULL;
    double value = 0.0;

    TSR_TRY(read_scalar(c, node, &text));
    value = strtod(text, &end);
    /* strtod also takes words (inf, nan), hexadecimals and leading blanks. */
    if (node->quoted || *text == '\0' || strspn(text, "0123456789+-.eE") != strlen(text) ||
        *end != '\0' || !isfinite(value) || !in_range(c->option, value)) {
        return raise_wrong(c, node, NULL);
    }
    *out = value;
    return TSR_OK;
}

static tsr_status read_int(const context *c, const tsri_yaml_node *node, int64_t *out)
{
    const char *text = "";
    char *end = NULL;
    long long value = 0;

    TSR_TRY(read_scalar(c, node, &text));
    errno = 0;
    value = strtoll(text, &end, 10);
    if (node->quoted || *text == '\0' || strspn(text, "0123456789+-") != strlen(text) ||
        *end != '\0' || errno != 0 || !in_range(c->option, (double)value)) {
        return raise_wrong(c, node, NULL);
    }
    *out = value;
    return TSR_OK;
}

static tsr_status read_bool(const context *c, const tsri_yaml_node *node, bool *out)
{
    const char *text = "";

    TSR_TRY(read_scalar(c, node, &text));
    if (node->quoted || (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)) {
        return raise_wrong(c, node, NULL);
    }
    *out = strcmp(text, "true") == 0;
    return TSR_OK;
}

static tsr_status read_choice(const context *c, const tsri_yaml_node *node, int *out)
{
    const char *text = "";
    words list;

    TSR_TRY(read_scalar(c, node, &text));
    split(c->option->choices, &list);
    *out = find_word(&list, text);
    if (*out < 0) {
        return *text == '\0' ? raise_wrong(c, node, NULL) : raise_choice(c, text, &list);
    }
    return TSR_OK;
}

static tsr_status read_text(const context *c, const tsri_yaml_node *node, char **out)
{
    const char *text = "";
    words list;

    TSR_TRY(read_scalar(c, node, &text));
    for (const char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            return raise_wrong(c, node, "text without line ends and control characters");
        }
    }
    /* Where only some words work, others belong to features to come. */
    if (c->option->choices != NULL && c->option->works == NULL && *text != '\0') {
        split(c->option->choices, &list);
        if (find_word(&list, text) < 0) {
            return raise_choice(c, text, &list);
        }
    }
    tsri_free(out);
    TSR_TRY(tsri_strdup(text, out));
    return TSR_OK;
}

static tsr_status add_mesh_axis(const context *c, const tsri_yaml_node *axis, tsri_mesh_text *mesh)
{
    char place[PLACE_BYTES];
    char *end = NULL;
    long size = 0;

    errno = 0;
    size = axis->kind == TSRI_YAML_SCALAR ? strtol(axis->text, &end, 10) : 0;
    if (end == NULL || end == axis->text || *end != '\0' || errno != 0 || axis->quoted) {
        char have[SHOWN + 8];

        return TSR_RAISE(TSR_ERR_INVALID, "%s: mesh axis \"%.*s\" is %s, wants a whole number%s",
                         tsri_option_place_text(c->place, place, sizeof(place)), SHOWN, axis->key,
                         kind_text(axis, have, sizeof(have)),
                         strchr(axis->key, ':') != NULL ? "; YAML wants a space behind the colon"
                                                        : "");
    }
    if (tsri_mesh_text_add(mesh, axis->key, strlen(axis->key), size) != TSR_OK) {
        char message[256];

        (void)snprintf(message, sizeof(message), "%s", tsr_error_message());
        tsr_error_clear();
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s",
                         tsri_option_place_text(c->place, place, sizeof(place)), message);
    }
    return TSR_OK;
}

static tsr_status read_mesh(const context *c, const tsri_yaml_node *node, tsri_mesh_text *out)
{
    if (node->kind == TSRI_YAML_SCALAR && strcmp(node->text, "auto") == 0) {
        memset(out, 0, sizeof(*out));
        return TSR_OK;
    }
    if (node->kind == TSRI_YAML_SCALAR && strchr(node->text, '=') != NULL) {
        if (tsri_mesh_parse(node->text, out) != TSR_OK) {
            char message[256];
            char place[PLACE_BYTES];

            (void)snprintf(message, sizeof(message), "%s", tsr_error_message());
            tsr_error_clear();
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s",
                             tsri_option_place_text(c->place, place, sizeof(place)), message);
        }
        return TSR_OK;
    }
    if (node->kind != TSRI_YAML_MAP || node->count == 0) {
        return raise_wrong(c, node, NULL);
    }
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < node->count; i++) {
        tsri_option_place place = *c->place;
        const context at = {c->option, &place};

        place.line = node->children[i].line;
        TSR_TRY(add_mesh_axis(&at, &node->children[i], out));
    }
    return TSR_OK;
}

static tsr_status add_name(const context *c, const tsri_yaml_node *node, tsri_option_names *out)
{
    const char *text = "";
    words list;

    TSR_TRY(read_scalar(c, node, &text));
    if (c->option->choices != NULL) {
        split(c->option->choices, &list);
        if (find_word(&list, text) < 0) {
            return raise_choice(c, text, &list);
        }
    }
    for (int i = 0; i < out->count; i++) {
        if (strcmp(out->at[i], text) == 0) {
            return raise_wrong(c, node, "each name once");
        }
    }
    TSR_TRY(tsri_strdup(text, &out->at[out->count]));
    out->count++;
    return TSR_OK;
}

static tsr_status read_names(const context *c, const tsri_yaml_node *node, tsri_option_names *out)
{
    const int most = c->option->max > 0.0 ? (int)c->option->max : TSRI_OPTION_MAX_NAMES;

    tsri_option_drop(c->option, out);
    if (node->kind == TSRI_YAML_SCALAR && strcmp(node->text, c->option->fallback) == 0) {
        return TSR_OK;
    }
    if (node->kind != TSRI_YAML_LIST || node->count == 0) {
        return raise_wrong(c, node, NULL);
    }
    if (node->count > most) {
        return raise_many(c, node->count, most);
    }
    for (int i = 0; i < node->count; i++) {
        TSR_TRY(add_name(c, &node->children[i], out));
    }
    return TSR_OK;
}

static tsr_status read_pair(const context *c, const tsri_yaml_node *node, double *out)
{
    if (node->kind != TSRI_YAML_LIST || node->count != 2) {
        return raise_wrong(c, node, NULL);
    }
    TSR_TRY(read_real(c, &node->children[0], &out[0]));
    TSR_TRY(read_real(c, &node->children[1], &out[1]));
    return TSR_OK;
}

/* ---- groups ---- */

static const tsri_option group_rows[] = {
    {.path = "optim.groups[].match", .type = TSRI_OPTION_TEXT},
    {.path = "optim.groups[].lr_scale", .type = TSRI_OPTION_NUMBER, .max = 1e6, .open = true},
    {.path = "optim.groups[].weight_decay",
     .type = TSRI_OPTION_NUMBER,
     .fallback = "0",
     .bound = TSRI_BOUND_WEIGHT_DECAY},
};

static tsr_status read_group_key(const context *c, const tsri_yaml_node *node,
                                 tsri_option_group *out)
{
    static const char *const names[] = {"match", "lr_scale", "weight_decay"};
    tsri_option_place place = *c->place;
    const char *near = NULL;
    char text[PLACE_BYTES];

    place.line = node->line;
    for (int i = 0; i < 3; i++) {
        const context row = {&group_rows[i], &place};

        if (strcmp(node->key, names[i]) != 0) {
            continue;
        }
        if (i == 0) {
            return read_text(&row, node, &out->match);
        }
        out->has_weight_decay = out->has_weight_decay || i == 2;
        return read_real(&row, node, i == 1 ? &out->lr_scale : &out->weight_decay);
    }
    near = tsri_nearest(node->key, names, 3);
    return TSR_RAISE(TSR_ERR_INVALID,
                     "%s: unknown key \"%s\" in optim.groups, which has match, lr_scale and "
                     "weight_decay%s%s",
                     tsri_option_place_text(&place, text, sizeof(text)), node->key,
                     near != NULL ? "; the nearest is " : "", near != NULL ? near : "");
}

static tsr_status read_groups(const context *c, const tsri_yaml_node *node, tsri_option_groups *out)
{
    tsri_option_drop(c->option, out);
    if (node->kind != TSRI_YAML_LIST) {
        return raise_wrong(c, node, NULL);
    }
    if (node->count > TSRI_OPTION_MAX_GROUPS) {
        return raise_many(c, node->count, TSRI_OPTION_MAX_GROUPS);
    }
    for (int i = 0; i < node->count; i++) {
        const tsri_yaml_node *group = &node->children[i];

        if (group->kind != TSRI_YAML_MAP) {
            return raise_wrong(c, group, NULL);
        }
        out->at[out->count++].lr_scale = 1.0;
        for (int k = 0; k < group->count; k++) {
            TSR_TRY(read_group_key(c, &group->children[k], &out->at[i]));
        }
        if (out->at[i].match == NULL || out->at[i].match[0] == '\0') {
            return raise_wrong(c, group, "a match: pattern over names of parameters");
        }
    }
    return TSR_OK;
}

static tsr_status read_typed(const context *c, const tsri_yaml_node *node, void *slot)
{
    switch (c->option->type) {
    case TSRI_OPTION_INT:
        return read_int(c, node, slot);
    case TSRI_OPTION_NUMBER:
        return read_real(c, node, slot);
    case TSRI_OPTION_BOOL:
        return read_bool(c, node, slot);
    case TSRI_OPTION_CHOICE:
        return read_choice(c, node, slot);
    case TSRI_OPTION_TEXT:
        return read_text(c, node, slot);
    case TSRI_OPTION_MESH:
        return read_mesh(c, node, slot);
    case TSRI_OPTION_NAMES:
        return read_names(c, node, slot);
    case TSRI_OPTION_PAIR:
        return read_pair(c, node, slot);
    case TSRI_OPTION_GROUPS:
        return read_groups(c, node, slot);
    }
    return TSR_OK;
}

tsr_status tsri_option_read(const tsri_option *option, const tsri_option_place *place,
                            const tsri_yaml_node *node, void *slot)
{
    const context c = {option, place};

    TSR_TRY(read_typed(&c, node, slot));
    if (node->kind == TSRI_YAML_SCALAR) {
        TSR_TRY(check_works(&c, node->text));
    }
    return TSR_OK;
}
