/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file text.c
 * Patterns over dotted names, distances between words, and readable numbers.
 *
 * A pattern is matched as a chain of pieces: an alternative of a brace is a piece followed by what
 * stands behind the brace, so that braces may nest and hold wildcards and dots.
 */
#include "base/base.h"

#include <string.h>

enum {
    WORD_MAX = 128,
    REMEMBERED = 1 << 17 /* pairs of places: patterns and names of some 360 characters */
};

/* What stands behind a place of the pattern is the same whichever way led there, so a place and a
 * place of the name that failed once fail again: without remembering it, patterns of many "**" take
 * for ever. */
typedef struct matcher {
    const char *pattern, *name;
    size_t name_length;
    unsigned char *failed; /* bits [pattern][name + 1]; NULL: nothing is remembered */
} matcher;

typedef struct piece {
    const char *at;
    const char *end;
    const struct piece *next;
} piece;

static bool match(const matcher *m, piece p, const char *name);

/* The brace that closes the one at open, or NULL. */
static const char *brace_close(const char *open, const char *end)
{
    int depth = 0;

    for (const char *c = open; c < end; c++) {
        depth += (*c == '{') - (*c == '}');
        if (depth == 0) {
            return c;
        }
    }
    return NULL;
}

static bool match_brace(const matcher *m, piece p, const char *close, const char *name)
{
    const piece rest = {close + 1, p.end, p.next};
    const char *from = p.at + 1;
    int depth = 0;

    for (const char *c = from; c <= close; c++) {
        if (depth == 0 && (*c == ',' || c == close)) {
            if (match(m, (piece){from, c, &rest}, name)) {
                return true;
            }
            from = c + 1;
        }
        depth += (*c == '{') - (*c == '}');
    }
    return false;
}

static bool match_star(const matcher *m, piece p, const char *name)
{
    bool deep = p.at + 1 < p.end && p.at[1] == '*';
    piece rest = {p.at + (deep ? 2 : 1), p.end, p.next};

    if (deep && rest.at < rest.end && *rest.at == '.' && (name == m->name || name[-1] == '.') &&
        match(m, (piece){rest.at + 1, rest.end, rest.next}, name)) {
        return true; /* no component at all: the dot goes with it */
    }
    for (;; name++) {
        if (match(m, rest, name)) {
            return true;
        }
        if (*name == '\0' || (!deep && *name == '.')) {
            return false;
        }
    }
}

static bool match_on(const matcher *m, piece p, const char *name)
{
    for (;;) {
        if (p.at == p.end) {
            if (p.next == NULL) {
                return *name == '\0';
            }
            p = *p.next;
            continue;
        }
        if (*p.at == '*') {
            return match_star(m, p, name);
        }
        if (*p.at == '{') {
            const char *close = brace_close(p.at, p.end);
            if (close != NULL) {
                return match_brace(m, p, close, name);
            }
        }
        if (*name == '\0') {
            return p.next == NULL && p.end - p.at == 3 && memcmp(p.at, ".**", 3) == 0;
        }
        if (*name != *p.at) {
            return false;
        }
        p.at++;
        name++;
    }
}

static bool match(const matcher *m, piece p, const char *name)
{
    const size_t bit =
        (size_t)(p.at - m->pattern) * (m->name_length + 1) + (size_t)(name - m->name);

    if (m->failed == NULL) {
        return match_on(m, p, name);
    }
    if ((m->failed[bit / 8] & 1U << bit % 8) != 0) {
        return false;
    }
    if (match_on(m, p, name)) {
        return true;
    }
    m->failed[bit / 8] |= (unsigned char)(1U << bit % 8);
    return false;
}

bool tsri_pattern_match(const char *pattern, const char *name)
{
    unsigned char failed[REMEMBERED / 8];
    const size_t pattern_length = strlen(pattern);
    matcher m = {.pattern = pattern, .name = name, .name_length = strlen(name)};
    const size_t bits = (pattern_length + 1) * (m.name_length + 1);

    if (bits <= REMEMBERED) {
        memset(failed, 0, bits / 8 + (bits < REMEMBERED ? 1 : 0));
        m.failed = failed;
    }
    return match(&m, (piece){pattern, pattern + pattern_length, NULL}, name);
}

size_t tsri_text_mark(const char *text, size_t bytes)
{
    static const char mark[] = "\xEF\xBB\xBF";

    return bytes >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
}

char *tsri_make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        const bool wide = c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0; /* U+0080 to U+009F */

        if (*c < 0x20 || *c == 0x7F || wide) {
            *c = '?';
            c[wide ? 1 : 0] = '?';
        }
    }
    return text;
}

int tsri_edit_distance(const char *a, const char *b)
{
    int row[WORD_MAX + 1];
    int rows = (int)strnlen(a, WORD_MAX + 1);
    int cols = (int)strnlen(b, WORD_MAX + 1);

    if (rows > WORD_MAX || cols > WORD_MAX) {
        return strcmp(a, b) == 0 ? 0 : WORD_MAX;
    }
    for (int j = 0; j <= cols; j++) {
        row[j] = j;
    }
    for (int i = 1; i <= rows; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= cols; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) {
                best = row[j] + 1;
            }
            if (row[j - 1] + 1 < best) {
                best = row[j - 1] + 1;
            }
            row[j] = best;
        }
    }
    return row[cols];
}

const char *tsri_nearest(const char *name, const char *const *names, int count)
{
    int length = (int)strnlen(name, WORD_MAX);
    int limit = length < 3 ? 1 : 1 + length / 3;
    const char *nearest = NULL;

    for (int i = 0; i < count; i++) {
        int distance = tsri_edit_distance(name, names[i]);
        if (distance <= limit) {
            limit = distance - 1;
            nearest = names[i];
        }
    }
    return nearest;
}

const char *tsri_format_bytes(double bytes, char *buffer, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;

    while ((bytes >= 1024.0 || bytes <= -1024.0) && unit < 6) {
        bytes /= 1024.0;
        unit++;
    }
    (void)snprintf(buffer, size, "%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
    return buffer;
}

const char *tsri_format_shape(const int64_t *shape, int ndim, char *buffer, size_t size)
{
    size_t used = 0;

    if (size == 0) {
        return buffer;
    }
    (void)snprintf(buffer, size, "[");
    used = strlen(buffer);
    for (int i = 0; i < ndim; i++) {
        (void)snprintf(buffer + used, size - used, "%s%lld", i == 0 ? "" : ", ",
                       (long long)shape[i]);
        used += strlen(buffer + used);
    }
    (void)snprintf(buffer + used, size - used, "]");
    return buffer;
}
