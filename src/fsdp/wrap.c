/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Which modules become units by themselves: bottom-up, by how much they hold that is not taken yet,
 * or by their paths. */
#include "fsdp_priv.h"

#include "base/base.h"

static const int64_t default_min_params = 100000000;

typedef struct wrap {
    const tsr_auto_wrap_options *options;
    tsr_module *model;
    FILE *stream; /* NULL: nowhere */
    int64_t min_params;
    int64_t total, most;
    const tsr_module *largest;
    int units, matches;
} wrap;

static tsr_status not_taken(tsr_module *module, int64_t *out)
{
    tsr_param *const *all = NULL;
    int count = 0;

    *out = 0;
    TSR_TRY(tsr_module_params(module, &all, &count));
    for (int i = 0; i < count; i++) {
        if (all[i]->sink == NULL) {
            *out += tsr_param_count(all[i]);
        }
    }
    return TSR_OK;
}

static tsr_status make_unit(wrap *w, tsr_module *module, int64_t elements)
{
    TSR_TRY(tsr_fully_shard(module, &w->options->units));
    w->units++;
    if (elements >= w->most) {
        w->most = elements;
        w->largest = module;
    }
    if (w->stream != NULL) {
        (void)fprintf(w->stream, "unit \"%s\": %lld elements\n", module->path, (long long)elements);
    }
    return TSR_OK;
}

static bool is_chosen(const wrap *w, const tsr_module *module)
{
    return module != w->model && tsri_pattern_match(w->options->pattern, module->path);
}

static tsr_status count_match(tsr_module *module, void *context)
{
    wrap *w = context;

    w->matches += is_chosen(w, module);
    return TSR_OK;
}

/* Before anything is made a unit. */
static tsr_status check_pattern(wrap *w)
{
    if (w->options->pattern != NULL) {
        TSR_TRY(tsri_module_walk(w->model, count_match, w));
        if (w->matches == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "no module under \"%s\" matches \"%s\"",
                             w->model->path, w->options->pattern);
        }
    }
    return TSR_OK;
}

static tsr_status wrap_below(wrap *w, tsr_module *module) // NOLINT(misc-no-recursion): the tree
{
    const char *pattern = w->options->pattern;
    int64_t elements = 0;
    bool chosen = false;

    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(wrap_below(w, module->children[i]));
    }
    TSR_TRY(not_taken(module, &elements));
    if (pattern != NULL) {
        chosen = is_chosen(w, module);
    } else {
        chosen = elements >= w->min_params;
    }
    if (module == w->model || (chosen && module->forward != NULL && module->hooks == NULL)) {
        TSR_TRY(make_unit(w, module, elements));
    }
    return TSR_OK;
}

static void write_sum(const wrap *w)
{
    if (w->stream == NULL) {
        return;
    }
    (void)fprintf(w->stream, "%d units, %lld elements\n", w->units, (long long)w->total);
    if (w->most * 4 > w->total * 3 && w->total >= 1000000) {
        (void)fprintf(w->stream,
                      "warning: unit \"%s\" holds %.0f %% of all parameters: gathered as one, it "
                      "hides no traffic and saves little memory; lower min_params from %lld\n",
                      w->largest->path, 100.0 * (double)w->most / (double)w->total,
                      (long long)w->min_params);
    }
}

tsr_status tsr_fsdp_auto_wrap(tsr_module *model, const tsr_auto_wrap_options *options, FILE *stream)
{
    TSRI_WANT(model);

    static const tsr_auto_wrap_options defaults = {0};
    wrap w = {.options = options != NULL ? options : &defaults, .model = model, .stream = stream};

    TSRI_WANT_COUNT(w.options->min_params);
    w.min_params = w.options->min_params > 0 ? w.options->min_params : default_min_params;
    TSR_TRY(check_pattern(&w));
    TSR_TRY(not_taken(model, &w.total));
    TSR_TRY(wrap_below(&w, model));
    write_sum(&w);
    return TSR_OK;
}
