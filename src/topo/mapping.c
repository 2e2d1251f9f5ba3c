/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* From a machine to the places of its ranks. */
#include "mapping_priv.h"

#include "base/base.h"

#include <stdarg.h>
#include <string.h>

/* ---- notes ---- */

tsr_status tsri_topo_note_add(tsri_topo_notes *notes, bool warning, const char *subject,
                              const char *format, ...)
{
    tsri_topo_note note = {.warning = warning};
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)snprintf(note.subject, sizeof(note.subject), "%s", subject);
    TSR_TRY(tsri_grow(&notes->at, &notes->capacity, notes->count + 1, sizeof(note)));
    TSR_TRY(tsri_strdup(text, &note.text));
    notes->at[notes->count++] = note;
    return TSR_OK;
}

void tsri_topo_notes_free(tsri_topo_notes *notes)
{
    for (int i = 0; i < notes->count; i++) {
        tsri_free(&notes->at[i].text);
    }
    tsri_free(&notes->at);
    notes->count = 0;
}

/* ---- small texts and numbers ---- */

static const char *const rule_names[TSRI_TOPO_RULE_COUNT] = {"auto", "links",   "switch",
                                                             "numa", "package", "node"};

const char *tsri_topo_rule_name(tsri_topo_rule rule)
{
    return rule_names[rule];
}

tsr_status tsri_topo_rule_parse(const char *text, tsri_topo_rule *out)
{
    for (int i = 0; i < TSRI_TOPO_RULE_COUNT; i++) {
        if (strcmp(text, rule_names[i]) == 0) {
            *out = (tsri_topo_rule)i;
            return TSR_OK;
        }
    }
    const char *near = tsri_nearest(text, rule_names, TSRI_TOPO_RULE_COUNT);

    return TSR_RAISE(TSR_ERR_INVALID,
                     "islands \"%s\": wants auto, links, switch, numa, package or node%s%s", text,
                     near != NULL ? "; nearest: " : "", near != NULL ? near : "");
}

int tsri_topo_island_size(const tsri_topo_mapping *mapping, int island)
{
    int size = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        size += mapping->places[i].island == island;
    }
    return size;
}

static int common_divisor(int a, int b)
{
    while (b != 0) {
        const int rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

int tsri_topo_island_divisor(const tsri_topo_mapping *mapping)
{
    int divisor = 0;

    for (int i = 0; i < mapping->island_count; i++) {
        divisor = common_divisor(tsri_topo_island_size(mapping, i), divisor);
    }
    return divisor > 0 ? divisor : 1;
}

const char *tsri_topo_divisors(int number, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 1; i <= number && used < size; i++) {
        if (number % i == 0) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", used > 0 ? ", " : "", i);
        }
    }
    return text;
}

/* Behind the last of the values that are as far apart as those at first and behind it. */
static int run_end(const int *values, int count, int first)
{
    int end = first + 1;

    while (end < count && values[end] - values[end - 1] == values[first + 1] - values[first]) {
        end++;
    }
    return end;
}

const char *tsri_topo_ranges(const int *values, int count, char *text, size_t size)
{
    enum {
        STRIDED = 5 /* so many are shorter as a range, and not easier as a list */
    };
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count;) {
        char part[48];
        int end = run_end(values, count, i);
        const int step = end > i + 1 ? values[i + 1] - values[i] : 0;

        if (step == 1 || (step > 1 && end - i >= STRIDED)) {
            (void)snprintf(part, sizeof(part), step > 1 ? "%d-%d:%d" : "%d-%d", values[i],
                           values[end - 1], step);
        } else {
            (void)snprintf(part, sizeof(part), "%d", values[i]);
            end = i + 1;
        }
        if (used + strlen(part) + sizeof(",...") >= size) {
            (void)snprintf(text + used, size - used, used > 0 ? ",..." : "...");
            return text;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", part);
        i = end;
    }
    return text;
}

/* ---- the mapping ---- */

static tsr_status note_cpuset(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    if (topo->core_count < topo->core_total) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "cores",
                                   "%d of the machine's %d cores may be used (a control group or "
                                   "cpuset); shares are of those",
                                   topo->core_count, topo->core_total));
    }
    return TSR_OK;
}

static tsr_status note_order(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    int gpus[TSRI_TOPO_MAX_GPUS] = {0};
    char text[256];

    if (mapping->place_count == 0 || mapping->places[0].gpu < 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "order",
                                   "ranks stand on cores in the order of packages and NUMA nodes"));
        return TSR_OK;
    }
    for (int i = 0; i < mapping->place_count; i++) {
        gpus[i] = mapping->places[i].gpu;
    }
    TSR_TRY(tsri_topo_note_add(
        &mapping->notes, false, "order",
        "rank 0, 1, ... have GPU %s: island by island, in an island NUMA node by NUMA node, then "
        "along the %s",
        tsri_topo_ranges(gpus, mapping->place_count, text, sizeof(text)),
        topo->links != NULL ? "largest links" : "shortest PCI paths"));
    return TSR_OK;
}

