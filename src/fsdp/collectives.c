/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The collectives of a step, as the recorder saw them, with the reason for each. */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

static const unit *unit_called(const engine *e, const char *label)
{
    for (int i = 0; label != NULL && i < e->unit_count; i++) {
        if (strcmp(e->units[i]->module->path, label) == 0) {
            return e->units[i];
        }
    }
    return NULL;
}

/* Why a collective of a unit's own streams was made. */
static const char *why_unit(const unit *u, const tsri_entry *entry)
{
    const bool reduces = entry->op != TSRI_ALL_GATHER;

    if (!reduces && entry->axis_mask == u->levels.mask[3]) {
        return "parameters before their use";
    }
    if (!reduces && u->levels.kept != NULL && entry->axis_mask == u->levels.kept->axis_mask) {
        return "parameters kept within groups";
    }
    if (!reduces) {
        return "parameters that other ranks updated";
    }
    if (entry->stream == TSRI_STREAM_REDUCE) {
        return "gradients to those who keep them";
    }
    if (entry->op == TSRI_REDUCE_SCATTER) {
        return "gradients to those who update";
    }
    return entry->axis_mask == u->levels.mask[0] ? "gradients between replicas"
                                                 : "gradients that tensor parallel left partial";
}

static const char *why(const engine *e, const tsri_entry *entry)
{
    const unit *u = unit_called(e, entry->label);

    if (entry->stream != TSRI_STREAM_COMPUTE && u != NULL) {
        return why_unit(u, entry);
    }
    return entry->stream == TSRI_STREAM_COMPUTE ? "a value that computation needs" : "data";
}

static const char *op_name(int op)
{
    static const char *const names[TSRI_COLL_COUNT] = {"all-gather", "reduce-scatter", "all-reduce",
                                                       "all-to-all", "broadcast"};

    return op >= 0 && op < TSRI_COLL_COUNT ? names[op] : "?";
}

static const char *stream_name(tsri_stream_kind kind)
{
    static const char *const names[TSRI_STREAM_COUNT] = {"compute", "gather", "reduce", "replicate",
                                                         "copy"};

    return names[kind];
}

/* The first entry of the newest step. What is recorded behind it, as an evaluation, is of none. */
static const tsri_entry *newest_step(const engine *e, int *count_out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(e->comm), &count);
    int begin = 0;

    while (count > 0 && entries[count - 1].step < 0) {
        count--;
    }
    begin = count;
    while (begin > 0 && entries[begin - 1].step == entries[count - 1].step) {
        begin--;
    }
    *count_out = count - begin;
    return entries + begin;
}

enum {
    MAX_AXES_SETS = 1 << TSR_MESH_MAX_AXES
};

/* The index of entry's axes in seen, where they are appended if they are new. */
static int find_axes(const char **seen, int *used, const tsri_entry *entry)
{
    for (int i = 0; i < *used; i++) {
        if (strcmp(seen[i], entry->group) == 0) {
            return i;
        }
    }
    seen[*used] = entry->group;
    return (*used)++;
}

int tsr_collectives_count(tsr_module *model, tsr_traffic *out, int capacity)
{
    TSRI_WANT_OR(model, 0);

    const engine *e = tsri_engine_of(model);
    const tsri_entry *entries = NULL;
    const char *seen[MAX_AXES_SETS];
    int count = 0;
    int used = 0;

    if (e == NULL || tsri_comm_device(e->comm)->recorder == NULL) {
        return 0;
    }
    entries = newest_step(e, &count);
    for (int i = 0; i < count; i++) {
        if (entries[i].kind == TSRI_ENTRY_COLLECTIVE) {
            const int before = used;
            const int at = find_axes(seen, &used, &entries[i]);

            if (out == NULL || at >= capacity) {
                continue;
            }
            if (at == before) {
                out[at] = (tsr_traffic){.axes = entries[i].group};
            }
            out[at].collectives++;
            out[at].bytes += entries[i].sent_bytes;
        }
    }
    return used;
}

tsr_status tsr_collectives_print(tsr_module *model, FILE *stream)
{
    TSRI_WANT(model, stream);

    const engine *e = tsri_engine_of(model);
    tsr_traffic traffic[64];
    const tsri_entry *entries = NULL;
    char bytes[32];
    int count = 0;
    int used = 0;

    if (e == NULL || tsri_comm_device(e->comm)->recorder == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "model \"%s\": %s", model->path,
                         e == NULL ? "no units yet: call tsr_module_materialize first"
                                   : "its comm keeps no record: open it with record");
    }
    entries = newest_step(e, &count);
    (void)fprintf(stream, "%-10s %-14s %-18s %10s  %-20s %s\n", "stream", "operation", "axes",
                  "sent", "unit", "why");
    for (int i = 0; i < count; i++) {
        const tsri_entry *entry = &entries[i];

        if (entry->kind == TSRI_ENTRY_COLLECTIVE) {
            (void)fprintf(stream, "%-10s %-14s %-18s %10s  %-20s %s\n", stream_name(entry->stream),
                          op_name(entry->op), entry->group,
                          tsri_format_bytes((double)entry->sent_bytes, bytes, sizeof(bytes)),
                          entry->label == NULL || entry->label[0] == '\0' ? "(root)" : entry->label,
                          why(e, entry));
        }
    }
    used = tsr_collectives_count(model, traffic, 64);
    for (int i = 0; i < used && i < 64; i++) {
        (void)fprintf(stream, "axes %s: %d collectives, %zu bytes sent\n", traffic[i].axes,
                      traffic[i].collectives, traffic[i].bytes);
    }
    return TSR_OK;
}
