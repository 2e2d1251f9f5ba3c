/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A machine and its groups as text of 100 columns. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include "topo/draw.h"

enum {
    COLUMNS = 100,
    LINE_BYTES = 200,
    LIST_BYTES = 2048,
    MATRIX_MAX = 16,   /* GPUs whose links fit a line each */
    RANK_COLUMNS = 34, /* of a rank's line before its threads */
    THREADS_MAX = 32,  /* longer lists have a line of their own */
    GROUP_LEAST = 17,  /* columns of an axis's first group */
    GROUP_MAX = 32
};

/* ---- words ---- */

/* text from column indent on, wrapped; the first line has begun at column. */
static void wrap(const char *text, int column, int indent, FILE *to)
{
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");

        if (column > indent && column + 1 + length > COLUMNS) {
            (void)fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            (void)fputc(' ', to);
            column++;
        }
        (void)fprintf(to, "%.*s", length, text);
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    (void)fputc('\n', to);
}

/* ---- a tree of lines ---- */

typedef struct line {
    int depth;
    char text[LINE_BYTES];
} line;

typedef struct tree {
    line *lines;
    int count, capacity;
} tree;

static tsr_status add_line(tree *t, int depth, const char *text)
{
    TSR_TRY(tsri_grow(&t->lines, &t->capacity, t->count + 1, sizeof(line)));
    t->lines[t->count].depth = depth;
    (void)snprintf(t->lines[t->count].text, LINE_BYTES, "%s", text);
    t->count++;
    return TSR_OK;
}

/* Does another line of this depth follow under the same parent? */
static bool goes_on(const tree *t, int at, int depth)
{
    for (int i = at + 1; i < t->count && t->lines[i].depth >= depth; i++) {
        if (t->lines[i].depth == depth) {
            return true;
        }
    }
    return false;
}

static void print_tree(const tree *t, FILE *to)
{
    for (int i = 0; i < t->count; i++) {
        const int depth = t->lines[i].depth;

        for (int d = 1; d < depth; d++) {
            (void)fputs(goes_on(t, i, d) ? "│  " : "   ", to);
        }
        if (depth > 0) {
            (void)fputs(goes_on(t, i, depth) ? "├─ " : "└─ ", to);
        }
        (void)fprintf(to, "%s\n", t->lines[i].text);
    }
}

/* ---- devices ---- */

/* Devices below one node of the tree: GPUs, then NICs. */
typedef struct seat {
    int numa, package;
} seat;

static bool sits(const tsri_topo_device *d, seat s)
{
    return d->numa == s.numa && (s.numa >= 0 || d->package == s.package);
}

static const tsri_topo_device *device_at(const tsri_topo *t, int i)
{
    return i < t->gpu_count ? &t->gpus[i].at : &t->nics[i - t->gpu_count].at;
}

/* The bridge below the host bridge, if devices share it: a switch. Else -1. */
static int switch_of(const tsri_topo *t, int i)
{
    const tsri_topo_device *d = device_at(t, i);

    for (int k = 0; k < t->gpu_count + t->nic_count && d->path.count > 1; k++) {
        if (k != i && tsri_topo_near(d, device_at(t, k)) >= TSRI_TOPO_SAME_SWITCH) {
            return d->path.bridge[1];
        }
    }
    return -1;
}

static void describe_place(const tsri_topo *t, const tsri_topo_mapping *mapping, int i, char *text)
{
    const tsri_topo_device *d = device_at(t, i);
    char extra[64] = "";
    char bytes[32];
    size_t used = 0;

    if (i >= t->gpu_count) {
        (void)snprintf(text, LINE_BYTES, "NIC %-12s %s", d->name, d->busid);
        return;
    }
    const tsri_topo_gpu *g = &t->gpus[i];

    if (g->memory_bytes > 0) {
        used += (size_t)snprintf(extra + used, sizeof(extra) - used, "  %s",
                                 tsri_format_bytes((double)g->memory_bytes, bytes, sizeof(bytes)));
    }
    if (g->device >= 0) {
        used += (size_t)snprintf(extra + used, sizeof(extra) - used, "  device %d", g->device);
    }
    for (int r = 0; r < mapping->place_count; r++) {
        if (mapping->places[r].gpu == i) {
            used += (size_t)snprintf(extra + used, sizeof(extra) - used, "  rank %d", r);
        }
    }
    if (!g->visible) {
        (void)snprintf(extra + used, sizeof(extra) - used, "  %s",
                       g->vendor == tsri_topo_maker(t) ? "hidden" : "another maker");
    }
    (void)snprintf(text, LINE_BYTES, "GPU %-2d %s%s%.42s%s", i, d->busid,
                   d->busid[0] != '\0' && d->name[0] != '\0' ? "  " : "", d->name, extra);
}

