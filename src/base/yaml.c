/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file yaml.c
 * Builds the tree from libyaml's events, by descent: one call per node, depth bounded.
 *
 * Invariant: a node is complete or zero, so that the tree built so far can be freed at any error.
 */
#include "base/yaml.h"

#include "base/base.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    yaml_parser_t parser;
    const char *name;
} reader;

static tsr_status next_event(reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event) == 0) {
        size_t line = r->parser.problem_mark.line;
        if (r->parser.error == YAML_READER_ERROR || line == 0) {
            line = r->parser.mark.line;
        }
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%zu: %s", r->name, line + 1,
                         r->parser.problem != NULL ? r->parser.problem : "no YAML");
    }
    return TSR_OK;
}

static int line_of(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

static tsr_status copy_scalar(const reader *r, const yaml_event_t *event, char **out)
{
    const char *value = (const char *)event->data.scalar.value;

    if (strlen(value) != event->data.scalar.length) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: a text holds a zero byte", r->name,
                         line_of(event));
    }
    TSR_TRY(tsri_strdup(value, out));
    return TSR_OK;
}

/* Anchors and tags of an event that starts a node. */
static tsr_status check_plain(const reader *r, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL;
    const yaml_char_t *tag = NULL;

    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    }
    if (event->type == YAML_ALIAS_EVENT || anchor != NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: anchors and aliases are not accepted", r->name,
                         line_of(event));
    }
    if (tag != NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: tag %s is not accepted", r->name, line_of(event),
                         (const char *)tag);
    }
    return TSR_OK;
}

static tsr_status add_child(tsri_yaml_node *parent, tsri_yaml_node **out)
{
    TSR_TRY(tsri_grow(&parent->children, &parent->capacity, parent->count + 1,
                      sizeof(*parent->children)));
    *out = &parent->children[parent->count];
    parent->count++;
    return TSR_OK;
}

static tsr_status read_node(reader *r, const yaml_event_t *event, int depth, tsri_yaml_node *node);

static tsr_status read_key(const reader *r, const yaml_event_t *event, tsri_yaml_node *map,
                           tsri_yaml_node **out)
{
    tsri_yaml_node *child = NULL;
    char *key = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_plain(r, event));
    if (event->type != YAML_SCALAR_EVENT) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: a key is no plain word", r->name, line_of(event));
    }
    TSR_TRY(copy_scalar(r, event, &key));
    status = add_child(map, &child);
    if (status != TSR_OK) {
        tsri_free(&key);
        TSR_TRY(status);
    }
    child->key = key;
    child->line = line_of(event);
    *out = child;
    return TSR_OK;
}

static tsr_status read_value(reader *r, int depth, tsri_yaml_node *node)
{
    yaml_event_t event;
    tsr_status status = TSR_OK;

    TSR_TRY(next_event(r, &event));
    status = read_node(r, &event, depth, node);
    yaml_event_delete(&event);
    TSR_TRY(status);
    return TSR_OK;
}

/* One entry of a map or list, beginning with event; or its end. */
static tsr_status read_entry(reader *r, const yaml_event_t *event, int depth, tsri_yaml_node *node,
                             bool *ended)
{
    tsri_yaml_node *child = NULL;

    if (event->type == YAML_MAPPING_END_EVENT || event->type == YAML_SEQUENCE_END_EVENT) {
        *ended = true;
        return TSR_OK;
    }
    if (node->kind == TSRI_YAML_MAP) {
        TSR_TRY(read_key(r, event, node, &child));
        TSR_TRY(read_value(r, depth + 1, child));
    } else {
        TSR_TRY(add_child(node, &child));
        TSR_TRY(read_node(r, event, depth + 1, child));
    }
    return TSR_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const tsri_yaml_node *const *x = a;
    const tsri_yaml_node *const *y = b;
    const int order = strcmp((*x)->key, (*y)->key);

    return order != 0 ? order : (*x > *y) - (*x < *y);
}

/* Once the map is complete, by sorting: looking through it for each key would take for ever. */
static tsr_status check_keys(const reader *r, const tsri_yaml_node *map)
{
    const tsri_yaml_node **sorted = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)map->count, sizeof(*sorted), &sorted));
    for (int i = 0; i < map->count; i++) {
        sorted[i] = &map->children[i];
    }
    qsort(sorted, (size_t)map->count, sizeof(*sorted), compare_keys);
    for (int i = 1; status == TSR_OK && i < map->count; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0) {
            status = TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: key \"%s\" is already on line %d", r->name,
                               sorted[i]->line, sorted[i]->key, sorted[i - 1]->line);
        }
    }
    tsri_free(&sorted);
    return status;
}

