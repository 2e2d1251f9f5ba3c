/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Looking at a run: parameters without a gradient, and whether replicas still agree. */
#include "fsdp_priv.h"

#include "base/base.h"

int tsri_engine_unreached(const engine *e, const char **names, int capacity)
{
    int count = 0;

    for (int i = 0; i < e->unit_count; i++) {
        for (int k = 0; k < e->units[i]->param_count; k++) {
            const unit_param *p = &e->units[i]->params[k];

            if (tsri_unit_trains(p) && !p->reached) {
                if (count < capacity) {
                    names[count] = p->param->name;
                }
                count++;
            }
        }
    }
    return count;
}
