/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Tensor-parallel plans: patterns over module paths become placements of weights on one axis.
 *
 * Nothing here moves or computes. A rule only sets compute layouts; operations' rules and
 * redistribute follow from them. A plan is walked twice, first without effect: what is refused has
 * changed nothing. */
#include "tessera/tp.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "nn/nn.h"

enum {
    LEGAL_BYTES = 96,
    MAX_GROUPS = 16
};

typedef struct application {
    tsr_module *model;
    const char *axis;
    int ranks;
    const tsr_tp_rule *rules;
    int count;
    int *matches; /* modules that each rule matched */
    bool tries;   /* nothing is placed */
} application;

/* Rows that stay together (heads), as the parameters of a plan have them. */
typedef struct groups {
    const application *app;
    int64_t count[MAX_GROUPS];
    bool copies[MAX_GROUPS]; /* ranks beyond count hold copies */
    int kinds;
} groups;

static bool splits(int64_t count, bool copies, int64_t ranks)
{
    return count % ranks == 0 || (copies && ranks % count == 0);
}

/* Patterns count from the plan's own module on. */
static bool matches(const application *app, int rule, const char *name)
{
    const size_t above = strlen(app->model->path);
    const char *rest = name + above;

    return tsri_pattern_match(app->rules[rule].pattern,
                              rest + (above > 0 && rest[0] == '.' ? 1 : 0));
}

static int first_rule(const application *app, const char *name)
{
    for (int i = 0; i < app->count; i++) {
        if (matches(app, i, name)) {
            return i;
        }
    }
    return -1;
}

static bool by_rows(tsr_tp_kind kind)
{
    return kind == TSR_TP_DEFAULT || kind == TSR_TP_COLUMN || kind == TSR_TP_VOCAB;
}

static void add_groups(groups *found, const tsr_param *param)
{
    const tsr_param_spec *spec = tsr_param_get_spec(param);

    if (spec->group_rows <= 1) {
        return;
    }
    const int64_t count = spec->shape[0] / spec->group_rows;

    for (int i = 0; i < found->kinds; i++) {
        if (found->count[i] == count && found->copies[i] == spec->replicate_groups) {
            return;
        }
    }
    if (found->kinds < MAX_GROUPS) {
        found->count[found->kinds] = count;
        found->copies[found->kinds++] = spec->replicate_groups;
    }
}

static tsr_status visit_groups(tsr_module *module, void *context)
{
    groups *found = context;
    const application *app = found->app;
    const int module_rule = first_rule(app, module->path);

    for (int i = 0; i < module->param_count; i++) {
        const int own = first_rule(app, tsr_param_name(module->params[i]));
        const int rule = own >= 0 ? own : module_rule;

        if (rule >= 0 && by_rows(app->rules[rule].style.kind)) {
            add_groups(found, module->params[i]);
        }
    }
    return TSR_OK;
}

/* "1, 2, 4": the sizes that split the groups of all parameters of the plan. */
static tsr_status legal_sizes(const application *app, char *text, size_t size)
{
    groups found = {.app = app};
    int64_t most = 0;
    bool all_copy = true;
    size_t used = 0;

    TSR_TRY(tsri_module_walk(app->model, visit_groups, &found));
    for (int i = 0; i < found.kinds; i++) {
        most = found.count[i] > most ? found.count[i] : most;
        all_copy = all_copy && found.copies[i];
    }
    text[0] = '\0';
    for (int64_t n = 1; n <= most && used + 24 < size; n++) {
        bool legal = true;

        for (int i = 0; i < found.kinds; i++) {
            legal = legal && splits(found.count[i], found.copies[i], n);
        }
        if (legal) {
            used += (size_t)snprintf(text + used, size - used, "%s%lld", n > 1 ? ", " : "",
                                     (long long)n);
        }
    }
    if (all_copy && found.kinds == 1) {
        (void)snprintf(text + used, size - used, " and multiples of %lld", (long long)most);
    }
    return TSR_OK;
}

static tsr_status column_placement(const application *app, const tsr_param *param,
                                   tsr_placement *out)
{
    const tsr_param_spec *spec = tsr_param_get_spec(param);
    const int64_t group_rows = spec->group_rows > 0 ? spec->group_rows : 1;
    const int64_t count = spec->shape[0] / group_rows;
    char legal[LEGAL_BYTES];

    *out = (tsr_placement){TSR_SHARD, 0};
    if (group_rows == 1 || count % app->ranks == 0) {
        return TSR_OK;
    }
    if (splits(count, spec->replicate_groups, app->ranks)) {
        *out = (tsr_placement){TSR_REPLICATE, 0};
        return TSR_OK;
    }
    TSR_TRY(legal_sizes(app, legal, sizeof(legal)));
    return TSR_RAISE(TSR_ERR_PLACEMENT, "%s=%d on %s: it has %lld %s; legal sizes are %s",
                     app->axis, app->ranks, tsr_param_name(param), (long long)count,
                     spec->group_name != NULL ? spec->group_name : "row groups", legal);
}

