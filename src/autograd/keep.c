/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file keep.c
 * Operations of a checkpointed part that run once.
 *
 * A part makes the same calls both times. In the first run the results of named operations are
 * kept, in order; in the second run each such call takes the next one instead of its forward, and
 * is recorded as if it had run: its inputs are computed again where its backward wants them. What
 * placement rules insert does not count: whether they move a value again depends on what the tape
 * holds at the moment.
 */
#include "autograd_priv.h"

#include <string.h>

static bool is_named(const tsri_checkpoint *checkpoint, const tsri_op_call *call)
{
    if (checkpoint == NULL || call->by_rule) {
        return false;
    }
    for (int i = 0; i < checkpoint->options.keep_count; i++) {
        if (strcmp(checkpoint->options.keep[i], call->def->name) == 0) {
            return true;
        }
    }
    return false;
}

static void clear(tsri_kept *kept)
{
    tsr_dtensor_release(&kept->out);
    for (int i = 0; i < kept->saved_count; i++) {
        tsr_dtensor_release(&kept->saved[i]);
    }
    kept->saved_count = 0;
}

tsr_status tsri_keep_result(tsri_op_call *call, unsigned needed)
{
    tsri_checkpoint *checkpoint = call->tape->frame->keeping;
    tsri_kept *kept = NULL;

    if (!is_named(checkpoint, call)) {
        return TSR_OK;
    }
    TSR_TRY(tsri_grow(&checkpoint->kept, &checkpoint->kept_capacity, checkpoint->kept_count + 1,
                      sizeof(checkpoint->kept[0])));
    kept = &checkpoint->kept[checkpoint->kept_count];
    *kept =
        (tsri_kept){.def = call->def, .path = call->path, .not_needed = needed & ~call->keep_in};
    /* A value of its own: the one that the first run made may be the part's result. */
    TSR_TRY(tsri_dtensor_view(call->out, &call->out->layout, 0, &kept->out));
    for (int i = 0; i < call->saved_count; i++) {
        kept->saved[i] = tsr_dtensor_retain(call->saved[i]);
    }
    kept->saved_count = call->saved_count;
    checkpoint->kept_count++;
    return TSR_OK;
}

tsr_status tsri_keep_take(tsri_op_call *call, bool *taken_out)
{
    tsri_checkpoint *checkpoint = call->tape->frame->replaying;
    tsri_kept *kept = NULL;

    *taken_out = false;
    if (!is_named(checkpoint, call)) {
        return TSR_OK;
    }
    kept = &checkpoint->kept[checkpoint->kept_taken];
    if (checkpoint->kept_taken == checkpoint->kept_count || kept->def != call->def ||
        kept->path != call->path || !tsr_layout_equal(&kept->out->layout, &call->out_layout)) {
        char where[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_STATE,
                         "%s: a checkpointed part ran other operations the second time",
                         tsri_op_where(call, where, sizeof(where)));
    }
    checkpoint->kept_taken++;
    call->keep_in &= ~kept->not_needed;
    call->out = kept->out;
    kept->out = NULL;
    for (int i = 0; i < kept->saved_count; i++) {
        call->saved[i] = kept->saved[i];
    }
    call->saved_count = kept->saved_count;
    kept->saved_count = 0;
    *taken_out = true;
    return TSR_OK;
}

static bool was_kept(const tsri_checkpoint *checkpoint, const char *name)
{
    for (int i = 0; i < checkpoint->kept_count; i++) {
        if (strcmp(checkpoint->kept[i].def->name, name) == 0) {
            return true;
        }
    }
    return false;
}

tsr_status tsri_keep_check(const tsri_checkpoint *checkpoint, const char *path, bool again)
{
    if (again && checkpoint->kept_taken != checkpoint->kept_count) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "checkpoint in \"%s\": kept %d results, the second run took %d", path,
                         checkpoint->kept_count, checkpoint->kept_taken);
    }
    for (int i = 0; i < checkpoint->options.keep_count; i++) {
        if (!was_kept(checkpoint, checkpoint->options.keep[i])) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "checkpoint in \"%s\" is to keep \"%s\", but runs no operation of "
                             "that name",
                             path, checkpoint->options.keep[i]);
        }
    }
    return TSR_OK;
}

void tsri_keep_forget(tsri_checkpoint *checkpoint)
{
    for (int i = 0; i < checkpoint->kept_count; i++) {
        clear(&checkpoint->kept[i]);
    }
    tsri_free(&checkpoint->kept);
    checkpoint->kept_count = 0;
}
