/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Forecasts as JSON. Of each time KEY there is KEY_low and KEY_high besides. */
#include "base/base.h"
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "plan/forecast.h"

enum {
    MESH_BYTES = 192,
    KEY_BYTES = 64
};

static void set_number(json_t *object, const char *key, const char *end, double value)
{
    char name[KEY_BYTES];

    (void)snprintf(name, sizeof(name), "%s%s", key, end);
    (void)json_object_set_new(object, name, isnan(value) ? json_null() : json_real(value));
}

static void set_span(json_t *object, const char *key, tsri_span span)
{
    set_number(object, key, "_low", span.low);
    set_number(object, key, "_high", span.high);
}

static json_t *axes_json(const tsri_forecast_axes *a)
{
    json_t *axes = json_pack("{s:s, s:i, s:s, s:f, s:f, s:f, s:f}", "axes", a->axes, "ranks",
                             a->size, "link", a->link, "sent_bytes", a->sent, "node_bytes",
                             a->node_bytes, "busy_s", a->busy_s, "exposed_s", a->exposed_s);

    set_span(axes, "busy_s", a->busy_range);
    set_span(axes, "exposed_s", a->exposed_range);
    return axes;
}

static json_t *memory_json(const tsri_forecast *f)
{
    json_t *memory = json_object();

    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        (void)json_object_set_new(memory, tsri_mem_name((tsri_mem_kind)kind),
                                  json_integer((json_int_t)f->memory.kind_bytes[kind]));
    }
    (void)json_object_set_new(memory, "logits", json_integer((json_int_t)f->logits_bytes));
    (void)json_object_set_new(memory, "total", json_integer((json_int_t)f->memory.total_bytes));
    (void)json_object_set_new(memory, "host", json_integer((json_int_t)f->memory.host_bytes));
    (void)json_object_set_new(memory, "peak", json_string(f->peak));
    return memory;
}

static json_t *forecast_json(const tsri_forecast *f)
{
    json_t *axes = json_array();

    if (!f->possible) {
        json_decref(axes);
        return json_pack("{s:s, s:b, s:s}", "preset", f->preset, "possible", 0, "why", f->why);
    }
    for (int i = 0; i < f->axes_count; i++) {
        (void)json_array_append_new(axes, axes_json(&f->axes[i]));
    }
    json_t *all =
        json_pack("{s:s, s:b, s:o, s:s, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                  "preset", f->preset, "possible", 1, "fits",
                  f->fit == TSRI_FIT_UNKNOWN ? json_null() : json_boolean(f->fit != TSRI_FIT_NO),
                  "fit", tsri_fit_word(f->fit), "memory_bytes", memory_json(f), "axes", axes,
                  "step_s", f->step_s, "compute_s", f->compute_s, "comm_s", f->comm_s, "exposed_s",
                  f->exposed_s, "copy_exposed_s", f->copy_exposed_s, "tokens", f->tokens,
                  "tokens_per_s", f->tokens_per_s, "node_bytes", f->node_bytes);

    set_number(all, "mfu", "", f->mfu);
    set_number(all, "mfu_full", "", f->mfu_full);
    set_span(all, "step_s", f->step_range);
    set_span(all, "compute_s", f->compute_range);
    set_span(all, "comm_s", f->comm_range);
    set_span(all, "exposed_s", f->exposed_range);
    set_span(all, "tokens_per_s", f->tokens_per_s_range);
    set_span(all, "mfu", f->mfu_range);
    return all;
}

tsr_status tsri_forecast_print_json(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                                    int count, FILE *stream)
{
    const int best = tsri_forecast_best(forecasts, count);
    char hash[32];
    char mesh[MESH_BYTES];
    tsri_rows rows;
    json_t *list = json_array();

    for (int i = 0; i < count; i++) {
        (void)json_array_append_new(list, forecast_json(&forecasts[i]));
    }
    (void)snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)head->cluster->hash);
    tsri_forecast_rows(head->options, head->size, &rows);
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:s, s:I, s:f, s:o, s:o}", "cluster",
                  head->cluster->machine.name, "cluster_hash", hash, "ranks", head->size, "mesh",
                  tsri_forecast_mesh(head->options, mesh, sizeof(mesh)), "parameters",
                  (json_int_t)tsri_model_param_count(&head->options->model), "memory_bytes",
                  head->cluster->machine.memory_bytes, "forecasts", list, "best",
                  best < 0 ? json_null() : json_string(forecasts[best].preset));

    if (root == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the forecast as JSON");
    }
    set_number(root, "headroom_bytes", "", head->cluster->machine.headroom_bytes);
    (void)json_object_set_new(root, "cluster_is_default", json_boolean(head->by_default));
    (void)json_object_set_new(root, "ranges_are_assumed", json_boolean(head->cluster->assumed));
    (void)json_object_set_new(root, "data_ranks", json_integer(rows.data_ranks));
    (void)json_object_set_new(root, "idle_data_ranks", json_integer(rows.idle));
    (void)json_object_set_new(root, "even_batch", json_boolean(rows.idle + rows.fewer == 0));
    const int failed = json_dumpf(root, stream, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(root);
    if (failed != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write the forecast as JSON");
    }
    (void)fprintf(stream, "\n");
    return TSR_OK;
}
