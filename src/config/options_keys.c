/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Keys of the table by name, and what an unknown one was meant to be. */
#include "base/base.h"

#include <string.h>

#include "config/options.h"

enum {
    MOST_KEYS = 128,
    WORD_BYTES = 48,
    PLACE_BYTES = 512
};

int tsri_option_find(const char *path)
{
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        if (strcmp(table[i].path, path) == 0) {
            return i;
        }
    }
    return -1;
}

const char *tsri_option_place_text(const tsri_option_place *place, char *text, size_t size)
{
    if (place->file == NULL) {
        return "command line";
    }
    (void)snprintf(text, size, "%s:%d", place->file, place->line);
    return text;
}

static const char *name_of(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

/* The section whose name is nearest to name, into text[WORD_BYTES]; NULL: none is near. */
static const char *find_near_section(const char *name, char *text)
{
    char sections[MOST_KEYS][WORD_BYTES];
    const char *names[MOST_KEYS];
    const char *near = NULL;
    int found = 0;
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        (void)snprintf(sections[found], WORD_BYTES, "%.*s", (int)strcspn(table[i].path, "."),
                       table[i].path);
        if (found == 0 || strcmp(sections[found], sections[found - 1]) != 0) {
            names[found] = sections[found];
            found++;
        }
    }
    near = tsri_nearest(name, names, found);
    if (near == NULL) {
        return NULL;
    }
    (void)snprintf(text, WORD_BYTES, "%s", near);
    return text;
}

/* The key that path was meant to be: one of that name in another section, else for a word without
 * section the nearest section, into text, else the nearest whole path, else the nearest name.
 * NULL: none is near. */
static const char *find_near(const char *path, char *text)
{
    int count = 0;
    const tsri_option *table = tsri_options(&count);
    const char *paths[MOST_KEYS];
    const char *names[MOST_KEYS];
    const char *near = NULL;

    for (int i = 0; i < count && i < MOST_KEYS; i++) {
        paths[i] = table[i].path;
        names[i] = name_of(table[i].path);
        if (strcmp(names[i], name_of(path)) == 0) {
            return paths[i];
        }
    }
    near = strchr(path, '.') == NULL ? find_near_section(path, text) : NULL;
    if (near == NULL) {
        near = tsri_nearest(path, paths, count);
    }
    if (near != NULL) {
        return near;
    }
    near = tsri_nearest(name_of(path), names, count);
    for (int i = 0; near != NULL && i < count; i++) {
        if (names[i] == near) {
            return paths[i];
        }
    }
    return NULL;
}

tsr_status tsri_option_raise_unknown(const tsri_option_place *place, const char *path)
{
    char section[WORD_BYTES];
    const char *near = find_near(path, section);
    char text[PLACE_BYTES];

    return TSR_RAISE(TSR_ERR_INVALID, "%s: unknown key \"%s\"%s%s%s",
                     tsri_option_place_text(place, text, sizeof(text)), path,
                     near != NULL ? "; the nearest is \"" : "; `tessera config` lists all",
                     near != NULL ? near : "", near != NULL ? "\"" : "");
}