static tsr_status place_param(const application *app, tsr_param *param, tsr_tp_kind kind)
{
    tsr_placement place = {TSR_REPLICATE, 0};

    switch (kind) {
    case TSR_TP_DEFAULT:
    case TSR_TP_COLUMN:
    case TSR_TP_VOCAB:
        TSR_TRY(column_placement(app, param, &place));
        break;
    case TSR_TP_ROW:
        if (tsr_param_get_spec(param)->ndim >= 2) { /* a bias stays whole: one rank adds it */
            place = (tsr_placement){TSR_SHARD, 1};
        }
        break;
    case TSR_TP_REPLICATE:
        return TSR_OK;
    default:
        return TSR_RAISE(TSR_ERR_INVALID, "tp kind %d, wants one of tsr_tp_kind", (int)kind);
    }
    if (!app->tries) {
        TSR_TRY(tsri_param_place(param, app->axis, place));
    }
    return TSR_OK;
}

/* The one rule that matches name, or -1. */
static tsr_status find_rule(application *app, const char *name, int *out)
{
    *out = -1;
    for (int i = 0; i < app->count; i++) {
        if (!matches(app, i, name)) {
            continue;
        }
        if (*out >= 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "\"%s\" matches two tp rules, \"%s\" and \"%s\"",
                             name, app->rules[*out].pattern, app->rules[i].pattern);
        }
        *out = i;
        app->matches[i]++;
    }
    return TSR_OK;
}

static void set_border(const application *app, const tsr_module *module, tsr_tp_border kind,
                       tsri_border *border)
{
    const int axis = tsr_mesh_axis_find(tsr_comm_mesh(module->comm), app->axis);

    border->set = kind != TSR_TP_AS_IS;
    border->axis = axis;
    border->kind = kind == TSR_TP_REPLICATED ? TSR_REPLICATE : TSR_SHARD;
    border->dim = kind == TSR_TP_SEQUENCE ? 1 : kind == TSR_TP_FEATURES ? -1 : 0;
}

/* A rule for a module places its own weight and bias; one for a parameter that parameter. */
static tsr_status visit_module(tsr_module *module, void *context)
{
    application *app = context;
    int module_rule = -1;

    TSR_TRY(find_rule(app, module->path, &module_rule));
    if (module_rule >= 0) {
        const tsr_tp_style *style = &app->rules[module_rule].style;

        if (module->param_count == 0 && style->input == TSR_TP_AS_IS &&
            style->output == TSR_TP_AS_IS) {
            return TSR_RAISE(TSR_ERR_INVALID, "tp rule on \"%s\": it has no parameters of its own",
                             module->path);
        }
        if (!app->tries) {
            set_border(app, module, style->input, &module->in);
            set_border(app, module, style->output, &module->out);
        }
    }
    for (int i = 0; i < module->param_count; i++) {
        tsr_param *param = module->params[i];
        int rule = -1;

        TSR_TRY(find_rule(app, tsr_param_name(param), &rule));
        if (rule >= 0 && module_rule >= 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "\"%s\" matches two tp rules, \"%s\" and \"%s\"",
                             tsr_param_name(param), app->rules[module_rule].pattern,
                             app->rules[rule].pattern);
        }
        rule = rule >= 0 ? rule : module_rule;
        if (rule >= 0) {
            TSR_TRY(place_param(app, param, app->rules[rule].style.kind));
        }
    }
    return TSR_OK;
}

typedef struct nearest {
    const char *pattern, *path;
    int distance;
} nearest;

static void consider(nearest *n, const char *path)
{
    const int distance = tsri_edit_distance(n->pattern, path);

    if (path[0] != '\0' && (n->path == NULL || distance < n->distance)) {
        n->path = path;
        n->distance = distance;
    }
}

static tsr_status visit_nearest(tsr_module *module, void *context)
{
    consider(context, module->path);
    for (int i = 0; i < module->param_count; i++) {
        consider(context, tsr_param_name(module->params[i]));
    }
    return TSR_OK;
}

static tsr_status check_matches(tsr_module *model, const application *app)
{
    for (int i = 0; i < app->count; i++) {
        if (app->matches[i] == 0) {
            nearest n = {.pattern = app->rules[i].pattern};

            TSR_TRY(tsri_module_walk(model, visit_nearest, &n));
            return TSR_RAISE(TSR_ERR_INVALID,
                             "tp rule %d, pattern \"%s\", matches no module and no parameter; the "
                             "nearest is \"%s\"",
                             i, app->rules[i].pattern, n.path != NULL ? n.path : "");
        }
    }
    return TSR_OK;
}

static tsr_status check(application *app)
{
    app->tries = true;
    TSR_TRY(tsri_module_walk(app->model, visit_module, app));
    TSR_TRY(check_matches(app->model, app));
    if (app->model->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "tp plan on \"%s\": module \"%s\" is materialised already",
                         app->axis, app->model->path);
    }
    app->tries = false;
    return TSR_OK;
}

tsr_status tsr_tp_apply(tsr_module *model, const char *axis, const tsr_tp_rule *rules, int count)
{
    TSRI_WANT(model, axis);
    TSRI_WANT_LIST(rules, count);

    const tsr_mesh *mesh = tsr_comm_mesh(model->comm);
    const int at = tsr_mesh_axis_find(mesh, axis);
    application app = {.model = model, .axis = axis, .rules = rules, .count = count};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(int), &app.matches));
    if (at >= 0) { /* else the claim says so */
        app.ranks = tsr_mesh_axis_size(mesh, at);
        TSR_TRY_GOTO(status, check(&app), free_matches);
    }
    TSR_TRY_GOTO(status, tsri_comm_claim_axis(model->comm, axis, "tp"), free_matches);
    TSR_TRY_GOTO(status, tsri_module_walk(model, visit_module, &app), free_matches);
free_matches:
    tsri_free(&app.matches);
    return status;
}
