/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A machine as a drawing: packages hold NUMA nodes, those hold cores, NICs above GPUs, grouped by
 * PCI switch; links hang below as arcs, or end in a bar that stands for the switches. Colour says
 * which island a GPU, and a core, belongs to. Two passes of one layout: the first measures. */
#include "base/base.h"

#include <string.h>

#include "topo/draw.h"

enum {
    GPU_W = 92,
    GPU_H = 58,
    NIC_H = 26,
    GAP = 10,
    PAD = 12,
    HEAD = 24,
    CORE = 11,
    CORES_A_ROW = 24,
    NOTE_COLUMNS = 118,
    NOTE_H = 17
};

static const char *const fills[] = {"#cfe3f7", "#fbdcc0", "#d3ecd0", "#f6cfd6",
                                    "#e0d5f0", "#f5ecb8", "#c9ece9", "#e3d9cd"};
static const char *const strokes[] = {"#2b6ca3", "#b8631b", "#3a7d34", "#a8324b",
                                      "#6a4c9c", "#8a7a12", "#1f7a74", "#72563a"};

typedef struct picture {
    const tsri_topo *t;
    const tsri_topo_mapping *mapping;
    FILE *to;   /* NULL: only measure */
    int *gpu_x; /* [gpu_count] centre of each; and its lower edge */
    int *gpu_y;
    int width, height; /* of what was drawn */
} picture;

static int colour_of(int island)
{
    return island % (int)(sizeof(fills) / sizeof(fills[0]));
}

static void text(const picture *p, int x, int y, int size, const char *anchor, const char *words)
{
    if (p->to == NULL) {
        return;
    }
    (void)fprintf(p->to, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size,
                  anchor);
    for (const char *c = words; *c != '\0'; c++) {
        switch (*c) {
        case '&':
            (void)fputs("&amp;", p->to);
            break;
        case '<':
            (void)fputs("&lt;", p->to);
            break;
        case '>':
            (void)fputs("&gt;", p->to);
            break;
        default:
            (void)fputc(*c, p->to);
        }
    }
    (void)fputs("</text>\n", p->to);
}

static void box(const picture *p, int x, int y, int w, int h, const char *fill, const char *stroke,
                const char *more)
{
    if (p->to != NULL) {
        (void)fprintf(p->to,
                      "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\" fill=\"%s\" "
                      "stroke=\"%s\" %s/>\n",
                      x, y, w, h, fill, stroke, more);
    }
}

static int place_of_gpu(const tsri_topo_mapping *mapping, int gpu)
{
    for (int i = 0; i < mapping->place_count; i++) {
        if (mapping->places[i].gpu == gpu) {
            return i;
        }
    }
    return -1;
}

static int place_of_core(const tsri_topo_mapping *mapping, int core)
{
    for (int i = 0; i < mapping->place_count; i++) {
        for (int k = 0; k < mapping->places[i].core_count; k++) {
            if (mapping->cores[mapping->places[i].core_first + k] == core) {
                return i;
            }
        }
    }
    return -1;
}

/* ---- devices of a NUMA node ---- */

typedef struct seat {
    int numa, package;
} seat;

static bool sits(const tsri_topo_device *d, seat s)
{
    return d->numa == s.numa && (s.numa >= 0 || d->package == s.package);
}

static void draw_gpu(picture *p, int gpu, int x, int y)
{
    const tsri_topo_gpu *g = &p->t->gpus[gpu];
    const int place = place_of_gpu(p->mapping, gpu);
    const int colour = place >= 0 ? colour_of(p->mapping->places[place].island) : 0;
    char words[64];

    box(p, x, y, GPU_W, GPU_H, place >= 0 ? fills[colour] : "#f4f4f4",
        place >= 0 ? strokes[colour] : "#999",
        g->visible ? "stroke-width=\"1.5\"" : "stroke-dasharray=\"4 3\"");
    (void)snprintf(words, sizeof(words), "GPU %d", gpu);
    text(p, x + GPU_W / 2, y + 17, 13, "middle", words);
    if (place >= 0 && g->device >= 0 && g->device != gpu) {
        (void)snprintf(words, sizeof(words), "rank %d, device %d", place, g->device);
    } else if (place >= 0) {
        (void)snprintf(words, sizeof(words), "rank %d", place);
    } else {
        (void)snprintf(words, sizeof(words), "%s",
                       g->visible                           ? "not used"
                       : g->vendor == tsri_topo_maker(p->t) ? "hidden"
                                                            : "another maker");
    }
    text(p, x + GPU_W / 2, y + 34, 11, "middle", words);
    text(p, x + GPU_W / 2, y + 50, 9, "middle", g->at.busid);
    p->gpu_x[gpu] = x + GPU_W / 2;
    p->gpu_y[gpu] = y + GPU_H;
}

