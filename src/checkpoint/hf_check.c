/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Do weight files fit a model, and what is to be said about them? Nothing that a file holds is
 * passed over in silence: each tensor is a parameter's, or shared with one, or stands in the
 * notice.
 */
#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/hf.h"

enum {
    COMPARE_ELEMENTS = 1 << 16,
    SHOWN = 3, /* names of a list that may be long */
    LIST_BYTES = 320
};

void tsri_hf_note(char *notice, const char *format, ...)
{
    const size_t used = notice != NULL ? strlen(notice) : 0;
    const char *between = used > 0 ? "; " : "";
    va_list arguments;

    if (notice == NULL || used + strlen(between) + 1 >= TSRI_HF_NOTICE_BYTES) {
        return;
    }
    (void)snprintf(notice + used, TSRI_HF_NOTICE_BYTES - used, "%s", between);
    va_start(arguments, format);
    (void)vsnprintf(notice + used + strlen(between), TSRI_HF_NOTICE_BYTES - used - strlen(between),
                    format, arguments);
    va_end(arguments);
    (void)tsri_make_printable(notice); /* names come from files */
}

/* ---- a tied pair of which both are stored ---- */

typedef struct pair {
    const tsri_safetensors_tensor *embed, *head; /* the one that is read, and the other */
} pair;

static tsr_status raise_differs(const tsri_safetensors *st, const pair *p, const char *how)
{
    return TSR_RAISE(TSR_ERR_FORMAT,
                     "%s: the model's head is its embedding, as tie_word_embeddings in config.json "
                     "or model.tied says, but %s and %s differ: %s; model.tied=false keeps both",
                     tsri_safetensors_path(st), p->embed->name, p->head->name, how);
}

static tsr_status compare_values(const tsri_safetensors *st, const pair *p, int64_t first,
                                 const float *a, const float *b, int64_t count)
{
    char how[96];

    for (int64_t i = 0; i < count; i++) {
        const int64_t entry = first + i;

        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) {
            (void)snprintf(how, sizeof(how), "entry %lld is %.9g and %.9g", (long long)entry,
                           (double)a[i], (double)b[i]);
            return raise_differs(st, p, how);
        }
    }
    return TSR_OK;
}

static tsr_status compare_pair(tsri_safetensors *st, const pair *p)
{
    const int64_t count = p->embed->count;
    float *values = NULL;
    tsr_status status = TSR_OK;
    char how[240];
    char embed[96];
    char head[96];

    if (p->head->ndim != p->embed->ndim || p->head->count != count ||
        memcmp(p->head->shape, p->embed->shape, sizeof(p->head->shape)) != 0) {
        (void)snprintf(how, sizeof(how), "they have shapes %s and %s",
                       tsri_safetensors_shape(p->embed, embed, sizeof(embed)),
                       tsri_safetensors_shape(p->head, head, sizeof(head)));
        return raise_differs(st, p, how);
    }
    if (tsri_safetensors_check_float(st, p->head) != TSR_OK) {
        tsr_error_clear();
        (void)snprintf(how, sizeof(how), "one is %s and the other %s, of which nothing is read",
                       p->embed->type, p->head->type);
        return raise_differs(st, p, how);
    }
    TSR_TRY(tsri_alloc((size_t)2 * COMPARE_ELEMENTS, sizeof(*values), &values));
    for (int64_t at = 0; at < count; at += COMPARE_ELEMENTS) {
        const int64_t n = tsri_min64(COMPARE_ELEMENTS, count - at);
        float *other = values + COMPARE_ELEMENTS;

        TSR_TRY_GOTO(status, tsri_safetensors_read_f32(st, p->embed, at, n, values), free_values);
        TSR_TRY_GOTO(status, tsri_safetensors_read_f32(st, p->head, at, n, other), free_values);
        TSR_TRY_GOTO(status, compare_values(st, p, at, values, other, n), free_values);
    }
free_values:
    tsri_free(&values);
    return status;
}

/* ---- what is left over ---- */

/* Names, the first few of many. */
typedef struct names {
    int count;
    char text[LIST_BYTES];
} names;

static void add_name(names *list, const char *name)
{
    const size_t used = strlen(list->text);

    if (list->count < SHOWN) {
        (void)snprintf(list->text + used, sizeof(list->text) - used, "%s%.90s",
                       list->count > 0 ? ", " : "", name);
    } else if (list->count == SHOWN) {
        (void)snprintf(list->text + used, sizeof(list->text) - used, ", ...");
    }
    list->count++;
}

