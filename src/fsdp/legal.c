/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What may be combined, in one table: it is the check, its message, and the document.
 *
 * A rule says in words what it asks for and why, and has a function that looks whether a case
 * breaks it and what it found. Rules of OPTIONS are looked at by tsr_fully_shard, those of UNIT by
 * tsr_module_materialize, when it is known which axes carry data. */
#include "fsdp_priv.h"

#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef enum rule_time {
    AT_OPTIONS,
    AT_UNIT
} rule_time;

typedef struct rule {
    const char *id;
    rule_time time;
    tsr_status status;
    const char *asks; /* what must hold */
    const char *why;
    bool (*broken)(legal_case *c);
} rule;

static bool found(legal_case *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool found(legal_case *c, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(c->found, sizeof(c->found), format, args);
    va_end(args);
    return true;
}

/* ---- options ---- */

static bool unit_already(legal_case *c)
{
    if (c->module->hooks != NULL || c->module->materialized) {
        return found(c, "it is %s already", c->module->hooks != NULL ? "a unit" : "materialised");
    }
    return false;
}

static bool parent_first(legal_case *c)
{
    for (const tsr_module *m = c->module->parent; m != NULL; m = m->parent) {
        if (tsri_unit_of(m) != NULL) {
            return found(c, "\"%s\" above it is a unit already", m->path);
        }
    }
    return false;
}

static bool container(legal_case *c)
{
    return c->module->forward == NULL && found(c, "it is a container without a forward");
}

static bool unknown_axis(legal_case *c)
{
    const tsr_mesh *mesh = tsr_comm_mesh(c->module->comm);
    char text[96];

    for (int i = 0; i < TSR_MESH_MAX_AXES && c->options->levels[i].axis != NULL; i++) {
        const char *axis = c->options->levels[i].axis;

        if (strcmp(axis, TSR_AXIS_INNER) != 0 && strcmp(axis, TSR_AXIS_OTHERS) != 0 &&
            tsr_mesh_axis_find(mesh, axis) < 0) {
            return found(c, "no axis \"%s\" in mesh %s", axis,
                         tsr_mesh_format(mesh, text, sizeof(text)));
        }
    }
    return false;
}

static bool axis_twice(legal_case *c)
{
    for (int i = 0; i < TSR_MESH_MAX_AXES && c->options->levels[i].axis != NULL; i++) {
        for (int k = 0; k < i; k++) {
            if (strcmp(c->options->levels[i].axis, c->options->levels[k].axis) == 0) {
                return found(c, "axis \"%s\" is named twice", c->options->levels[i].axis);
            }
        }
    }
    return false;
}

static bool bad_level(legal_case *c)
{
    for (int i = 0; i < TSR_MESH_MAX_AXES && c->options->levels[i].axis != NULL; i++) {
        const tsr_axis_level *l = &c->options->levels[i];

        if (l->level < TSR_LEVEL_REPLICATE || l->level > TSR_LEVEL_PARAMS) {
            return found(c, "axis \"%s\" has level %d", l->axis, (int)l->level - 1);
        }
    }
    return false;
}

static bool bad_dtype(legal_case *c)
{
    static const char *const names[3] = {"param", "reduce", "output"};
    const tsr_dtype dtypes[3] = {c->options->param_dtype, c->options->reduce_dtype,
                                 c->options->output_dtype};

    for (int i = 0; i < 3; i++) {
        if (dtypes[i] != TSR_DTYPE_DEFAULT && dtypes[i] != TSR_F32 && dtypes[i] != TSR_BF16 &&
            dtypes[i] != TSR_F16) {
            return found(c, "%s dtype %s", names[i], tsr_dtype_name(dtypes[i]));
        }
    }
    return false;
}

static bool bad_depth(legal_case *c)
{
    const tsr_fsdp_options *o = c->options;

    if (o->prefetch_depth < 0) {
        return found(c, "prefetch depth %d", o->prefetch_depth - 1);
    }
    if (o->reshard_group < 0) {
        return found(c, "reshard group %d", o->reshard_group);
    }
    return false;
}

static bool bad_enum(legal_case *c)
{
    const tsr_fsdp_options *o = c->options;

    if (o->reshard_after_forward < TSR_RESHARD_DEFAULT ||
        o->reshard_after_forward > TSR_RESHARD_NEVER) {
        return found(c, "reshard after forward is %d", (int)o->reshard_after_forward);
    }
    if (o->backward_prefetch < TSR_PREFETCH_DEFAULT || o->backward_prefetch > TSR_PREFETCH_NONE) {
        return found(c, "backward prefetch is %d", (int)o->backward_prefetch);
    }
    return false;
}

static bool group_kept_whole(legal_case *c)
{
    return c->options->reshard_group != 0 &&
           c->options->reshard_after_forward == TSR_RESHARD_NEVER &&
           found(c, "groups of %d, and never resharded", c->options->reshard_group);
}

static bool group_by_cols(legal_case *c)
{
    const tsr_fsdp_options *o = c->options;

    for (int i = 0; o->reshard_group != 0 && i < o->shard_dim_count; i++) {
        if (o->shard_dims[i].dim != 0) {
            return found(c, "groups of %d, and \"%s\" split along dim %d", o->reshard_group,
                         o->shard_dims[i].match, o->shard_dims[i].dim);
        }
    }
    return false;
}

static bool bad_divisor(legal_case *c)
{
    const double divisor = c->options->gradient_divisor;

    if (!isfinite(divisor) || divisor < 0.0 || (divisor != 0.0 && !isfinite(1.0 / divisor))) {
        return found(c, "gradient divisor %g", divisor);
    }
    return false;
}

/* The first parameter that pattern matches, or NULL. */
static const tsr_param *first_match(const legal_case *c, const char *pattern)
{
    tsr_param *const *all = NULL;
    int count = 0;

    if (tsr_module_params(c->module, &all, &count) != TSR_OK) {
        tsr_error_clear();
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (tsri_pattern_match(pattern, all[i]->name)) {
            return all[i];
        }
    }
    return NULL;
}

static bool no_match(legal_case *c)
{
    const tsr_fsdp_options *o = c->options;

    for (int i = 0; i < o->ignored_count; i++) {
        if (first_match(c, o->ignored[i]) == NULL) {
            return found(c, "no parameter matches ignored \"%s\"", o->ignored[i]);
        }
    }
    for (int i = 0; i < o->shard_dim_count; i++) {
        if (first_match(c, o->shard_dims[i].match) == NULL) {
            return found(c, "no parameter matches \"%s\"", o->shard_dims[i].match);
        }
    }
    return false;
}

static bool bad_dim(legal_case *c)
{
    const tsr_fsdp_options *o = c->options;

    for (int i = 0; i < o->shard_dim_count; i++) {
        const tsr_param *param = first_match(c, o->shard_dims[i].match);

        if (param != NULL && (o->shard_dims[i].dim < 0 || o->shard_dims[i].dim > 1 ||
                              o->shard_dims[i].dim >= param->spec.ndim)) {
            return found(c, "%s of %d dims split along dim %d", param->name, param->spec.ndim,
                         o->shard_dims[i].dim);
        }
    }
    return false;
}

/* ---- units ---- */

static bool level_without_data(legal_case *c)
{
    const tsr_mesh *mesh = tsr_comm_mesh(c->unit->comm);
    const unsigned sums = tsri_comm_sum_axes(c->unit->comm);

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((sums >> axis & 1u) == 0 && c->unit->level[axis] != TSR_LEVEL_DEFAULT) {
            return found(c, "axis \"%s\" has level %d but carries no data",
                         tsr_mesh_axis_name(mesh, axis), (int)c->unit->level[axis] - 1);
        }
    }
    return false;
}