static void draw_nic(const picture *p, int nic, int x, int y)
{
    const tsri_topo_device *d = &p->t->nics[nic].at;
    bool used = false;
    char words[20];

    for (int i = 0; i < p->mapping->place_count; i++) {
        const tsri_topo_place *place = &p->mapping->places[i];

        for (int k = 0; k < place->nic_count; k++) {
            used = used || p->mapping->nics[place->nic_first + k] == nic;
        }
    }
    box(p, x, y, GPU_W, NIC_H, used ? "#ffffff" : "#f4f4f4", used ? "#444" : "#bbb", "");
    (void)snprintf(words, sizeof(words), "%.15s", d->name[0] != '\0' ? d->name : d->busid);
    text(p, x + GPU_W / 2, y + 17, 10, "middle", words);
}

/* The devices that share a switch with device first of its seat, or that one alone: GPUs in a row,
 * NICs in a row above. Returns the width. */
static int draw_group(picture *p, seat s, const tsri_topo_device *first, bool *gpu_done,
                      bool *nic_done, int x, int y)
{
    int gpus = 0;
    int nics = 0;
    const bool framed = first->path.count > 1;

    for (int i = 0; i < p->t->nic_count; i++) {
        const tsri_topo_device *d = &p->t->nics[i].at;

        if (!nic_done[i] && sits(d, s) &&
            (d == first || (framed && tsri_topo_near(d, first) >= TSRI_TOPO_SAME_SWITCH))) {
            draw_nic(p, i, x + PAD / 2 + nics * (GPU_W + GAP), y + PAD / 2);
            nic_done[i] = true;
            nics++;
        }
    }
    for (int i = 0; i < p->t->gpu_count; i++) {
        const tsri_topo_device *d = &p->t->gpus[i].at;

        if (!gpu_done[i] && sits(d, s) &&
            (d == first || (framed && tsri_topo_near(d, first) >= TSRI_TOPO_SAME_SWITCH))) {
            draw_gpu(p, i, x + PAD / 2 + gpus * (GPU_W + GAP), y + PAD / 2 + NIC_H + GAP);
            gpu_done[i] = true;
            gpus++;
        }
    }
    const int columns = gpus > nics ? gpus : nics;
    const int width = columns * (GPU_W + GAP) - GAP + PAD;

    if (gpus + nics > 1) {
        box(p, x, y, width, NIC_H + GPU_H + GAP + PAD, "none", "#999", "stroke-dasharray=\"2 2\"");
    }
    return width;
}

static int draw_devices(picture *p, seat s, bool *gpu_done, bool *nic_done, int x, int y)
{
    const int from = x;

    for (int i = 0; i < p->t->gpu_count; i++) {
        if (!gpu_done[i] && sits(&p->t->gpus[i].at, s)) {
            x += draw_group(p, s, &p->t->gpus[i].at, gpu_done, nic_done, x, y) + GAP;
        }
    }
    for (int i = 0; i < p->t->nic_count; i++) {
        if (!nic_done[i] && sits(&p->t->nics[i].at, s)) {
            x += draw_group(p, s, &p->t->nics[i].at, gpu_done, nic_done, x, y) + GAP;
        }
    }
    return x > from ? x - from - GAP : 0;
}

static int draw_cores(const picture *p, int numa, int x, int y)
{
    int count = 0;

    for (int i = 0; i < p->t->core_count; i++) {
        const int place = p->t->cores[i].numa == numa ? place_of_core(p->mapping, i) : -1;
        /* Without GPUs ranks are told apart, since there is but one island. */
        const int group = place < 0                            ? 0
                          : p->mapping->places[place].gpu >= 0 ? p->mapping->places[place].island
                                                               : place;

        if (p->t->cores[i].numa != numa) {
            continue;
        }
        box(p, x + count % CORES_A_ROW * CORE, y + count / CORES_A_ROW * CORE, CORE - 3, CORE - 3,
            place >= 0 ? fills[colour_of(group)] : "#f4f4f4",
            place >= 0 ? strokes[colour_of(group)] : "#bbb", "stroke-width=\"0.7\"");
        count++;
    }
    return (count + CORES_A_ROW - 1) / CORES_A_ROW * CORE;
}

/* ---- boxes within boxes ---- */

