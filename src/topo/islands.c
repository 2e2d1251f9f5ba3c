/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Islands: connected components of the GPUs under "these two belong together". */
#include "mapping_priv.h"

#include "base/base.h"

#include <string.h>

typedef struct graph {
    const tsri_topo *topo;
    double least; /* GB/s of a link that joins */
    tsri_topo_rule rule;
} graph;

static double largest_link(const tsri_topo *t)
{
    double most = 0.0;

    for (int a = 0; a < t->gpu_count; a++) {
        for (int b = 0; b < a; b++) {
            const bool seen = t->gpus[a].visible && t->gpus[b].visible;

            most = seen && tsri_topo_link(t, a, b) > most ? tsri_topo_link(t, a, b) : most;
        }
    }
    return most;
}

static bool together(const graph *g, int a, int b)
{
    const tsri_topo_device *x = &g->topo->gpus[a].at;
    const tsri_topo_device *y = &g->topo->gpus[b].at;

    if (g->rule == TSRI_TOPO_RULE_LINKS) {
        return tsri_topo_link(g->topo, a, b) > g->least;
    }
    if (g->rule == TSRI_TOPO_RULE_SWITCH) {
        return tsri_topo_near(x, y) >= TSRI_TOPO_SAME_SWITCH;
    }
    if (g->rule == TSRI_TOPO_RULE_NUMA && (x->numa >= 0 || y->numa >= 0)) {
        return x->numa == y->numa;
    }
    return g->rule == TSRI_TOPO_RULE_NODE || x->package == y->package;
}

/* Give first, and all that hang together with it, to island which. */
static void flood(const graph *g, int first, int which, int *island)
{
    const tsri_topo *t = g->topo;
    int stack[TSRI_TOPO_MAX_GPUS] = {first};
    int used = 1;

    island[first] = which;
    while (used > 0) {
        const int a = stack[--used];

        for (int b = 0; b < t->gpu_count; b++) {
            if (t->gpus[b].visible && island[b] < 0 && together(g, a, b)) {
                island[b] = which;
                stack[used++] = b;
            }
        }
    }
}

/* Components, numbered in PCI order; returns how many. */
static int components(const graph *g, int *island)
{
    const tsri_topo *t = g->topo;
    int count = 0;

    for (int i = 0; i < t->gpu_count; i++) {
        island[i] = -1;
    }
    for (int i = 0; i < t->gpu_count; i++) {
        if (t->gpus[i].visible && island[i] < 0) {
            flood(g, i, count++, island);
        }
    }
    return count;
}

/* Does the record know anything by which the rule could tell GPUs apart or join them? */
static bool knows(const tsri_topo *t, tsri_topo_rule rule)
{
    bool numa = false;
    bool package = false;
    bool bridges = false;

    for (int i = 0; i < t->gpu_count; i++) {
        numa = numa || (t->gpus[i].visible && t->gpus[i].at.numa >= 0);
        package = package || (t->gpus[i].visible && t->gpus[i].at.package >= 0);
        bridges = bridges || t->gpus[i].at.path.count > 0;
    }
    return rule == TSRI_TOPO_RULE_LINKS     ? largest_link(t) > 0.0
           : rule == TSRI_TOPO_RULE_SWITCH  ? bridges
           : rule == TSRI_TOPO_RULE_NUMA    ? numa
           : rule == TSRI_TOPO_RULE_PACKAGE ? package
                                            : true;
}

/* Some pairs inside islands, and their links. */
typedef struct pairs {
    int count;
    int first[2];
    double least, most;
} pairs;

static void add_pair(pairs *p, int a, int b, double link)
{
    if (p->count++ == 0) {
        *p = (pairs){.count = 1, .first = {a, b}, .least = link, .most = link};
    }
    p->least = link < p->least ? link : p->least;
    p->most = link > p->most ? link : p->most;
}

static const char *range_of(const pairs *p, char *text, size_t size)
{
    (void)snprintf(text, size, p->least < p->most ? "%g to %g" : "%g", p->least, p->most);
    return text;
}

/* Those with a link that joins, with one that is too small for that, and with none. */
static void look_at_pairs(const graph *g, const int *island, pairs *joined, pairs *weak,
                          pairs *without)
{
    const tsri_topo *t = g->topo;

    for (int a = 0; a < t->gpu_count; a++) {
        for (int b = a + 1; b < t->gpu_count; b++) {
            const double link = tsri_topo_link(t, a, b);

            if (island[a] >= 0 && island[a] == island[b]) {
                add_pair(link > g->least ? joined : link > 0.0 ? weak : without, a, b, link);
            }
        }
    }
}

static tsr_status note_links(const graph *g, const int *island, tsri_topo_mapping *mapping)
{
    const tsri_topo *t = g->topo;
    pairs joined = {0};
    pairs weak = {0};
    pairs without = {0};
    char range[64];

    look_at_pairs(g, island, &joined, &weak, &without);
    const int count = joined.count + weak.count + without.count;

    TSR_TRY(tsri_topo_note_add(
        &mapping->notes, false, "islands",
        "%d, the connected parts of the %s graph%s, at %s GB/s a pair (links above %.0f %% of the "
        "largest count)",
        mapping->island_count, t->link_kind, t->link_switched ? ", through switches" : "",
        range_of(&joined, range, sizeof(range)), 100.0 * TSRI_TOPO_LINK_SHARE));
    if (weak.count > 0) {
        TSR_TRY(tsri_topo_note_add(
            &mapping->notes, false, "islands",
            "%d of %d pairs in islands have a link that is too small to count, of %s GB/s (first: "
            "GPU %d and %d)",
            weak.count, count, range_of(&weak, range, sizeof(range)), weak.first[0],
            weak.first[1]));
    }
    if (without.count > 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "islands",
                                   "%d of %d pairs in islands have no direct %s (first: GPU %d and "
                                   "%d); their traffic goes by other GPUs or PCI",
                                   without.count, count, t->link_kind, without.first[0],
                                   without.first[1]));
    }
    return TSR_OK;
}

