/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file filter.c
 * Open MPI's notices taken out of a stream that ranks write to as well.
 *
 * A notice stands between two lines of 74 dashes; some are single lines. A line is held back only
 * while it may still turn out to be one of those, which the first characters of other text settle.
 * Known notices are dropped, or become one line of ours if they say how a rank or host was lost.
 * One that is not known, or a line of the launcher's own, is kept for a moment: it goes through,
 * since it may say why nothing started, unless a better reason has been told by then.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double hold_s = 1.5;

enum {
    DASHES = 74,
    HOST_BYTES = 128
};

void tsri_filter_init(tsri_filter *filter, int out)
{
    memset(filter, 0, sizeof(*filter));
    filter->out = out;
    filter->exit_rank = -1;
}

static void flush(tsri_filter *f)
{
    const char *data = f->output;

    while (f->ready > 0) {
        ssize_t wrote = write(f->out, data, f->ready);

        if (wrote <= 0) {
            break; /* nobody reads us: the job goes on all the same */
        }
        data += wrote;
        f->ready -= (size_t)wrote;
    }
    f->ready = 0;
}

static void put(tsri_filter *f, const char *data, size_t bytes)
{
    f->spoke = f->spoke || bytes > 0;
    while (bytes > 0) {
        size_t room = sizeof(f->output) - f->ready;
        size_t part = bytes < room ? bytes : room;

        memcpy(f->output + f->ready, data, part);
        f->ready += part;
        data += part;
        bytes -= part;
        if (f->ready == sizeof(f->output)) {
            flush(f);
        }
    }
}

static void tell(tsri_filter *f, const char *text)
{
    if (!f->told && !f->quiet) {
        put(f, text, strlen(text));
        f->told = true;
    }
}

/* ---- single lines ---- */

/* After "[host:pid] " or at the start of a line. '#' stands for a number. */
static const char *const notices_tagged[] = {
    "# more process",
    "Set MCA parameter \"orte_base_help_aggregate\"",
    "PMIX ERROR: UNREACHABLE",
    "PMIX ERROR: LOST_CONNECTION",
    "Epoll ", /* of libevent, whose tag is "warn" */
};
static const char *const notices_plain[] = {
    "mpirun: ",
    "# total process",
};

typedef enum fit {
    FIT_NO,
    FIT_MAYBE, /* text ended before the pattern did */
    FIT_YES
} fit;

static fit match(const char *pattern, const char *text, size_t length)
{
    size_t at = 0;

    for (; *pattern != '\0'; pattern++) {
        size_t from = at;

        if (*pattern != '#') {
            if (at == length || text[at] != *pattern) {
                return at == length ? FIT_MAYBE : FIT_NO;
            }
            at++;
            continue;
        }
        while (at < length && text[at] >= '0' && text[at] <= '9') {
            at++;
        }
        if (at == from && at < length) {
            return FIT_NO;
        }
    }
    return FIT_YES;
}

static fit match_any(const char *const *patterns, size_t count, const char *text, size_t length)
{
    fit best = FIT_NO;

    for (size_t i = 0; i < count; i++) {
        fit one = match(patterns[i], text, length);

        best = one > best ? one : best;
    }
    return best;
}

static bool is_tag_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr(".-_:", c) != NULL;
}

/* Once it is known why the job ends, what the launcher adds is no news. */
static bool is_explained(const tsri_filter *f)
{
    return f->told || f->reported || f->quiet;
}

/* Held text is shown when nothing better has come. */
static void settle_held(tsri_filter *f)
{
    if (!is_explained(f)) {
        put(f, f->later, f->held);
    }
    f->held = 0;
}

static void hold(tsri_filter *f, const char *data, size_t bytes)
{
    if (f->held == 0) {
        f->held_s = tsri_now_s();
    }
    if (bytes > sizeof(f->later) - f->held) {
        settle_held(f);
    }
    if (bytes > sizeof(f->later)) {
        put(f, data, bytes);
        return;
    }
    memcpy(f->later + f->held, data, bytes);
    f->held += bytes;
}

static void look_at_held(tsri_filter *f)
{
    if (f->held > 0 && (is_explained(f) || tsri_now_s() - f->held_s > hold_s)) {
        settle_held(f);
    }
}

/* "[host:pid] " of the launcher's own process */
static bool is_launchers(const tsri_filter *f, const char *text, size_t length)
{
    const char *end = memchr(text, ']', length);
    const char *colon = memchr(text, ':', length);

    return f->launcher != 0 && end != NULL && colon != NULL && colon < end &&
           strtol(colon + 1, NULL, 10) == f->launcher;
}

