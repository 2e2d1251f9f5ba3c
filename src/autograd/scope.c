/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file scope.c
 * What the tape remembers while it records: scopes and the values they hold, nodes, names.
 *
 * Every value has one hold, at the depth of the scope that made it. Leaving a scope drops the holds
 * of its depth, except the one on its result, which moves one scope out; a scope that hands a value
 * on from part to part lets go of it behind the next part. A copy of a value in another layout is
 * held where the value is, so that later users find it instead of moving again; but inside a
 * checkpointed part's first run it is made without a gradient, and of no use behind the part.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    FIRST_NAMES = 64 /* a power of two, as are all sizes of the table */
};

/* Where text is in the table, or belongs. */
static char **find_name(char **names, int capacity, const char *text)
{
    const uint64_t mask = (uint64_t)capacity - 1;
    uint64_t at = tsri_hash_text(text) & mask;

    while (names[at] != NULL && strcmp(names[at], text) != 0) {
        at = (at + 1) & mask;
    }
    return &names[at];
}

/* At most half full, so that a search ends soon. */
static tsr_status widen_names(tsr_tape *tape)
{
    const int wider = tape->name_capacity > 0 ? 2 * tape->name_capacity : FIRST_NAMES;
    char **names = NULL;

    if (2 * (tape->name_count + 1) <= tape->name_capacity) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)wider, sizeof(*names), &names));
    for (int i = 0; i < tape->name_capacity; i++) {
        if (tape->names[i] != NULL) {
            *find_name(names, wider, tape->names[i]) = tape->names[i];
        }
    }
    tsri_free(&tape->names);
    tape->names = names;
    tape->name_capacity = wider;
    return TSR_OK;
}

tsr_status tsri_tape_intern(tsr_tape *tape, const char *text, const char **out)
{
    TSR_TRY(widen_names(tape));
    char **place = find_name(tape->names, tape->name_capacity, text);

    if (*place == NULL) {
        TSR_TRY(tsri_strdup(text, place));
        tape->name_count++;
    }
    *out = *place;
    return TSR_OK;
}

tsr_status tsri_tape_enter(tsr_tape *tape, const char *path)
{
    const char *name = NULL;

    TSR_TRY(tsri_tape_intern(tape, path, &name));
    TSR_TRY(tsri_grow(&tape->frame->scopes, &tape->frame->scope_capacity, tape->frame->depth + 1,
                      sizeof(tape->frame->scopes[0])));
    tape->frame->scopes[tape->frame->depth++] = name;
    return TSR_OK;
}

static void drop_hold(tsri_hold *hold)
{
    tsr_dtensor_release(&hold->source);
    tsr_dtensor_release(&hold->value);
}

void tsri_tape_leave(tsr_tape *tape, tsr_dtensor *keep)
{
    int kept = 0;

    for (int i = 0; i < tape->frame->hold_count; i++) {
        tsri_hold *hold = &tape->frame->holds[i];

        if (hold->depth >= tape->frame->depth && hold->value != keep) {
            drop_hold(hold);
            continue;
        }
        if (hold->depth >= tape->frame->depth) {
            hold->depth = tape->frame->depth > 0 ? tape->frame->depth - 1 : 0;
        }
        tape->frame->holds[kept++] = *hold;
    }
    tape->frame->hold_count = kept;
    if (tape->frame->depth > 0) {
        tape->frame->depth--;
    }
}

void tsri_tape_let_go(tsr_tape *tape, const tsr_dtensor *value)
{
    int kept = 0;

    for (int i = 0; i < tape->frame->hold_count; i++) {
        tsri_hold *hold = &tape->frame->holds[i];

        if (hold->depth == tape->frame->depth && (hold->value == value || hold->source == value)) {
            drop_hold(hold);
            continue;
        }
        tape->frame->holds[kept++] = *hold;
    }
    tape->frame->hold_count = kept;
}

tsr_status tsri_tape_hold(tsr_tape *tape, tsr_dtensor *value, tsr_dtensor *source, int depth)
{
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status,
                 tsri_grow(&tape->frame->holds, &tape->frame->hold_capacity,
                           tape->frame->hold_count + 1, sizeof(tape->frame->holds[0])),
                 release_value);
    tape->frame->holds[tape->frame->hold_count++] =
        (tsri_hold){.value = value,
                    .source = source != NULL ? tsr_dtensor_retain(source) : NULL,
                    .depth = depth};
    return TSR_OK;
release_value:
    tsr_dtensor_release(&value);
    return status;
}