static bool bad_group(legal_case *c)
{
    const tsr_mesh *mesh = tsr_comm_mesh(c->unit->comm);
    const int k = c->unit->options.reshard_group;
    char legal[96] = "";
    size_t used = 0;
    int within = 1;
    bool fits = k == 0;

    for (int axis = tsr_mesh_axis_count(mesh) - 1; axis >= 0; axis--) {
        const int size =
            c->unit->level[axis] == TSR_LEVEL_PARAMS ? tsr_mesh_axis_size(mesh, axis) : 1;

        if (size > 1 && within > 1) {
            fits = fits || k == within;
            used += (size_t)snprintf(legal + used, sizeof(legal) - used, "%s%d",
                                     used > 0 ? ", " : "", within);
        }
        within *= size;
    }
    return !fits && found(c, "groups of %d within %d ranks of level 3, where %s fits", k, within,
                          used > 0 ? legal : "none");
}

static const rule rules[] = {
    {"unit-once", AT_OPTIONS, TSR_ERR_STATE, "a module becomes a unit once, before it has memory",
     "its parameters have a place already", unit_already},
    {"bottom-up", AT_OPTIONS, TSR_ERR_STATE, "a module becomes a unit before those above it",
     "they take what no unit below them has taken: nothing would be left for it", parent_first},
    {"forward", AT_OPTIONS, TSR_ERR_INVALID, "a unit has a forward",
     "a unit's parameters are gathered when its forward begins", container},
    {"axis-known", AT_OPTIONS, TSR_ERR_INVALID, "levels name axes of the mesh",
     "a level is said of an axis", unknown_axis},
    {"axis-once", AT_OPTIONS, TSR_ERR_INVALID, "levels name each axis once",
     "an axis has one level", axis_twice},
    {"level", AT_OPTIONS, TSR_ERR_INVALID, "levels are 0 to 3",
     "they stand for nothing, optimizer state, gradients, parameters", bad_level},
    {"dtype", AT_OPTIONS, TSR_ERR_UNSUPPORTED,
     "param, reduce and output dtype are f32, bf16 or f16", "no other type is gathered and summed",
     bad_dtype},
    {"prefetch-depth", AT_OPTIONS, TSR_ERR_INVALID, "the prefetch depth is at least 0",
     "it counts units", bad_depth},
    {"choice", AT_OPTIONS, TSR_ERR_INVALID, "options are among those listed in fsdp.h",
     "another number has no meaning", bad_enum},
    {"group-reshards", AT_OPTIONS, TSR_ERR_INVALID,
     "a unit with a reshard group reshards after forward",
     "the group is where the parameters go then", group_kept_whole},
    {"group-rows", AT_OPTIONS, TSR_ERR_INVALID,
     "a unit with a reshard group splits its parameters along dim 0",
     "along dim 1 what a group keeps is not contiguous in the gathered tensor", group_by_cols},
    {"divisor", AT_OPTIONS, TSR_ERR_INVALID,
     "the gradient divisor is positive and finite, or 0 "
     "for none",
     "gradients are multiplied by its inverse", bad_divisor},
    {"pattern", AT_OPTIONS, TSR_ERR_INVALID, "every pattern matches a parameter",
     "a pattern that matches nothing is a slip of the pen", no_match},
    {"shard-dim", AT_OPTIONS, TSR_ERR_INVALID, "a parameter is split along a dim that it has",
     "vectors have dim 0 alone, others are split along 0 or 1", bad_dim},
    {"axis-data", AT_UNIT, TSR_ERR_INVALID, "levels are said of axes that carry data",
     "on other axes ranks hold different tensors, or the same batch, and there is nothing to "
     "reduce",
     level_without_data},
    {"group-axes", AT_UNIT, TSR_ERR_INVALID,
     "a reshard group is the product of the last level-3 axes, and neither 1 nor all of them",
     "its ranks need a communicator of their own, and communicators belong to axes: split the axis "
     "in two where k divides it; 1 is reshard never, all is reshard always",
     bad_group},
};

