/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file options.h
 * The table of configuration keys: one row each, which parsing, overrides, `tessera config`, and
 * the effective config.yaml are all made from.
 *
 * A key is a section and a name, "train.lr"; the key "mesh" alone is a section without names of its
 * own. Values are read into tsri_config at the row's offset, in the C type that the row's type
 * says.
 */
#pragma once

#include "base/bounds.h"
#include "base/growing_text.h"
#include "base/yaml.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tsri_option_type {
    TSRI_OPTION_INT,    /* int64_t */
    TSRI_OPTION_NUMBER, /* double */
    TSRI_OPTION_BOOL,   /* bool */
    TSRI_OPTION_CHOICE, /* int: index into choices */
    TSRI_OPTION_TEXT,   /* char *, owned; "" is not set */
    TSRI_OPTION_MESH,   /* tsri_mesh_text; no axes: auto */
    TSRI_OPTION_NAMES,  /* tsri_option_names; no names: the word of the default */
    TSRI_OPTION_PAIR,   /* double[2] */
    TSRI_OPTION_GROUPS  /* tsri_option_groups */
} tsri_option_type;

typedef struct tsri_option {
    const char *path;
    size_t offset;
    const char *fallback; /* the default, as it would stand in the file */
    const char *choices;  /* "a, b": all that there are; of NAMES: of each; NULL: any */
    const char *works;    /* the values that this version knows; NULL: all. For numbers: "0" */
    const char *help;     /* lines that end in \n but for the last */
    double min, max;      /* of INT, NUMBER, PAIR; min == max: any. Of NAMES: max names */
    tsri_bound bound;     /* instead of min and max; the fallback is allowed besides */
    tsri_option_type type;
    bool open;  /* min and max themselves are not allowed */
    bool quiet; /* left out of the effective configuration where it is the default */
} tsri_option;

enum {
    TSRI_OPTION_MAX_NAMES = 64,
    TSRI_OPTION_MAX_GROUPS = 16
};

typedef struct tsri_option_names {
    char *at[TSRI_OPTION_MAX_NAMES]; /* owned */
    int count;
} tsri_option_names;

typedef struct tsri_option_group {
    char *match; /* owned */
    double lr_scale, weight_decay;
    bool has_weight_decay;
} tsri_option_group;

typedef struct tsri_option_groups {
    tsri_option_group at[TSRI_OPTION_MAX_GROUPS];
    int count;
} tsri_option_groups;

/** Where a value stands, for messages. */
typedef struct tsri_option_place {
    const char *file; /* NULL: the command line */
    int line;
} tsri_option_place;

/** "FILE:LINE" or "command line"; returns it or text[size]. */
const char *tsri_option_place_text(const tsri_option_place *place, char *text, size_t size);

/** The table. */
const tsri_option *tsri_options(int *count_out);
/** Index of the row of path, or -1. */
int tsri_option_find(const char *path);
/** TSR_ERR_INVALID: the key at place is none; names the nearest. */
tsr_status tsri_option_raise_unknown(const tsri_option_place *place, const char *path);
/** "whole number, at least 1" into text[size]; returns text. */
const char *tsri_option_type_text(const tsri_option *option, char *text, size_t size);
/** Name of choice index of option. */
const char *tsri_option_choice(const tsri_option *option, int index, char *text, size_t size);

/**
 * Read node into the value at slot, and drop what it held. TSR_ERR_INVALID says where, which key,
 * what stands there and what is wanted; TSR_ERR_UNSUPPORTED that this version does not know it.
 */
tsr_status tsri_option_read(const tsri_option *option, const tsri_option_place *place,
                            const tsri_yaml_node *node, void *slot);
/** Add the value at slot as YAML in flow style. */
void tsri_option_print(const tsri_option *option, const void *slot, tsri_text *text);
/** Free what the value at slot owns. */
void tsri_option_drop(const tsri_option *option, void *slot);