/* Device i and, behind a switch, all of the seat that are behind it too. */
static tsr_status add_group(const tsri_topo *t, const tsri_topo_mapping *mapping, seat s, int depth,
                            int i, bool *done, tree *out)
{
    const int bridge = switch_of(t, i);
    const int end = bridge >= 0 ? t->gpu_count + t->nic_count : i + 1;
    char text[LINE_BYTES];

    if (bridge >= 0) {
        (void)snprintf(text, sizeof(text), "PCI switch %s", t->bridges[bridge].busid);
        TSR_TRY(add_line(out, depth++, text));
    }
    for (int k = i; k < end; k++) {
        if (k == i || (sits(device_at(t, k), s) && switch_of(t, k) == bridge)) {
            describe_place(t, mapping, k, text);
            TSR_TRY(add_line(out, depth, text));
            done[k] = true;
        }
    }
    return TSR_OK;
}

static tsr_status add_devices(const tsri_topo *t, const tsri_topo_mapping *mapping, seat s,
                              int depth, tree *out)
{
    const int count = t->gpu_count + t->nic_count;
    bool *done = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(bool), &done));
    for (int i = 0; i < count; i++) {
        if (!done[i] && sits(device_at(t, i), s)) {
            TSR_TRY_GOTO(status, add_group(t, mapping, s, depth, i, done, out), free_done);
        }
    }
free_done:
    tsri_free(&done);
    return status;
}

static tsr_status add_numa(const tsri_topo *t, const tsri_topo_mapping *mapping, int numa,
                           int depth, tree *out)
{
    const tsri_topo_numa *n = &t->numas[numa];
    char text[LINE_BYTES];
    char bytes[32];

    (void)snprintf(text, sizeof(text), "NUMA node %d: %d core%s%s%s", n->os_index, n->core_count,
                   n->core_count == 1 ? "" : "s", n->memory_bytes > 0 ? ", " : "",
                   n->memory_bytes > 0
                       ? tsri_format_bytes((double)n->memory_bytes, bytes, sizeof(bytes))
                       : "");
    TSR_TRY(add_line(out, depth, text));
    TSR_TRY(add_devices(t, mapping, (seat){numa, n->package}, depth + 1, out));
    return TSR_OK;
}

static tsr_status add_package(const tsri_topo *t, const tsri_topo_mapping *mapping, int package,
                              tree *out)
{
    const int depth = package >= 0 ? 2 : 1;
    char text[LINE_BYTES];

    if (package >= 0) {
        (void)snprintf(text, sizeof(text), "package %d", package);
        TSR_TRY(add_line(out, 1, text));
    }
    for (int n = 0; n < t->numa_count; n++) {
        if (t->numas[n].package == package) {
            TSR_TRY(add_numa(t, mapping, n, depth, out));
        }
    }
    TSR_TRY(add_devices(t, mapping, (seat){-1, package}, depth, out));
    return TSR_OK;
}

static tsr_status make_tree(const tsri_topo *t, const tsri_topo_mapping *mapping, tree *out)
{
    TSR_TRY(add_line(out, 0, t->host[0] != '\0' ? t->host : "machine"));
    for (int p = -1; p < t->package_count; p++) {
        TSR_TRY(add_package(t, mapping, p, out));
    }
    return TSR_OK;
}

/* ---- links ---- */