enum {
    RULE_COUNT = (int)(sizeof(rules) / sizeof(rules[0]))
};

int tsri_legal_rule_count(void)
{
    return RULE_COUNT;
}

const char *tsri_legal_rule_id(int index)
{
    return rules[index].id;
}

static tsr_status check(legal_case *c, rule_time time)
{
    for (int i = 0; i < RULE_COUNT; i++) {
        const rule *r = &rules[i];

        if (r->time == time && r->broken(c)) {
            return TSR_RAISE(r->status, "unit \"%s\": %s; wanted: %s, because %s [%s]",
                             c->module->path, c->found, r->asks, r->why, r->id);
        }
    }
    return TSR_OK;
}

tsr_status tsri_legal_check_options(tsr_module *module, const tsr_fsdp_options *options)
{
    legal_case c = {.module = module, .options = options};

    TSR_TRY(check(&c, AT_OPTIONS));
    return TSR_OK;
}

tsr_status tsri_legal_check_unit(unit *u)
{
    legal_case c = {.module = u->module, .options = &u->options, .unit = u};

    TSR_TRY(check(&c, AT_UNIT));
    return TSR_OK;
}

/* ---- the document ---- */

typedef struct level_text {
    const char *what, *params, *grads, *optim, *traffic;
} level_text;