static tsr_status read_children(reader *r, int depth, tsri_yaml_node *node)
{
    bool ended = false;

    while (!ended) {
        yaml_event_t event;
        tsr_status status = TSR_OK;

        TSR_TRY(next_event(r, &event));
        status = read_entry(r, &event, depth, node, &ended);
        yaml_event_delete(&event);
        TSR_TRY(status);
    }
    return TSR_OK;
}

static tsr_status read_node(reader *r, const yaml_event_t *event, int depth, tsri_yaml_node *node)
{
    TSR_TRY(check_plain(r, event));
    if (depth > TSRI_YAML_MAX_DEPTH) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: nested deeper than %d", r->name, line_of(event),
                         TSRI_YAML_MAX_DEPTH);
    }
    if (node->line == 0) {
        node->line = line_of(event);
    }
    if (event->type == YAML_SCALAR_EVENT) {
        node->kind = TSRI_YAML_SCALAR;
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        TSR_TRY(copy_scalar(r, event, &node->text));
        return TSR_OK;
    }
    node->kind = event->type == YAML_SEQUENCE_START_EVENT ? TSRI_YAML_LIST : TSRI_YAML_MAP;
    TSR_TRY(read_children(r, depth, node));
    if (node->kind == TSRI_YAML_MAP) {
        TSR_TRY(check_keys(r, node));
    }
    return TSR_OK;
}

static tsr_status expect(reader *r, yaml_event_type_t wanted, yaml_event_type_t other,
                         yaml_event_type_t *got)
{
    yaml_event_t event;
    int line = 0;

    TSR_TRY(next_event(r, &event));
    *got = event.type;
    line = line_of(&event);
    yaml_event_delete(&event);
    if (*got != wanted && *got != other) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: more than one document", r->name, line);
    }
    return TSR_OK;
}

static tsr_status read_stream(reader *r, tsri_yaml_node *root)
{
    yaml_event_type_t got = YAML_NO_EVENT;

    TSR_TRY(expect(r, YAML_STREAM_START_EVENT, YAML_STREAM_START_EVENT, &got));
    TSR_TRY(expect(r, YAML_DOCUMENT_START_EVENT, YAML_STREAM_END_EVENT, &got));
    if (got == YAML_DOCUMENT_START_EVENT) {
        TSR_TRY(read_value(r, 0, root));
        TSR_TRY(expect(r, YAML_DOCUMENT_END_EVENT, YAML_DOCUMENT_END_EVENT, &got));
        TSR_TRY(expect(r, YAML_STREAM_END_EVENT, YAML_STREAM_END_EVENT, &got));
    }
    if (root->kind == TSRI_YAML_SCALAR && !root->quoted && root->text[0] == '\0') {
        tsri_free(&root->text);
        root->kind = TSRI_YAML_MAP;
    }
    return TSR_OK;
}

tsr_status tsri_yaml_parse(const char *text, size_t bytes, const char *name, tsri_yaml_node **out)
{
    const size_t mark = tsri_text_mark(text, bytes);
    reader r = {.name = name};
    tsri_yaml_node *root = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*root), &root));
    if (yaml_parser_initialize(&r.parser) == 0) {
        tsri_free(&root);
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for a YAML parser");
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text + mark, bytes - mark);
    status = read_stream(&r, root);
    yaml_parser_delete(&r.parser);
    if (status != TSR_OK) {
        tsri_yaml_free(&root);
        TSR_TRY(status);
    }
    *out = root;
    return TSR_OK;
}

tsr_status tsri_yaml_load_file(const char *path, tsri_yaml_node **out)
{
    char *text = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_file_read_plain(path, &text, &bytes));
    status = tsri_yaml_parse(text, bytes, path, out);
    tsri_free(&text);
    TSR_TRY(status);
    return TSR_OK;
}

static void free_content(tsri_yaml_node *node)
{
    for (int i = 0; i < node->count; i++) {
        free_content(&node->children[i]);
    }
    tsri_free(&node->children);
    tsri_free(&node->key);
    tsri_free(&node->text);
}

void tsri_yaml_free(tsri_yaml_node **root)
{
    if (*root != NULL) {
        free_content(*root);
        tsri_free(root);
    }
}

const tsri_yaml_node *tsri_yaml_find(const tsri_yaml_node *map, const char *key)
{
    for (int i = 0; i < map->count; i++) {
        if (map->children[i].key != NULL && strcmp(map->children[i].key, key) == 0) {
            return &map->children[i];
        }
    }
    return NULL;
}
