/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Groups of axes by host and place: what a mesh became on the machines that a job got. */
#include "train/start_groups.h"

#include "base/base.h"

#include <stdarg.h>

enum {
    MOST_GROUPS = 4 /* of an axis that are named */
};

typedef struct writer {
    char *text;
    size_t size, used;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(writer *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int wrote = vsnprintf(w->text + w->used, w->size - w->used, format, args);
    va_end(args);
    w->used += wrote > 0 ? (size_t)wrote : 0;
    w->used = w->used < w->size ? w->used : w->size - 1;
}

typedef struct places {
    const int *node_of;
    const char *const *host_of;
    int *place_of; /* on its host */
} places;

/* Members of a group on one host from m on: as ranges of places. Returns the first of another. */
static int put_host(writer *w, const places *p, const int *members, int m, int size)
{
    const int node = p->node_of[members[m]];
    const char *between = ":";

    put(w, "%s%s", m > 0 ? " " : "", p->host_of[members[m]]);
    while (m < size && p->node_of[members[m]] == node) {
        const int first = p->place_of[members[m]];
        int last = first;

        while (++m < size && p->node_of[members[m]] == node &&
               p->place_of[members[m]] == last + 1) {
            last++;
        }
        put(w, "%s%d", between, first);
        if (last > first) {
            put(w, "-%d", last);
        }
        between = ",";
    }
    return m;
}

static tsr_status put_axis(writer *w, const places *p, const tsr_mesh *mesh, int axis, int *members)
{
    const int size = tsr_mesh_axis_size(mesh, axis);
    const int ranks = tsr_mesh_cell_count(mesh);
    int count = 0;

    put(w, "%s%s", w->used > 0 ? "; " : "", tsr_mesh_axis_name(mesh, axis));
    for (int rank = 0; rank < ranks; rank++) {
        TSR_TRY(tsr_mesh_axis_ranks(mesh, axis, rank, members));
        if (members[0] != rank || ++count > MOST_GROUPS) {
            continue;
        }
        put(w, "%s", count > 1 ? " | " : " ");
        for (int m = 0; m < size;) {
            m = put_host(w, p, members, m, size);
        }
    }
    if (count > MOST_GROUPS) {
        put(w, " | and %d more", count - MOST_GROUPS);
    }
    return TSR_OK;
}

tsr_status tsri_start_groups_text(const tsr_mesh *mesh, const int *node_of,
                                  const char *const *host_of, char *text, size_t size)
{
    const int ranks = tsr_mesh_cell_count(mesh);
    writer w = {.text = text, .size = size};
    places p = {.node_of = node_of, .host_of = host_of};
    tsr_status status = TSR_OK;
    int *members = NULL;

    text[0] = '\0';
    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*p.place_of), &p.place_of));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)ranks, sizeof(*members), &members), free_places);
    for (int rank = 0; rank < ranks; rank++) {
        p.place_of[rank] = members[node_of[rank]]++; /* a count for each host, so far */
    }
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh) && status == TSR_OK; axis++) {
        if (tsr_mesh_axis_size(mesh, axis) > 1) {
            status = put_axis(&w, &p, mesh, axis, members);
        }
    }
    tsri_free(&members);
free_places:
    tsri_free(&p.place_of);
    return status;
}
