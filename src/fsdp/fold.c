/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Parameters split along dim 1: a rank's chunk is a block of columns, contiguous [rows, width], so
 * what a collective moves lies elsewhere than in the slot and is copied once more.
 *
 * Folded, a parameter is W chunks of rows * ceil(cols / W) elements; the last ones hold fewer
 * columns, at their own width, and slack after them. */
#include "fsdp_priv.h"

#include "base/base.h"

typedef struct move {
    const tsri_mem *folded, *slot;
    tsr_dtype type;
    bool unfold; /* to the slot */
} move;

/* The columns of rank r of parameter p. */
static tsr_status copy_chunk(const unit *u, const unit_param *p, const move *m, int r,
                             tsr_stream *stream)
{
    const size_t size = tsr_dtype_size(m->type);
    const int64_t each = p->rows > 0 ? p->chunk / p->rows : 0;
    const int64_t begin = tsri_min64(p->cols, r * each);
    const int64_t width = tsri_min64(each, p->cols - begin);
    const size_t chunk = m->folded->offset + (size_t)(p->fold_offset + r * p->chunk) * size;
    const size_t place =
        m->slot->offset + (size_t)(p->shard_offset * u->levels.ranks[3] + begin) * size;
    const size_t chunk_bytes = (size_t)(p->rows * width) * size;
    const size_t place_bytes = (size_t)((p->rows - 1) * p->cols + width) * size;
    const int64_t row_bytes = p->cols * (int64_t)size;
    const int64_t width_bytes = width * (int64_t)size;
    tsri_call call = {.stream = stream, .label = u->module->path};
    tsrk_copy_blocks args = {.outer = 1, .mid = p->rows, .inner_bytes = (size_t)width_bytes};

    if (width == 0 || p->rows == 0) {
        return TSR_OK;
    }
    if (m->unfold) {
        args.src = tsri_arg_in(&call, m->folded->buffer, chunk, chunk_bytes);
        args.dst = tsri_arg_out(&call, m->slot->buffer, place, place_bytes);
        args.src_mid_stride = width_bytes;
        args.dst_mid_stride = row_bytes;
    } else {
        args.src = tsri_arg_in(&call, m->slot->buffer, place, place_bytes);
        args.dst = tsri_arg_out(&call, m->folded->buffer, chunk, chunk_bytes);
        args.src_mid_stride = row_bytes;
        args.dst_mid_stride = width_bytes;
    }
    TSR_TRY(TSRI_LAUNCH(&call, COPY_BLOCKS, &args));
    return TSR_OK;
}

static tsr_status copy_all(unit *u, const move *m, bool trained_alone, tsr_stream *stream)
{
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];

        if (!p->by_cols || (trained_alone && !tsri_unit_trains(p))) {
            continue;
        }
        for (int r = 0; r < u->levels.ranks[3]; r++) {
            TSR_TRY(copy_chunk(u, p, m, r, stream));
        }
    }
    return TSR_OK;
}

tsr_status tsri_unit_unfold(unit *u, const tsri_mem *folded, const tsri_mem *slot, tsr_dtype type,
                            tsr_stream *stream)
{
    const move m = {folded, slot, type, true};

    TSR_TRY(copy_all(u, &m, false, stream));
    return TSR_OK;
}

tsr_status tsri_unit_fold(unit *u, const tsri_mem *slot, const tsri_mem *folded, tsr_dtype type,
                          tsr_stream *stream)
{
    const move m = {folded, slot, type, false};

    TSR_TRY(copy_all(u, &m, true, stream));
    return TSR_OK;
}