/* "[host:pid] " and then one of the notices, or anything if they are no news */
static fit match_tagged(const tsri_filter *f, const char *text, size_t length)
{
    size_t at = 1;

    while (at < length && text[at] != ']') {
        if (!is_tag_char(text[at])) {
            return FIT_NO;
        }
        at++;
    }
    if (at + 1 >= length) {
        return FIT_MAYBE;
    }
    if (text[at + 1] != ' ') {
        return FIT_NO;
    }
    if (is_explained(f) && memchr(text, ':', at) != NULL) {
        return FIT_YES;
    }
    const fit known = match_any(notices_tagged, sizeof(notices_tagged) / sizeof(notices_tagged[0]),
                                text + at + 2, length - at - 2);

    return known == FIT_NO && is_launchers(f, text, length) ? FIT_MAYBE : known;
}

static fit match_dashes(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '-' || i >= DASHES) {
            return FIT_NO;
        }
    }
    return length == DASHES ? FIT_YES : FIT_MAYBE;
}

static fit match_line(const tsri_filter *f, const char *text, size_t length)
{
    if (length == 0) {
        return FIT_MAYBE;
    }
    if (text[0] == '[') {
        return match_tagged(f, text, length);
    }
    if (text[0] == '-') {
        return match_dashes(text, length) == FIT_NO ? FIT_NO : FIT_MAYBE;
    }
    return match_any(notices_plain, sizeof(notices_plain) / sizeof(notices_plain[0]), text, length);
}

/* ---- notices ---- */

static const char *const dropped[] = {
    "MPI_ABORT was invoked", /* lint: text of a notice */
    "Primary job terminated normally",
    "btl_vader_single_copy_mechanism",
    "without calling \"finalize\"",
};

/* Line ends and runs of blanks as one blank, in place. */
static void flatten(char *text)
{
    char *to = text;

    for (const char *c = text; *c != '\0'; c++) {
        bool blank = *c == '\n' || *c == ' ' || *c == '\t';

        if (!blank) {
            *to++ = *c;
        } else if (to > text && to[-1] != ' ') {
            *to++ = ' ';
        }
    }
    *to = '\0';
}

/* The word at from, up to a blank or the end, into out. */
static void copy_word(const char *from, char *out, size_t size)
{
    size_t length = strcspn(from, " ");

    length = length < size ? length : size - 1;
    memcpy(out, from, length);
    out[length] = '\0';
}

/* "process rank 3 with PID 0 on node vm exited on signal 9 (Killed)." */
static bool tell_signal(tsri_filter *f, const char *text)
{
    const char *rank = strstr(text, "process rank ");
    const char *node = strstr(text, " on node ");
    const char *sign = strstr(text, " exited on signal ");
    char host[HOST_BYTES];
    char line[512];
    int length = 0;

    if (rank == NULL || node == NULL || sign == NULL) {
        return false;
    }
    copy_word(node + strlen(" on node "), host, sizeof(host));
    sign += strlen(" exited on signal ");
    length = (int)strcspn(sign, ".");
    (void)snprintf(line, sizeof(line),
                   "tessera: rank %ld on host %s was killed by signal %.*s; the job was ended\n",
                   strtol(rank + strlen("process rank "), NULL, 10), host, length, sign);
    tell(f, line);
    return true;
}

/* "Remote daemon: [[21,0],1] on node b": its host no longer answers. */
static bool tell_host(tsri_filter *f, const char *text)
{
    const char *remote = strstr(text, "Remote daemon:");
    const char *node = remote != NULL ? strstr(remote, " on node ") : NULL;
    char host[HOST_BYTES];
    char line[512];

    if (strstr(text, "lost communication with a remote daemon") == NULL || node == NULL) {
        return false;
    }
    copy_word(node + strlen(" on node "), host, sizeof(host));
    (void)snprintf(line, sizeof(line),
                   "tessera: host %s no longer answers (network or host down); the job was ended\n",
                   host);
    tell(f, line);
    return true;
}

/* "Process name: [[53915,1],3] Exit code: 7" is kept for the end, when it may be news. */
static bool note_exit(tsri_filter *f, const char *text)
{
    const char *name = strstr(text, "Process name: [[");
    const char *comma = name != NULL ? strstr(name, "],") : NULL;
    const char *code = strstr(text, "Exit code:");

    if (comma == NULL || code == NULL) {
        return false;
    }
    f->exit_rank = (int)strtol(comma + 2, NULL, 10);
    f->exit_code = (int)strtol(code + strlen("Exit code:"), NULL, 10);
    return true;
}