static const level_text levels[] = {
    {"nothing", "whole", "whole", "whole", "all-reduce of gradients once a step"},
    {"optimizer state", "whole", "whole", "1/n",
     "reduce-scatter of gradients once a step; all-gather of what was updated once a step"},
    {"and gradients", "whole", "1/n", "1/n",
     "reduce-scatter of gradients every micro-batch; all-gather of what was updated once a step"},
    {"and parameters", "1/n", "1/n", "1/n",
     "all-gather of parameters before forward and, where resharded, before backward; "
     "reduce-scatter of gradients every micro-batch"},
};

static void write_levels(FILE *stream)
{
    (void)fputs("## Levels\n\n"
                "Per data axis of n ranks, a level says what is sharded over it.\n\n"
                "| level | shards | parameters | gradients | optimizer | traffic on the axis |\n"
                "|---|---|---|---|---|---|\n",
                stream);
    for (int i = 0; i < 4; i++) {
        (void)fprintf(stream, "| %d | %s | %s | %s | %s | %s |\n", i, levels[i].what,
                      levels[i].params, levels[i].grads, levels[i].optim, levels[i].traffic);
    }
    (void)fputs("\n## Levels of two axes\n\n"
                "Every combination is legal, on any number of axes, and each unit may have its "
                "own. Fractions\nmultiply: with s ranks on the shard axis and r on the other, a "
                "rank holds\n\n"
                "| shard axis | other axis | parameters | gradients | optimizer | preset |\n"
                "|---|---|---|---|---|---|\n",
                stream);
    for (int inner = 0; inner < 4; inner++) {
        for (int outer = 0; outer < 4; outer++) {
            static const char *const parts[2][2] = {{"1", "1/r"}, {"1/s", "1/(s r)"}};
            const char *preset = tsri_preset_name((tsr_level)(inner + 1), (tsr_level)(outer + 1));

            (void)fprintf(stream, "| %d | %d | %s | %s | %s | %s |\n", inner, outer,
                          parts[inner >= 3][outer >= 3], parts[inner >= 2][outer >= 2],
                          parts[inner >= 1][outer >= 1], preset != NULL ? preset : "");
        }
    }
}

void tsri_legal_write(FILE *stream)
{
    (void)fputs("# Legal combinations\n\n"
                "Which levels and options a unit may have. The tables are those of "
                "`src/fsdp/legal.c`, which also make\nthe check and its message; a test compares "
                "them with this page, and writes it when run with\n`TSR_UPDATE_GOLDEN=1`.\n\n",
                stream);
    write_levels(stream);
    (void)fputs("\n## Rules\n\n"
                "Checked by `tsr_fully_shard` (options) and `tsr_module_materialize` (unit). The "
                "message names the rule.\n\n"
                "| rule | checked with | asks that | because |\n|---|---|---|---|\n",
                stream);
    for (int i = 0; i < RULE_COUNT; i++) {
        (void)fprintf(stream, "| `%s` | %s | %s | %s |\n", rules[i].id,
                      rules[i].time == AT_OPTIONS ? "options" : "unit", rules[i].asks,
                      rules[i].why);
    }
}
