/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_redistribute.c
 * Redistribution asked for by the program; the work is that of tsri_op_move.
 */
#include "autograd_priv.h"

tsr_status tsr_op_redistribute(tsr_tape *tape, tsr_dtensor *x, const tsr_layout *layout,
                               tsr_dtensor **out)
{
    TSRI_WANT(tape, x, layout, out);

    bool same = layout->mesh == x->layout.mesh && layout->ndim == x->layout.ndim;

    for (int d = 0; same && d < layout->ndim; d++) {
        same = layout->shape[d] == x->layout.shape[d];
    }
    if (!same) {
        char where[TSRI_WHERE_BYTES];
        char from[TSRI_WHERE_BYTES];
        char to[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: %s to %s",
                         tsri_where("redistribute", tsri_tape_path(tape), where, sizeof(where)),
                         tsr_layout_format(&x->layout, from, sizeof(from)),
                         tsr_layout_format(layout, to, sizeof(to)));
    }
    TSR_TRY(tsri_dtensor_check_partial(x, layout));
    if (tsr_layout_equal(&x->layout, layout)) {
        *out = x;
        return TSR_OK;
    }
    TSR_TRY(tsri_op_move(tape, x, layout, NULL, out));
    return TSR_OK;
}
