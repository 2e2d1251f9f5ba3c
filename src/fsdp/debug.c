/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Looking at a run: parameters without a gradient. */
#include "fsdp_priv.h"

#include "base/base.h"

int tsri_engine_unreached(const engine *e, const char **names, int capacity)
{
    int count = 0;

    for (int i = 0; i < e->unit_count; i++) {
        for (int k = 0; k < e->units[i]->param_count; k++) {
            const unit_param *p = &e->units[i]->params[k];

            if (!tsri_unit_trains(p) || p->reached) {
                continue;
            }
            if (names != NULL && count < capacity) {
                names[count] = p->param->name;
            }
            count++;
        }
    }
    return count;
}

int tsr_params_without_gradient(tsr_module *model, const char **names, int capacity)
{
    TSRI_WANT_OR(model, 0);

    const engine *e = tsri_engine_of(model);

    return e != NULL ? tsri_engine_unreached(e, names, capacity) : 0;
}