static int draw_numa(picture *p, int numa, seat s, bool *gpu_done, bool *nic_done, int x, int y)
{
    const int cores = draw_cores(p, numa, x + PAD, y + HEAD);
    const int width = draw_devices(p, s, gpu_done, nic_done, x + PAD, y + HEAD + cores + GAP);
    const int least = CORES_A_ROW * CORE;
    const bool devices = width > 0;
    const int inner = width > least ? width : least;
    const int height = HEAD + cores + GAP + (devices ? NIC_H + GPU_H + GAP + PAD : 0) + PAD;
    char words[96] = "NUMA node unknown";
    char bytes[32] = "";

    if (numa >= 0) {
        const tsri_topo_numa *n = &p->t->numas[numa];

        (void)snprintf(words, sizeof(words), "NUMA node %d: %d cores%s%s", n->os_index,
                       n->core_count, n->memory_bytes > 0 ? ", " : "",
                       n->memory_bytes > 0
                           ? tsri_format_bytes((double)n->memory_bytes, bytes, sizeof(bytes))
                           : "");
    }
    box(p, x, y, inner + 2 * PAD, height, "none", "#777", "");
    text(p, x + PAD, y + 16, 11, "start", words);
    p->height = y + height > p->height ? y + height : p->height;
    return inner + 2 * PAD;
}

static bool has_devices(const tsri_topo *t, seat s)
{
    for (int i = 0; i < t->gpu_count; i++) {
        if (sits(&t->gpus[i].at, s)) {
            return true;
        }
    }
    for (int i = 0; i < t->nic_count; i++) {
        if (sits(&t->nics[i].at, s)) {
            return true;
        }
    }
    return false;
}

/* Everything of package (-1: of none). Returns the width; 0: there is nothing. */
static int draw_package(picture *p, int package, bool *gpu_done, bool *nic_done, int x, int y)
{
    const seat beside = {-1, package};
    const int head = package >= 0 ? HEAD : 0;
    int at = x + PAD;
    char words[32];

    for (int i = 0; i < p->t->numa_count; i++) {
        if (p->t->numas[i].package == package) {
            at += draw_numa(p, i, (seat){i, package}, gpu_done, nic_done, at, y + head) + GAP;
        }
    }
    if (has_devices(p->t, beside)) {
        at += draw_numa(p, -1, beside, gpu_done, nic_done, at, y + head) + GAP;
    }
    if (at == x + PAD) {
        return 0;
    }
    if (package >= 0) {
        box(p, x, y, at - GAP + PAD - x, p->height + PAD - y, "none", "#333",
            "stroke-width=\"1.5\"");
        (void)snprintf(words, sizeof(words), "package %d", package);
        text(p, x + PAD, y + 17, 13, "start", words);
    }
    return at - GAP + PAD - x;
}

static tsr_status draw_packages(picture *p, int y)
{
    const size_t gpus = (size_t)p->t->gpu_count;
    const size_t nics = (size_t)p->t->nic_count;
    bool *done = NULL;
    int x = PAD;

    TSR_TRY(tsri_alloc(gpus + nics, sizeof(bool), &done));
    p->height = y + HEAD;
    for (int i = -1; i < p->t->package_count; i++) {
        const int width = draw_package(p, i, done, done + gpus, x, y);

        x += width > 0 ? width + GAP : 0;
    }
    p->width = x - GAP + PAD;
    p->height += PAD;
    tsri_free(&done);
    return TSR_OK;
}

/* ---- links ---- */

static void draw_switch(picture *p)
{
    const int y = p->height + 34;
    char words[160];
    double most = 0.0;

    for (int i = 0; i < p->t->gpu_count; i++) {
        const int place = place_of_gpu(p->mapping, i);
        double link = 0.0;

        for (int k = 0; k < p->t->gpu_count; k++) {
            link = tsri_topo_link(p->t, i, k) > link ? tsri_topo_link(p->t, i, k) : link;
        }
        most = link > most ? link : most;
        if (link > 0.0 && p->to != NULL) {
            (void)fprintf(p->to,
                          "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" "
                          "stroke-width=\"2\"/>\n",
                          p->gpu_x[i], p->gpu_y[i], p->gpu_x[i], y,
                          place >= 0 ? strokes[colour_of(p->mapping->places[place].island)]
                                     : "#999");
        }
    }
    (void)snprintf(words, sizeof(words), "%s switches: %g GB/s for each pair", p->t->link_kind,
                   most);
    box(p, 2 * PAD, y, p->width - 4 * PAD, 26, "#eeeeee", "#555", "");
    text(p, p->width / 2, y + 17, 12, "middle", words);
    p->height = y + 26;
}

