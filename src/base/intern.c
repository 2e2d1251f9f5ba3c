/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* One copy of every byte string that was asked for: a hash table with open addressing. */
#include "base/intern.h"

#include "base/base.h"

#include <string.h>

enum {
    FIRST_SLOTS = 256
};

typedef struct kept {
    char *data; /* NULL: the slot is free */
    size_t bytes;
} kept;

struct tsri_intern {
    kept *slots;
    int slot_count; /* a power of two */
    int count;
};

tsr_status tsri_intern_create(tsri_intern **out)
{
    tsri_intern *set = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc(1, sizeof(*set), &set));
    TSR_TRY_GOTO(status, tsri_alloc(FIRST_SLOTS, sizeof(kept), &set->slots), free_set);
    set->slot_count = FIRST_SLOTS;
    *out = set;
    return TSR_OK;
free_set:
    tsri_free(&set);
    return status;
}

void tsri_intern_destroy(tsri_intern **pointer)
{
    tsri_intern *set = *pointer;
    *pointer = NULL;
    if (set == NULL) {
        return;
    }
    for (int i = 0; i < set->slot_count; i++) {
        tsri_free(&set->slots[i].data);
    }
    tsri_free(&set->slots);
    tsri_free(&set);
}

/* The slot of these bytes, or the free one where they belong. */
static kept *find_slot(kept *slots, int slot_count, const void *data, size_t bytes)
{
    const uint64_t mask = (uint64_t)slot_count - 1;
    uint64_t at = tsri_hash(data, bytes, 0) & mask;
    while (slots[at].data != NULL &&
           (slots[at].bytes != bytes || memcmp(slots[at].data, data, bytes) != 0)) {
        at = (at + 1) & mask;
    }
    return &slots[at];
}

static tsr_status widen_slots(tsri_intern *set)
{
    kept *slots = NULL;
    TSR_TRY(tsri_alloc(2 * (size_t)set->slot_count, sizeof(kept), &slots));
    for (int i = 0; i < set->slot_count; i++) {
        const kept *old = &set->slots[i];
        if (old->data != NULL) {
            *find_slot(slots, 2 * set->slot_count, old->data, old->bytes) = *old;
        }
    }
    tsri_free(&set->slots);
    set->slots = slots;
    set->slot_count *= 2;
    return TSR_OK;
}

tsr_status tsri_intern_keep(tsri_intern *set, const void *data, size_t bytes, const void **out)
{
    kept *slot = find_slot(set->slots, set->slot_count, data, bytes);
    if (slot->data == NULL) {
        if (set->count >= set->slot_count / 2) {
            TSR_TRY(widen_slots(set));
            slot = find_slot(set->slots, set->slot_count, data, bytes);
        }
        TSR_TRY(tsri_alloc(bytes, 1, &slot->data));
        memcpy(slot->data, data, bytes);
        slot->bytes = bytes;
        set->count++;
    }
    *out = slot->data;
    return TSR_OK;
}
