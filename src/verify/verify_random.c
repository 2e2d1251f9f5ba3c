/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Drawing a layout and options from a seed, the same on every rank. A draw that the model's heads
 * forbid is drawn again; nothing else is. */
#include "base/base.h"
#include "base/rng.h"

#include <stdio.h>

#include "verify/verify.h"

enum {
    DRAWS = 64, /* tp = 1 comes up long before */
    MAX_RANKS = 8
};

typedef struct source {
    uint64_t key, next;
} source;

static int draw_below(source *s, int below)
{
    return (int)(tsri_rng_word(s->key, s->next++) % (uint32_t)below);
}

/* A divisor of n. */
static int draw_divisor(source *s, int n)
{
    int divisor = 0;

    do {
        divisor = 1 + draw_below(s, n);
    } while (n % divisor != 0);
    return divisor;
}

int tsri_verify_draw_ranks(uint64_t seed)
{
    source s = {.key = tsri_rng_key(seed, 1, 0, 0)};

    return 1 + draw_below(&s, MAX_RANKS);
}

static void draw_once(source *s, int ranks, tsri_verify_options *out, char *mesh, size_t size)
{
    const int tp = draw_divisor(s, ranks);
    const int shard = draw_divisor(s, ranks / tp);

    (void)snprintf(mesh, size, "replicate=%d,shard=%d,tp=%d", ranks / tp / shard, shard, tp);
    out->mesh = mesh;
    out->preset = tsri_preset_at(draw_below(s, TSRI_PRESET_COUNT));
    out->sequence_parallel = draw_below(s, 2) == 1;
    out->recompute_every = draw_below(s, 3);
    out->reshard = (tsr_reshard)draw_below(s, 3);
    out->prefetch_depth = 1 + draw_below(s, 3);
}

tsr_status tsri_verify_draw(uint64_t seed, int ranks, tsri_verify_options *options, char *mesh,
                            size_t size)
{
    source s = {.key = tsri_rng_key(seed, 2, 0, 0)};
    tsr_status status = TSR_OK;

    for (int i = 0; i < DRAWS; i++) {
        draw_once(&s, ranks, options, mesh, size);
        status = tsri_verify_check(options, ranks);
        if (status != TSR_ERR_PLACEMENT) {
            break;
        }
        tsr_error_clear();
    }
    if (status != TSR_OK) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}