static tsr_status note_alone(const tsri_topo *t, const int *island, tsri_topo_mapping *mapping)
{
    char text[256];
    int alone[TSRI_TOPO_MAX_GPUS];
    int count = 0;

    for (int i = 0; i < mapping->island_count; i++) {
        int size = 0;
        int last = -1;

        for (int k = 0; k < t->gpu_count; k++) {
            size += island[k] == i;
            last = island[k] == i ? k : last;
        }
        if (size == 1) {
            alone[count++] = last;
        }
    }
    if (count > 0 && mapping->island_count > 1) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "islands",
                                   "GPU %s: no partner; an island alone allows no tp above 1",
                                   tsri_topo_ranges(alone, count, text, sizeof(text))));
    }
    return TSR_OK;
}

/* Why this rule, and not one that stands before it. */
static tsr_status note_rule(const graph *g, tsri_topo_rule asked, tsri_topo_mapping *mapping)
{
    static const char *const joined[] = {
        [TSRI_TOPO_RULE_SWITCH] = "GPUs behind one PCI switch are together",
        [TSRI_TOPO_RULE_NUMA] = "GPUs of one NUMA node are together",
        [TSRI_TOPO_RULE_PACKAGE] = "GPUs of one package are together",
        [TSRI_TOPO_RULE_NODE] = "all GPUs of the machine are together"};
    const bool links = g->topo->links != NULL;
    const bool places = g->rule == TSRI_TOPO_RULE_NUMA || g->rule == TSRI_TOPO_RULE_PACKAGE;
    bool no_numa = false;
    bool no_package = false;

    for (int i = 0; i < g->topo->gpu_count; i++) {
        const tsri_topo_gpu *gpu = &g->topo->gpus[i];

        no_numa = no_numa || (gpu->visible && gpu->at.numa < 0);
        no_package = no_package || (gpu->visible && gpu->at.numa < 0 && gpu->at.package < 0);
    }
    TSR_TRY(tsri_topo_note_add(
        &mapping->notes, false, "islands", "%d: %s%s", mapping->island_count, joined[g->rule],
        asked != TSRI_TOPO_RULE_AUTO ? " (asked for)"
        : links                      ? "; the record has no link that joins two of them"
                : "; the record says nothing of links between GPUs (--islands chooses otherwise)"));
    if (places && no_package) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "islands",
                                   "GPUs whose package is unknown are taken for one group"));
    } else if (g->rule == TSRI_TOPO_RULE_NUMA && no_numa) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "islands",
                                   "GPUs whose NUMA node is unknown are grouped by package"));
    }
    if (g->rule == TSRI_TOPO_RULE_NODE && asked == TSRI_TOPO_RULE_AUTO &&
        mapping->island_count > 0 && tsri_topo_visible(g->topo) > 1) {
        TSR_TRY(
            tsri_topo_note_add(&mapping->notes, true, "islands",
                               "neither links, PCI switches, NUMA nodes nor packages tell which "
                               "GPUs are near: traffic of the last axes may be slow"));
    }
    return TSR_OK;
}

tsr_status tsri_topo_find_islands(const tsri_topo *topo, tsri_topo_rule asked, int *island,
                                  tsri_topo_mapping *mapping)
{
    graph g = {.topo = topo, .least = TSRI_TOPO_LINK_SHARE * largest_link(topo), .rule = asked};
    const int visible = tsri_topo_visible(topo);

    if (!knows(topo, asked)) {
        return TSR_RAISE(
            TSR_ERR_INVALID,
            "islands by %s: the record knows no %s; wants auto, or node for one island",
            tsri_topo_rule_name(asked),
            asked == TSRI_TOPO_RULE_LINKS    ? "links between GPUs"
            : asked == TSRI_TOPO_RULE_SWITCH ? "PCI bridges"
            : asked == TSRI_TOPO_RULE_NUMA   ? "NUMA nodes of GPUs"
                                             : "packages of GPUs");
    }
    if (asked == TSRI_TOPO_RULE_AUTO) {
        g.rule = TSRI_TOPO_RULE_LINKS;
        while (g.rule < TSRI_TOPO_RULE_NODE &&
               (!knows(topo, g.rule) || components(&g, island) == visible)) {
            g.rule = (tsri_topo_rule)(g.rule + 1);
        }
    }
    mapping->rule = g.rule;
    mapping->island_count = components(&g, island);
    if (g.rule == TSRI_TOPO_RULE_LINKS) {
        TSR_TRY(note_links(&g, island, mapping));
    } else {
        TSR_TRY(note_rule(&g, asked, mapping));
    }
    TSR_TRY(note_alone(topo, island, mapping));
    return TSR_OK;
}