/* Causal masks and tables of angles that files carry, and the model computes. */
static bool is_buffer(const char *name)
{
    static const char *const ends[] = {"attn.bias", "attn.masked_bias", "rotary_emb.inv_freq"};
    const size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t n = strlen(ends[i]);

        if (length > n && name[length - n - 1] == '.' && strcmp(name + length - n, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* "F32" or "BF16 and F16, as f32": of what is used. */
static void type_text(const tsri_safetensors *st, const bool *used, char *text, size_t size)
{
    const char *told[4] = {NULL};
    int count = 0;
    bool converted = false;

    text[0] = '\0';
    for (int i = 0; i < tsri_safetensors_count(st); i++) {
        const tsri_safetensors_tensor *t = tsri_safetensors_at(st, i);
        bool known = !used[i] || count == 4;

        for (int k = 0; k < count; k++) {
            known = known || strcmp(told[k], t->type) == 0;
        }
        if (!known) {
            const size_t at = strlen(text);

            (void)snprintf(text + at, size - at, "%s%s", count > 0 ? " and " : "", t->type);
            told[count++] = t->type;
            converted = converted || t->dtype != TSR_F32;
        }
    }
    if (converted) {
        (void)snprintf(text + strlen(text), size - strlen(text), " as f32");
    }
}

static void note_tensors(const tsri_safetensors *st, const bool *used, const pair *tied,
                         char *notice)
{
    names buffers = {0};
    names others = {0};
    int count = 0;
    char types[96];

    for (int i = 0; i < tsri_safetensors_count(st); i++) {
        const tsri_safetensors_tensor *t = tsri_safetensors_at(st, i);

        if (used[i]) {
            count++;
        } else if (t != tied->head) {
            add_name(is_buffer(t->name) ? &buffers : &others, t->name);
        }
    }
    type_text(st, used, types, sizeof(types));
    tsri_hf_note(notice, "%s: %d tensors, %s", tsri_safetensors_source(st), count, types);
    if (tied->head != NULL) {
        tsri_hf_note(notice, "%s is %s, and equal to it", tied->head->name, tied->embed->name);
    }
    if (others.count > 0) {
        tsri_hf_note(notice, "%d not used: %s", others.count, others.text);
    }
    if (buffers.count > 0) {
        tsri_hf_note(notice, "%d computed instead of read: %s", buffers.count, buffers.text);
    }
}

/* ---- both ---- */

/* The tensors that are read; of a tied pair the other one too. */
static tsr_status find_all(const tsri_safetensors *st, const tsri_model_spec *spec,
                           tsr_param *const *params, int count, bool *used, pair *tied,
                           char *notice)
{
    for (int i = 0; i < count; i++) {
        const tsri_safetensors_tensor *t = NULL;
        const tsri_safetensors_tensor *other = NULL;
        tsri_hf_place place;

        TSR_TRY(tsri_hf_locate(spec, tsr_param_name(params[i]), &place));
        TSR_TRY(tsri_hf_find(st, "", &place, params[i], &t));
        used[t - tsri_safetensors_at(st, 0)] = true;
        if (place.twin == NULL) {
            continue;
        }
        other = tsri_hf_look_up(st, "", place.twin);
        if (other == t) {
            tsri_hf_note(notice, "%s is read for %s, which is not stored", t->name, place.name);
        } else if (other != NULL) {
            *tied = (pair){t, other};
        }
    }
    return TSR_OK;
}

tsr_status tsri_hf_check(tsri_safetensors *st, const tsri_model_spec *spec,
                         tsr_param *const *params, int count, char *notice)
{
    bool *used = NULL;
    pair tied = {NULL, NULL};
    char shared[TSRI_HF_NOTICE_BYTES] = "";
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)tsri_safetensors_count(st), sizeof(*used), &used));
    TSR_TRY_GOTO(status, find_all(st, spec, params, count, used, &tied, shared), free_used);
    if (tied.head != NULL) {
        TSR_TRY_GOTO(status, compare_pair(st, &tied), free_used);
    }
    note_tensors(st, used, &tied, notice);
    if (shared[0] != '\0') {
        tsri_hf_note(notice, "%s", shared);
    }
free_used:
    tsri_free(&used);
    return status;
}
