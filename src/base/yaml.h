/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file yaml.h
 * YAML as a small tree: nested maps, lists and scalars of one document, each with its line.
 *
 * The subset that configuration files need: block and flow style, comments, quotes. Anchors,
 * aliases, tags, several documents, keys that are not scalars, duplicate keys and nesting beyond
 * TSRI_YAML_MAX_DEPTH are errors. Messages begin "FILE:LINE: ".
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    TSRI_YAML_MAX_DEPTH = 16
};

typedef enum tsri_yaml_kind {
    TSRI_YAML_MAP = 0,
    TSRI_YAML_LIST,
    TSRI_YAML_SCALAR
} tsri_yaml_kind;

typedef struct tsri_yaml_node {
    tsri_yaml_kind kind;
    int line;     /**< From 1; of the key where there is one. */
    bool quoted;  /**< A scalar in quotes: text, even if it reads like a number. */
    char *key;    /**< In a map; NULL in a list and at the root. */
    char *text;   /**< Of a scalar; "" where the value is left out. NULL otherwise. */
    int count;    /**< Children of a map or list, in the order of the file. */
    int capacity; /**< Private. */
    struct tsri_yaml_node *children;
} tsri_yaml_node;

/** Parse the file at path. An empty document is an empty map. TSR_ERR_IO, TSR_ERR_FORMAT. */
tsr_status tsri_yaml_load_file(const char *path, tsri_yaml_node **out);
/** The same from bytes characters; name stands for the file in messages. */
tsr_status tsri_yaml_parse(const char *text, size_t bytes, const char *name, tsri_yaml_node **out);
/** Free the tree and NULL *root, which may be NULL. */
void tsri_yaml_free(tsri_yaml_node **root);
/** The child of a map called key, or NULL. */
const tsri_yaml_node *tsri_yaml_find(const tsri_yaml_node *map, const char *key);
