/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The switch by which tests show that they would notice: a reduction dropped or counted twice, a
 * parameter read at the wrong place. Every rank does the same, so that nothing hangs. */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    SHIFT = 16 /* elements: 64 bytes of f32, which every kernel can be given */
};

void tsri_sabotage_set(tsr_module *model, tsri_sabotage_kind kind, int nth)
{
    engine *e = tsri_engine_of(model);

    if (e != NULL) {
        e->sabotage = (sabotage){.kind = kind, .nth = nth};
    }
}

bool tsri_sabotage_struck(tsr_module *model)
{
    const engine *e = tsri_engine_of(model);

    return e != NULL && e->sabotage.struck;
}

static tsr_status count_twice(const unit *u, const tsri_coll *coll, tsr_stream *stream)
{
    const size_t size = tsr_dtype_size(coll->dtype);

    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        const size_t bytes = (size_t)item->count * size;
        tsri_call call = {.stream = stream, .label = u->module->path};
        tsrk_scale args = {
            .n = item->count, .factor = 2.0F, .x_type = coll->dtype, .y_type = coll->dtype};

        if (bytes > 0) {
            args.y = tsri_arg_inout(&call, item->out, item->out_offset, bytes);
            args.x = tsri_arg_in(&call, item->out, item->out_offset, bytes);
            TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
        }
    }
    return TSR_OK;
}

tsr_status tsri_unit_collective(const unit *u, tsr_group *group, const tsri_coll *coll,
                                tsri_stream_kind kind)
{
    tsr_stream *stream = tsri_unit_stream(u, kind);
    sabotage *s = &u->engine->sabotage;
    const bool strikes = s->kind != TSRI_SABOTAGE_NONE && s->kind != TSRI_SABOTAGE_SHIFT &&
                         group->size > 1 && ++s->seen == s->nth;

    s->struck = s->struck || strikes;
    if (!strikes || s->kind == TSRI_SABOTAGE_DOUBLE) {
        TSR_TRY(tsri_collective(group, coll, stream));
    }
    if (strikes && s->kind == TSRI_SABOTAGE_DOUBLE) {
        TSR_TRY(count_twice(u, coll, stream));
    }
    return TSR_OK;
}

int64_t tsri_sabotage_shift(unit *u)
{
    sabotage *s = &u->engine->sabotage;

    /* There is room for the first of several parameters alone. */
    if (s->kind != TSRI_SABOTAGE_SHIFT || u->run.position + 1 != s->nth || u->param_count < 2) {
        return 0;
    }
    s->struck = true;
    return SHIFT;
}