static void print_matrix(const tsri_topo *t, FILE *to)
{
    (void)fprintf(to, "       ");
    for (int i = 0; i < t->gpu_count; i++) {
        (void)fprintf(to, "%5d", i);
    }
    for (int i = 0; i < t->gpu_count; i++) {
        (void)fprintf(to, "\n  GPU %-2d", i);
        for (int k = 0; k < t->gpu_count; k++) {
            if (i == k) {
                (void)fprintf(to, "    -");
            } else {
                (void)fprintf(to, "%5.4g", tsri_topo_link(t, i, k));
            }
        }
    }
    (void)fprintf(to, "\n");
}

static void print_all_links(const tsri_topo *t, FILE *to)
{
    double least = 0.0;
    double most = 0.0;

    if (t->links == NULL || t->gpu_count < 2) {
        return;
    }
    for (int a = 0; a < t->gpu_count; a++) {
        for (int b = 0; b < a; b++) {
            const double link = tsri_topo_link(t, a, b);

            least = a == 1 || link < least ? link : least;
            most = link > most ? link : most;
        }
    }
    if (most <= 0.0) {
        (void)fprintf(to, "\nno %s between GPUs\n", t->link_kind);
        return;
    }
    (void)fprintf(to, "\n%s between GPUs, GB/s each way%s\n", t->link_kind,
                  t->link_switched ? ", through switches" : "");
    if (least >= most) {
        (void)fprintf(to, "  every pair: %g\n", least);
    } else if (t->gpu_count > MATRIX_MAX) {
        (void)fprintf(to, "  %g to %g\n", least, most);
    } else {
        print_matrix(t, to);
    }
}

/* ---- ranks ---- */

static int compare_ints(const void *a, const void *b)
{
    const int *x = a;
    const int *y = b;

    return (*x > *y) - (*x < *y);
}

const char *tsri_topo_threads_text(const tsri_topo *topo, const tsri_topo_mapping *mapping,
                                   int rank, char *text, size_t size)
{
    const tsri_topo_place *p = &mapping->places[rank];
    int *pus = NULL;
    int count = 0;

    (void)snprintf(text, size, "%s", p->core_count > 0 ? "?" : "not bound");
    if (p->core_count == 0 || tsri_alloc((size_t)topo->pu_count, sizeof(int), &pus) != TSR_OK) {
        return text;
    }
    for (int i = 0; i < p->core_count; i++) {
        const tsri_topo_core *c = &topo->cores[mapping->cores[p->core_first + i]];

        for (int k = 0; k < c->pu_count; k++) {
            pus[count++] = topo->pus[c->pu_first + k];
        }
    }
    qsort(pus, (size_t)count, sizeof(int), compare_ints);
    (void)tsri_topo_ranges(pus, count, text, size);
    tsri_free(&pus);
    return text;
}

static const char *number(int value, char *text, size_t size)
{
    (void)snprintf(text, size, value >= 0 ? "%d" : "-", value);
    return text;
}

/* "mlx5_0, mlx5_1, the same PCI switch" */
static const char *nics_text(const tsri_topo *t, const tsri_topo_mapping *mapping, int rank,
                             char *text, size_t size)
{
    const tsri_topo_place *p = &mapping->places[rank];
    size_t used = 0;

    (void)snprintf(text, size, "-");
    for (int i = 0; i < p->nic_count && used < size; i++) {
        const tsri_topo_device *nic = &t->nics[mapping->nics[p->nic_first + i]].at;

        used += (size_t)snprintf(text + used, size - used, "%s, ",
                                 nic->name[0] != '\0' ? nic->name : nic->busid);
    }
    if (p->nic_count > 0 && used < size) {
        (void)snprintf(text + used, size - used, "%s", tsri_topo_near_text(p->nic_near));
    }
    return text;
}