static tsr_status note_memory(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    int bound = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        bound += mapping->places[i].numa >= 0;
    }
    if (mapping->core_count == 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "memory",
                                   "nobody is bound: memory comes from where it is touched first"));
    } else if (topo->numa_count < 2) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "memory",
                                   "one NUMA node: all memory is equally near"));
    } else if (bound == mapping->place_count) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "memory",
                                   "a rank's memory comes from its NUMA node while that has any"));
    } else {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "memory",
                                   "%d of %d ranks have no NUMA node of their own: their memory "
                                   "comes from where it is touched first",
                                   mapping->place_count - bound, mapping->place_count));
    }
    return TSR_OK;
}

/* Ranks on cores: the whole machine is one island, because they exchange through its memory. */
static tsr_status place_on_cores(const tsri_topo *topo, bool crowded, tsri_topo_mapping *mapping)
{
    mapping->island_count = mapping->place_count > 0 ? 1 : 0;
    mapping->rule = TSRI_TOPO_RULE_NODE;
    for (int i = 0; i < mapping->place_count; i++) {
        mapping->places[i] = (tsri_topo_place){.gpu = -1, .numa = -1, .nic = -1};
    }
    if (crowded) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "islands",
                                   "%d ranks, but %d GPUs: ranks stand on cores, as for the cpu "
                                   "backend",
                                   mapping->place_count, tsri_topo_visible(topo)));
    }
    TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "islands",
                               "ranks on cores exchange through shared memory: the whole machine "
                               "is one island"));
    return TSR_OK;
}

static tsr_status place_on_gpus(const tsri_topo *topo, tsri_topo_rule asked,
                                tsri_topo_mapping *mapping)
{
    int *island = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)topo->gpu_count, sizeof(*island), &island));
    TSR_TRY_GOTO(status, tsri_topo_find_islands(topo, asked, island, mapping), out);
    TSR_TRY_GOTO(status, tsri_topo_order_gpus(topo, island, mapping), out);
out:
    tsri_free(&island);
    return status;
}

static int default_ranks(const tsri_topo *topo, int gpus)
{
    int numas = 0;

    for (int i = 0; i < topo->numa_count; i++) {
        numas += topo->numas[i].core_count > 0;
    }
    return gpus > 0 ? gpus : numas > 0 ? numas : 1;
}

static tsr_status place_ranks(const tsri_topo *topo, const tsri_topo_ask *ask, int gpus,
                              tsri_topo_mapping *mapping)
{
    if (!ask->cores_only) {
        TSR_TRY(tsri_topo_note_gpus(topo, mapping));
    }
    if (gpus >= mapping->place_count) {
        TSR_TRY(place_on_gpus(topo, ask->islands, mapping));
    } else {
        TSR_TRY(place_on_cores(topo, gpus > 0, mapping));
    }
    TSR_TRY(note_order(topo, mapping));
    return TSR_OK;
}

static tsr_status fill_places(const tsri_topo *topo, const tsri_topo_ask *ask,
                              tsri_topo_mapping *mapping)
{
    const int gpus = ask->cores_only ? 0 : tsri_topo_visible(topo);

    mapping->place_count = ask->ranks > 0 ? ask->ranks : default_ranks(topo, gpus);
    TSR_TRY(tsri_alloc((size_t)mapping->place_count, sizeof(*mapping->places), &mapping->places));
    TSR_TRY(tsri_alloc((size_t)topo->core_count, sizeof(*mapping->cores), &mapping->cores));
    TSR_TRY(place_ranks(topo, ask, gpus, mapping));
    TSR_TRY(tsri_topo_match_nics(topo, mapping));
    TSR_TRY(note_cpuset(topo, mapping));
    TSR_TRY(tsri_topo_share_cores(topo, mapping));
    TSR_TRY(note_memory(topo, mapping));
    return TSR_OK;
}

tsr_status tsri_topo_mapping_create(const tsri_topo *topo, const tsri_topo_ask *ask,
                                    tsri_topo_mapping **out)
{
    tsri_topo_mapping *mapping = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*mapping), &mapping));
    TSR_TRY_GOTO(status, fill_places(topo, ask, mapping), drop);
    *out = mapping;
    return TSR_OK;
drop:
    tsri_topo_mapping_free(&mapping);
    return status;
}

void tsri_topo_mapping_free(tsri_topo_mapping **pointer)
{
    tsri_topo_mapping *mapping = *pointer;

    *pointer = NULL;
    if (mapping == NULL) {
        return;
    }
    tsri_free(&mapping->places);
    tsri_free(&mapping->cores);
    tsri_free(&mapping->nics);
    tsri_topo_notes_free(&mapping->notes);
    tsri_free(&mapping);
}