static void draw_arcs(picture *p)
{
    double most = 0.0;
    int lowest = p->height;

    for (int i = 0; i < p->t->gpu_count * p->t->gpu_count; i++) {
        most = p->t->links[i] > most ? p->t->links[i] : most;
    }
    for (int a = 0; a < p->t->gpu_count; a++) {
        for (int b = a + 1; b < p->t->gpu_count; b++) {
            const double link = tsri_topo_link(p->t, a, b);
            const int span =
                p->gpu_x[b] > p->gpu_x[a] ? p->gpu_x[b] - p->gpu_x[a] : p->gpu_x[a] - p->gpu_x[b];
            const int place = place_of_gpu(p->mapping, a);
            const int y = p->height + 10 + span / 6; /* where the control points are */

            if (link <= 0.0) {
                continue;
            }
            /* A cubic reaches three quarters of the way to its control points. */
            lowest = y - (y - p->gpu_y[a]) / 4 > lowest ? y - (y - p->gpu_y[a]) / 4 : lowest;
            if (p->to != NULL) {
                (void)fprintf(
                    p->to,
                    "<path d=\"M%d %d C%d %d %d %d %d %d\" fill=\"none\" stroke=\"%s\" "
                    "stroke-width=\"%.1f\"><title>GPU %d - GPU %d: %g GB/s</title></path>\n",
                    p->gpu_x[a], p->gpu_y[a], p->gpu_x[a], y, p->gpu_x[b], y, p->gpu_x[b],
                    p->gpu_y[b],
                    place >= 0 ? strokes[colour_of(p->mapping->places[place].island)] : "#999",
                    1.0 + 2.0 * link / most, a, b, link);
            }
        }
    }
    p->height = lowest;
}

/* ---- words below ---- */

/* One paragraph, wrapped; returns the lines. */
static int paragraph(const picture *p, const char *words, int x, int y)
{
    char part[NOTE_COLUMNS + 1];
    int lines = 0;

    while (*words != '\0') {
        size_t length = strlen(words);

        if (length > NOTE_COLUMNS) {
            length = NOTE_COLUMNS;
            while (length > 1 && words[length] != ' ') {
                length--;
            }
        }
        (void)snprintf(part, sizeof(part), "%.*s", (int)length, words);
        text(p, x, y + lines * NOTE_H, 12, "start", part);
        lines++;
        words += length;
        words += strspn(words, " ");
    }
    return lines;
}

static void draw_notes(picture *p, const tsri_topo_mesh *mesh)
{
    int y = p->height + 34;
    char words[512];

    for (int i = 0; i < p->mapping->notes.count; i++) {
        const tsri_topo_note *n = &p->mapping->notes.at[i];

        if (n->warning) {
            text(p, PAD, y, 12, "start", "!");
        }
        text(p, PAD * 2, y, 12, "start", n->subject);
        y += NOTE_H * paragraph(p, n->text, PAD * 2 + 70, y);
    }
    for (int i = 0; mesh != NULL && i < mesh->axis_count; i++) {
        const tsri_topo_axis *a = &mesh->axes[i];
        char ranks[40];
        char speed[24] = "";

        if (a->gb_s > 0.0) {
            (void)snprintf(speed, sizeof(speed), ", %.4g GB/s", a->gb_s);
        }
        (void)snprintf(words, sizeof(words), "%s=%d: %d group%s such as ranks %s, over %s%s; %s",
                       a->name, a->size, a->group_count, a->group_count == 1 ? "" : "s",
                       tsri_topo_ranges(a->ranks, a->size, ranks, sizeof(ranks)), a->over, speed,
                       a->reason);
        text(p, PAD * 2, y, 12, "start", "axis");
        y += NOTE_H * paragraph(p, words, PAD * 2 + 70, y);
    }
    p->height = y;
    p->width = p->width < 860 ? 860 : p->width;
}

static tsr_status draw_mesh(picture *p, const tsri_topo_mesh *mesh)
{
    char shape[256];
    char title[360];

    (void)snprintf(title, sizeof(title), "%s%s%s", p->t->host, p->t->host[0] != '\0' ? ": " : "",
                   tsri_topo_shape(p->t, shape, sizeof(shape)));
    text(p, PAD * 2, 26, 14, "start", title);
    TSR_TRY(draw_packages(p, 40));
    if (p->t->links != NULL && p->t->link_switched) {
        draw_switch(p);
    } else if (p->t->links != NULL) {
        draw_arcs(p);
    }
    draw_notes(p, mesh);
    return TSR_OK;
}

tsr_status tsri_topo_draw_svg(const tsri_topo *topo, const tsri_topo_mapping *mapping,
                              const tsri_topo_mesh *mesh, FILE *to)
{
    picture p = {.t = topo, .mapping = mapping};
    const size_t gpus = (size_t)topo->gpu_count;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(gpus, sizeof(int), &p.gpu_x));
    TSR_TRY_GOTO(status, tsri_alloc(gpus, sizeof(int), &p.gpu_y), out);
    TSR_TRY_GOTO(status, draw_mesh(&p, mesh), out);
    (void)fprintf(to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" font-family=\"DejaVu Sans, Helvetica, sans-serif\" "
                  "fill=\"#222\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  p.width, p.height + PAD, p.width, p.height + PAD);
    p.to = to;
    TSR_TRY_GOTO(status, draw_mesh(&p, mesh), out);
    (void)fprintf(to, "</svg>\n");
out:
    tsri_free(&p.gpu_x);
    tsri_free(&p.gpu_y);
    return status;
}