int tsri_tape_copy_depth(const tsr_tape *tape, const tsr_dtensor *source)
{
    const int least =
        tape->frame->keeping != NULL && source->needs_grad ? tape->frame->keeping->depth : 0;

    for (int i = tape->frame->hold_count - 1; i >= 0; i--) {
        const tsri_hold *hold = &tape->frame->holds[i];

        if (hold->value == source) {
            return hold->depth > least ? hold->depth : least;
        }
    }
    return tape->frame->depth;
}

tsr_dtensor *tsri_tape_find_copy(const tsr_tape *tape, const tsr_dtensor *source,
                                 const tsr_layout *layout)
{
    for (int i = tape->frame->hold_count - 1; i >= 0; i--) {
        const tsri_hold *hold = &tape->frame->holds[i];

        if (hold->source == source && tsr_layout_equal(&hold->value->layout, layout)) {
            return hold->value;
        }
    }
    return NULL;
}

tsr_status tsri_tape_insert(tsr_tape *tape, const char *path, const char *op, bool backward,
                            const tsr_dtensor *from, const tsr_layout *to)
{
    TSR_TRY(tsri_grow(&tape->frame->inserted, &tape->frame->inserted_capacity,
                      tape->frame->inserted_count + 1, sizeof(tape->frame->inserted[0])));
    tape->frame->inserted[tape->frame->inserted_count++] =
        (tsri_inserted){.path = path,
                        .op = op,
                        .backward = backward || tsri_tape_in_backward(tape),
                        .from = from->layout,
                        .to = *to,
                        .bytes = tsri_dtensor_bytes(from)};
    return TSR_OK;
}

void tsri_node_clear(tsri_node *node)
{
    for (int i = 0; i < TSRI_OP_MAX_IN; i++) {
        tsr_dtensor_release(&node->call.in[i]);
        tsri_param_release(&node->param[i]);
    }
    for (int i = 0; i < node->call.saved_count; i++) {
        tsr_dtensor_release(&node->call.saved[i]);
    }
    for (int i = 0; i < node->grad_count; i++) {
        tsr_dtensor_release(&node->grad[i]);
    }
    node->grad_count = 0;
    node->call.saved_count = 0;
    tsri_checkpoint_free(&node->checkpoint);
    tsr_dtensor_release(&node->call.out);
    tsr_dtensor_release(&node->call.dout);
}

void tsri_tape_drop_holds(tsr_tape *tape)
{
    for (int i = 0; i < tape->frame->hold_count; i++) {
        drop_hold(&tape->frame->holds[i]);
    }
    tape->frame->hold_count = 0;
    tape->frame->depth = 0;
}

tsr_status tsri_tape_node(tsr_tape *tape, tsri_node **out, int *index_out)
{
    tsri_node *node = NULL;

    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    TSR_TRY(tsri_grow(&tape->frame->nodes, &tape->frame->node_capacity, tape->frame->node_count + 1,
                      sizeof(tape->frame->nodes[0])));
    TSR_TRY(tsri_alloc(1, sizeof(*node), &node));
    for (int i = 0; i < TSRI_OP_MAX_IN; i++) {
        node->source[i] = -1;
    }
    *index_out = tape->frame->node_count;
    tape->frame->nodes[tape->frame->node_count++] = node;
    *out = node;
    return TSR_OK;
}

tsr_status tsri_tape_marker(tsr_tape *tape, tsri_marker_fn fn, void *context)
{
    tsri_node *node = NULL;
    int index = 0;

    TSR_TRY(tsri_step_check_forward(tape, "marker"));
    if (tape->frame->no_grad) {
        if (tape->frame->keeping != NULL) {
            tape->frame->keeping->has_markers = true;
        }
        return TSR_OK;
    }
    TSR_TRY(tsri_tape_node(tape, &node, &index));
    node->marker = fn;
    node->marker_context = context;
    return TSR_OK;
}

tsr_status tsri_tape_count_call(tsr_tape *tape, const char *path, uint64_t *out)
{
    for (int i = 0; i < tape->frame->counter_count; i++) {
        if (tape->frame->counters[i].path == path) {
            *out = tape->frame->counters[i].calls++;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&tape->frame->counters, &tape->frame->counter_capacity,
                      tape->frame->counter_count + 1, sizeof(tape->frame->counters[0])));
    tape->frame->counters[tape->frame->counter_count++] =
        (tsri_call_counter){.path = path, .calls = 1};
    *out = 0;
    return TSR_OK;
}
