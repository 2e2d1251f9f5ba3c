/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading a mesh from text, and fitting it to a number of ranks. */
#include "config/mesh_text.h"

#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char separators[] = ", \t";

/* Names are free, but for those that are nearly one that means something. What begins with that
 * one, such as shard_a, is meant as it is. */
static tsr_status check_name(const char *name, size_t length)
{
    static const char *const known[] = {"replicate", "shard"};
    char word[TSR_MESH_NAME_BYTES];
    const char *near = NULL;

    (void)snprintf(word, sizeof(word), "%.*s", (int)length, name);
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(known[i]);
        const int next = strncmp(word, known[i], n) == 0 ? word[n] : 'x';

        if (next == '\0' || next == '_' || (next >= '0' && next <= '9')) {
            return TSR_OK;
        }
    }
    near = length > 3 ? tsri_nearest(word, known, 2) : strcmp(word, "pt") == 0 ? "tp" : NULL;
    if (near != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "mesh axis \"%s\" is nearly \"%s\"; wants that, or a name less like it",
                         word, near);
    }
    return TSR_OK;
}

tsr_status tsri_mesh_text_add(tsri_mesh_text *mesh, const char *name, size_t length, long size)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    const int shown = length < 40 ? (int)length : 40;

    if (mesh->count == TSR_MESH_MAX_AXES) {
        return TSR_RAISE(TSR_ERR_INVALID, "mesh has more than %d axes", TSR_MESH_MAX_AXES);
    }
    if (length == 0 || length >= TSR_MESH_NAME_BYTES || strspn(name, allowed) < length) {
        return TSR_RAISE(TSR_ERR_INVALID, "mesh axis \"%.*s\": a name has 1 to %d of a-z, 0-9, _",
                         shown, name, TSR_MESH_NAME_BYTES - 1);
    }
    TSR_TRY(check_name(name, length));
    if ((size < 1 && size != -1) || size > INT_MAX) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "mesh axis \"%.*s\" has size %ld, wants at least 1, or -1 for what is "
                         "left",
                         shown, name, size);
    }
    for (int i = 0; i < mesh->count; i++) {
        if (strlen(mesh->names[i]) == length && strncmp(mesh->names[i], name, length) == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh names the axis \"%s\" twice", mesh->names[i]);
        }
        if (size == -1 && mesh->axes[i].size == -1) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh leaves both \"%s\" and \"%.*s\" open (-1)",
                             mesh->names[i], shown, name);
        }
    }
    memcpy(mesh->names[mesh->count], name, length);
    mesh->names[mesh->count][length] = '\0';
    mesh->axes[mesh->count] = (tsr_mesh_axis){mesh->names[mesh->count], (int)size};
    mesh->count++;
    return TSR_OK;
}

tsr_status tsri_mesh_parse(const char *text, tsri_mesh_text *out)
{
    const char *at = text + strspn(text, separators);

    memset(out, 0, sizeof(*out));
    while (*at != '\0') {
        const size_t length = strcspn(at, separators);
        const char *equals = memchr(at, '=', length);
        char *end = NULL;
        long size = 0;

        errno = 0;
        size = equals != NULL ? strtol(equals + 1, &end, 10) : 0;
        if (equals == NULL || end == equals + 1 || end != at + length || errno != 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh \"%s\": \"%.*s\" is not axis=size", text,
                             length < 40 ? (int)length : 40, at);
        }
        TSR_TRY(tsri_mesh_text_add(out, at, (size_t)(equals - at), size));
        at += length;
        at += strspn(at, separators);
    }
    if (out->count == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "mesh \"%s\" names no axis, wants for example shard=2",
                         text);
    }
    return TSR_OK;
}

tsr_status tsri_mesh_fit(tsri_mesh_text *mesh, int ranks)
{
    int64_t product = 1;
    int open = -1;

    for (int i = 0; i < mesh->count; i++) {
        if (mesh->axes[i].size == -1) {
            open = i;
        } else if (__builtin_mul_overflow(product, (int64_t)mesh->axes[i].size, &product)) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh has more cells than can be counted");
        }
    }
    if (open >= 0 && ranks % product == 0) {
        mesh->axes[open].size = (int)(ranks / product);
        product = ranks;
    }
    if (product != ranks) {
        char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12)] = "";
        size_t used = 0;

        for (int i = 0; i < mesh->count && used < sizeof(text); i++) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s=%d", i > 0 ? "," : "",
                                     mesh->names[i], mesh->axes[i].size);
        }
        return TSR_RAISE(TSR_ERR_INVALID, "mesh %s has %lld cells%s for %d ranks", text,
                         (long long)product, open >= 0 ? " times what is left" : "", ranks);
    }
    return TSR_OK;
}
