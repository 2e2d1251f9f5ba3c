/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Values of the configuration, written so that reading gives them back. */
#include "base/base.h"

#include <string.h>

#include "config/mesh_text.h"
#include "config/options.h"

enum {
    WORD_BYTES = 48
};

/* Text as YAML: plain where nothing in it could mean something else. */
static void print_text(const char *value, tsri_text *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";

    if (*value != '\0' && *value != '-' && strspn(value, plain) == strlen(value)) {
        tsri_text_add(text, "%s", value);
    } else {
        tsri_text_add_quoted(text, value);
    }
}

static void print_mesh(const tsri_mesh_text *mesh, tsri_text *text)
{
    if (mesh->count == 0) {
        tsri_text_add(text, "auto");
        return;
    }
    for (int i = 0; i < mesh->count; i++) {
        tsri_text_add(text, "%s%s: %d", i == 0 ? "{" : ", ", mesh->names[i], mesh->axes[i].size);
    }
    tsri_text_add(text, "}");
}

static void print_names(const tsri_option *option, const tsri_option_names *names, tsri_text *text)
{
    if (names->count == 0) {
        tsri_text_add(text, "%s", option->fallback);
        return;
    }
    for (int i = 0; i < names->count; i++) {
        tsri_text_add(text, i == 0 ? "[" : ", ");
        print_text(names->at[i], text);
    }
    tsri_text_add(text, "]");
}

static void print_groups(const tsri_option_groups *groups, tsri_text *text)
{
    tsri_text_add(text, "[");
    for (int i = 0; i < groups->count; i++) {
        const tsri_option_group *group = &groups->at[i];

        tsri_text_add(text, i == 0 ? "{match: " : ", {match: ");
        tsri_text_add_quoted(text, group->match);
        tsri_text_add(text, ", lr_scale: ");
        tsri_text_add_number(text, group->lr_scale);
        if (group->has_weight_decay) {
            tsri_text_add(text, ", weight_decay: ");
            tsri_text_add_number(text, group->weight_decay);
        }
        tsri_text_add(text, "}");
    }
    tsri_text_add(text, "]");
}

void tsri_option_print(const tsri_option *option, const void *slot, tsri_text *text)
{
    char word[WORD_BYTES];

    switch (option->type) {
    case TSRI_OPTION_INT:
        tsri_text_add(text, "%lld", (long long)*(const int64_t *)slot);
        break;
    case TSRI_OPTION_NUMBER:
        tsri_text_add_number(text, *(const double *)slot);
        break;
    case TSRI_OPTION_BOOL:
        tsri_text_add(text, "%s", *(const bool *)slot ? "true" : "false");
        break;
    case TSRI_OPTION_CHOICE:
        tsri_text_add(text, "%s",
                      tsri_option_choice(option, *(const int *)slot, word, sizeof(word)));
        break;
    case TSRI_OPTION_TEXT:
        print_text(*(char *const *)slot != NULL ? *(char *const *)slot : "", text);
        break;
    case TSRI_OPTION_MESH:
        print_mesh(slot, text);
        break;
    case TSRI_OPTION_NAMES:
        print_names(option, slot, text);
        break;
    case TSRI_OPTION_PAIR:
        tsri_text_add(text, "[");
        tsri_text_add_number(text, ((const double *)slot)[0]);
        tsri_text_add(text, ", ");
        tsri_text_add_number(text, ((const double *)slot)[1]);
        tsri_text_add(text, "]");
        break;
    case TSRI_OPTION_GROUPS:
        print_groups(slot, text);
        break;
    }
}

void tsri_option_drop(const tsri_option *option, void *slot)
{
    if (option->type == TSRI_OPTION_TEXT) {
        tsri_free(slot);
    } else if (option->type == TSRI_OPTION_NAMES) {
        tsri_option_names *names = slot;

        for (int i = 0; i < names->count; i++) {
            tsri_free(&names->at[i]);
        }
        names->count = 0;
    } else if (option->type == TSRI_OPTION_GROUPS) {
        tsri_option_groups *groups = slot;

        for (int i = 0; i < groups->count; i++) {
            tsri_free(&groups->at[i].match);
        }
        memset(groups, 0, sizeof(*groups));
    }
}