static void print_ranks(const tsri_topo *t, const tsri_topo_mapping *mapping, FILE *to)
{
    const char *const names[] = {"threads", "NIC"};
    char threads[LIST_BYTES];
    char nics[LIST_BYTES];
    int width = (int)strlen(names[0]);

    for (int r = 0; r < mapping->place_count; r++) {
        const int length =
            (int)strlen(tsri_topo_threads_text(t, mapping, r, threads, sizeof(threads)));

        width = length > width && length <= THREADS_MAX ? length : width;
    }
    (void)fprintf(to, "\nranks of a host\n  rank  island  GPU  device  NUMA  %-*s  %s\n", width,
                  names[0], names[1]);
    for (int r = 0; r < mapping->place_count; r++) {
        const tsri_topo_place *p = &mapping->places[r];
        const int indent = RANK_COLUMNS + width + 2;
        char text[3][16];

        (void)fprintf(
            to, "  %4d  %6d  %3s  %6s  %4s  %-*s  ", r, p->island,
            number(p->gpu, text[0], sizeof(text[0])),
            number(p->gpu >= 0 ? t->gpus[p->gpu].device : -1, text[1], sizeof(text[1])),
            number(p->numa >= 0 ? t->numas[p->numa].os_index : -1, text[2], sizeof(text[2])), width,
            tsri_topo_threads_text(t, mapping, r, threads, sizeof(threads)));
        if ((int)strlen(threads) > width) { /* the next column begins below */
            (void)fprintf(to, "\n%*s", indent, "");
        }
        wrap(nics_text(t, mapping, r, nics, sizeof(nics)), indent, indent, to);
    }
}

/* ---- reasons and axes ---- */

void tsri_topo_draw_notes(const tsri_topo_notes *notes, FILE *to)
{
    for (int i = 0; i < notes->count; i++) {
        const tsri_topo_note *n = &notes->at[i];

        (void)fprintf(to, "%s %-8s ", n->warning ? " !" : "  ", n->subject);
        wrap(n->text, 12, 12, to);
    }
}

void tsri_topo_draw_mesh(const tsri_topo_mesh *mesh, FILE *to)
{
    char ranks[LIST_BYTES];
    int width = GROUP_LEAST;

    for (int i = 0; i < mesh->axis_count; i++) {
        const tsri_topo_axis *a = &mesh->axes[i];
        const int length = (int)strlen(tsri_topo_ranges(a->ranks, a->size, ranks, sizeof(ranks)));

        width = length <= width ? width : length < GROUP_MAX ? length : GROUP_MAX;
    }
    (void)fprintf(to, "\nmesh");
    for (int i = 0; i < mesh->axis_count; i++) {
        (void)fprintf(to, "%s%s=%d", i > 0 ? "," : " ", mesh->axes[i].name, mesh->axes[i].size);
    }
    (void)fprintf(to, " on %d host%s of %d rank%s\n  axis             groups  %-*s    GB/s  over\n",
                  mesh->nodes, mesh->nodes == 1 ? "" : "s", mesh->local,
                  mesh->local == 1 ? "" : "s", width, "first group");
    for (int i = 0; i < mesh->axis_count; i++) {
        const tsri_topo_axis *a = &mesh->axes[i];
        char name[40];
        char speed[16] = "?";

        (void)snprintf(name, sizeof(name), "%s=%d", a->name, a->size);
        (void)tsri_topo_ranges(a->ranks, a->size, ranks, sizeof(ranks));
        if ((int)strlen(ranks) > GROUP_MAX) {
            (void)snprintf(ranks + GROUP_MAX - 3, 4, "...");
        }
        if (a->gb_s > 0.0) {
            (void)snprintf(speed, sizeof(speed), "%.4g", a->gb_s);
        }
        (void)fprintf(to, "  %-16s %6d  %-*s  %6s  %s\n", name, a->group_count, width, ranks, speed,
                      a->over);
        (void)fprintf(to, "      ");
        wrap(a->reason, 6, 6, to);
    }
}

tsr_status tsri_topo_draw_text(const tsri_topo *topo, const tsri_topo_mapping *mapping, FILE *to)
{
    tree t = {0};
    char shape[256];
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, make_tree(topo, mapping, &t), out);
    (void)fprintf(to, "%s\n(%s)\n\n", tsri_topo_shape(topo, shape, sizeof(shape)), topo->source);
    print_tree(&t, to);
    print_all_links(topo, to);
    print_ranks(topo, mapping, to);
    (void)fprintf(to, "\nwhy\n");
    tsri_topo_draw_notes(&mapping->notes, to);
out:
    tsri_free(&t.lines);
    return status;
}