static bool is_known(tsri_filter *f, const char *text)
{
    if (tell_signal(f, text) || tell_host(f, text) || note_exit(f, text)) {
        return true;
    }
    f->aborted = f->aborted || strstr(text, dropped[0]) != NULL;
    for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++) {
        if (strstr(text, dropped[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* Lines of ranks that mpirun wrote into the middle of its own. */
static void rescue(tsri_filter *f, const char *text)
{
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t length = end != NULL ? (size_t)(end - line) + 1 : strlen(line);

        if (strncmp(line, "[rank ", 6) == 0) {
            put(f, line, length);
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

static void show_block(tsri_filter *f)
{
    char line[DASHES + 1];

    memset(line, '-', DASHES);
    line[DASHES] = '\n';
    put(f, line, sizeof(line));
    put(f, f->text, f->used);
}

/* The notice in text[used] has ended. */
static void end_block(tsri_filter *f)
{
    char flat[sizeof(f->text)];

    f->text[f->used] = '\0';
    memcpy(flat, f->text, f->used + 1);
    flatten(flat);
    if (is_known(f, flat) || is_explained(f)) {
        rescue(f, f->text);
    } else {
        hold(f, f->text, f->used);
    }
    f->in_block = false;
    f->used = 0;
}

/* ---- the stream ---- */

/* A character within a notice; a line of dashes ends it. */
static void take_in_block(tsri_filter *f, char c)
{
    f->text[f->used++] = c;
    if (c == '\n') {
        size_t start = f->used - 1;

        while (start > 0 && f->text[start - 1] != '\n') {
            start--;
        }
        if (match_dashes(f->text + start, f->used - 1 - start) == FIT_YES) {
            f->used = start;
            end_block(f);
            return;
        }
    }
    if (f->used == sizeof(f->text) - 1) {
        show_block(f);
        f->in_block = false;
        f->passing = c != '\n';
        f->used = 0;
    }
}

static void end_line(tsri_filter *f)
{
    if (match_dashes(f->text, f->used) == FIT_YES) {
        f->in_block = true;
    } else if (match_line(f, f->text, f->used) != FIT_YES) {
        const bool launchers = is_launchers(f, f->text, f->used);

        f->text[f->used++] = '\n';
        if (launchers) {
            hold(f, f->text, f->used);
        } else {
            put(f, f->text, f->used);
        }
    }
    f->used = 0;
}

/* A character of a line that is not decided yet. */
static void take_in_line(tsri_filter *f, char c)
{
    if (c == '\n') {
        end_line(f);
        return;
    }
    f->text[f->used++] = c;
    if (match_line(f, f->text, f->used) == FIT_NO || f->used == sizeof(f->text) - 2) {
        put(f, f->text, f->used);
        f->used = 0;
        f->passing = true;
    }
}

static void put_dashes(tsri_filter *f)
{
    for (; f->dashes > 0; f->dashes--) {
        put(f, "-", 1);
    }
}

/* A character of a line that goes through; a rank's unfinished line may be followed by a notice. */
static void take_passing(tsri_filter *f, char c)
{
    if (c == '-' && f->dashes < DASHES) {
        f->dashes++;
        return;
    }
    if (c == '\n' && f->dashes == DASHES) {
        f->dashes = 0;
        f->in_block = true;
    }
    put_dashes(f);
    put(f, &c, 1);
    f->passing = c != '\n';
}

/* "[rank 3/8] ERR_": a rank says why it failed. */
static void note_head(tsri_filter *f, char c)
{
    if (c != '\n') {
        if (f->headed < sizeof(f->head)) {
            f->head[f->headed++] = c;
        }
        return;
    }
    f->reported = f->reported || match("[rank #/#] ERR_", f->head, f->headed) == FIT_YES;
    f->headed = 0;
}

void tsri_filter_feed(tsri_filter *filter, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        note_head(filter, data[i]);
        if (filter->passing) {
            take_passing(filter, data[i]);
        } else if (filter->in_block) {
            take_in_block(filter, data[i]);
        } else {
            take_in_line(filter, data[i]);
        }
    }
    look_at_held(filter);
    flush(filter);
}

static void decide(tsri_filter *f)
{
    if (f->passing) {
        put_dashes(f);
    } else if (!f->in_block && f->used > 0) {
        put(f, f->text, f->used);
        f->used = 0;
        f->passing = true;
    }
}

void tsri_filter_idle(tsri_filter *filter)
{
    decide(filter);
    look_at_held(filter);
    flush(filter);
}

void tsri_filter_finish(tsri_filter *filter)
{
    if (filter->in_block) {
        show_block(filter);
        filter->in_block = false;
        filter->used = 0;
    }
    decide(filter);
    settle_held(filter);
    flush(filter);
}
