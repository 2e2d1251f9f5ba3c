/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What a model became, for people: units, placements, pieces, inserted redistributions. */
#include "fsdp_priv.h"

#include "base/base.h"

#include <stdio.h>

enum {
    TEXT = 160
};

/* At rest: the flat shard in f32, or a lean unit's masters and the whole in half precision. */
static size_t shard_bytes(const unit *u)
{
    return u->flat.lean ? (size_t)u->flat.own_count * sizeof(float) +
                              (size_t)u->flat.shard_count * tsr_dtype_size(u->param_dtype)
                        : (size_t)u->flat.shard_count * sizeof(float);
}

int tsr_fsdp_units(tsr_module *model, tsr_unit_info *infos, int capacity)
{
    TSRI_WANT_OR(model, 0);

    const engine *e = tsri_engine_of(model);

    for (int i = 0; e != NULL && infos != NULL && i < e->unit_count && i < capacity; i++) {
        const unit *u = e->units[i];
        tsr_unit_info *info = &infos[i];

        *info = (tsr_unit_info){
            .path = u->module->path,
            .param_count = u->param_count,
            .shard_bytes = shard_bytes(u),
            .gathered_bytes = tsri_unit_slot_bytes(u),
            .grad_bytes = u->flat.train_count > 0 ? (size_t)u->flat.grad_count * sizeof(float) : 0,
            .shared = u->values.shared,
            .passed_over = u->run.passed_count};
        for (int k = 0; k < u->param_count; k++) {
            info->element_count += tsr_param_count(u->params[k].param);
        }
    }
    return e != NULL ? e->unit_count : 0;
}

static const char *levels_text(const unit *u, char *text, size_t size)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    size_t used = 0;

    text[0] = '\0';
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (u->level[axis] != TSR_LEVEL_DEFAULT && used < size) {
            used += (size_t)snprintf(text + used, size - used, " %s:%d",
                                     tsr_mesh_axis_name(mesh, axis), (int)u->level[axis] - 1);
        }
    }
    return text;
}

static tsr_status print_param(const unit *u, const unit_param *p, FILE *stream)
{
    const tsr_param *param = p->param;
    const tsri_block *piece = &param->master.piece.block;
    tsri_block block;

    TSR_TRY(tsri_rest_outer(&param->value->layout, tsr_comm_rank(u->comm), &block));

    const int64_t begin =
        p->by_cols ? piece->first_col - block.first_col : piece->first_row - block.first_row;
    const int64_t end = begin + (p->by_cols ? piece->cols : piece->rows);
    const bool in_part = tsri_unit_trains(p) && u->flat.own_count < u->flat.train_count;
    char layout[TEXT];
    char shape[TEXT];

    (void)fprintf(stream, "  %-28s %-16s compute %s; at rest %s %lld..%lld of %lld%s%s\n",
                  param->name,
                  tsri_format_shape(param->spec.shape, param->spec.ndim, shape, sizeof(shape)),
                  tsr_layout_format(&param->value->layout, layout, sizeof(layout)),
                  p->by_cols ? "columns" : "rows", (long long)begin, (long long)end,
                  (long long)(p->by_cols ? p->cols : p->rows), in_part ? ", updated in part" : "",
                  p->whole              ? ", ignored"
                  : tsri_unit_trains(p) ? ""
                                        : ", frozen");
    return TSR_OK;
}

static tsr_status print_unit(const unit *u, FILE *stream)
{
    char levels[TEXT];
    char shard[32];
    char slot[32];
    int64_t elements = 0;

    for (int i = 0; i < u->param_count; i++) {
        elements += tsr_param_count(u->params[i].param);
    }
    (void)fprintf(
        stream, "unit \"%s\": %d parameters, %lld elements, levels%s; at rest %s, gathered %s %s\n",
        u->module->path, u->param_count, (long long)elements, levels_text(u, levels, TEXT),
        tsri_format_bytes((double)shard_bytes(u), shard, sizeof(shard)),
        u->flat.has_slot ? tsri_format_bytes((double)tsri_unit_slot_bytes(u), slot, sizeof(slot))
                         : "in place",
        tsr_dtype_name(u->param_dtype));
    for (int i = 0; i < u->param_count; i++) {
        TSR_TRY(print_param(u, &u->params[i], stream));
    }
    return TSR_OK;
}

static void print_inserted(const tsr_tape *tape, FILE *stream)
{
    int count = 0;
    const tsri_inserted *list = tsri_tape_inserted(tape, &count);

    (void)fprintf(stream, "redistributions inserted by placement rules: %d\n", count);
    for (int i = 0; i < count; i++) {
        char from[TEXT];
        char to[TEXT];
        char bytes[32];

        (void)fprintf(stream, "  %-8s %-24s %-14s %s -> %s (%s)\n",
                      list[i].backward ? "backward" : "forward", list[i].path, list[i].op,
                      tsr_layout_format(&list[i].from, from, sizeof(from)),
                      tsr_layout_format(&list[i].to, to, sizeof(to)),
                      tsri_format_bytes((double)list[i].bytes, bytes, sizeof(bytes)));
    }
}

tsr_status tsr_plan_print(tsr_module *model, tsr_tape *tape, FILE *stream)
{
    TSRI_WANT(model, stream);

    const engine *e = tsri_engine_of(model);
    char mesh[TEXT];

    if (e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "model \"%s\" has no units yet: call tsr_module_materialize first",
                         model->path);
    }
    if (tape != NULL && tsri_tape_comm(tape) != e->comm) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "tsr_plan_print: the tape lies on another comm than model \"%s\"",
                         model->path);
    }
    (void)fprintf(stream, "mesh %s, rank %d\n",
                  tsr_mesh_format(tsr_comm_mesh(e->comm), mesh, sizeof(mesh)),
                  tsr_comm_rank(e->comm));
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(print_unit(e->units[i], stream));
    }
    if (tape != NULL) {
        print_inserted(tape, stream);
    }
    return TSR_OK;
}
