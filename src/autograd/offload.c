/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file offload.c
 * Inputs of checkpointed parts that wait for backward in the host pool.
 *
 *   forward   compute   | part i | part i+1 ......... | part i+2
 *             copy               | inputs of i down   | inputs of i+1 down
 *             memory of i's inputs goes back here ----^
 *   backward  compute   | part i+1 again, its gradients | part i again
 *             copy      | inputs of i up                | inputs of i-1 up
 *
 * Device memory goes back one part late in host order, so that part i+1 does not take memory whose
 * copy is under way. What the last part would have given back is there when backward begins, and
 * is not copied up. All copies are on one stream, so those of a host slot are in order by that.
 */
#include "autograd_priv.h"

/* A slot of exactly bytes, so that a later step finds what the first one made. */
static tsr_status take_slot(tsr_tape *tape, size_t bytes, tsri_host_slot **out)
{
    tsri_host_slot *slot = NULL;
    tsr_status status = TSR_OK;

    for (int i = 0; i < tape->slot_count; i++) {
        if (!tape->slots[i]->busy && tape->slots[i]->buffer->bytes == bytes) {
            tape->slots[i]->busy = true;
            *out = tape->slots[i];
            return TSR_OK;
        }
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    TSR_TRY(tsri_grow(&tape->slots, &tape->slot_capacity, tape->slot_count + 1,
                      sizeof(tape->slots[0])));
    TSR_TRY(tsri_alloc(1, sizeof(*slot), &slot));
    TSR_TRY_GOTO(status,
                 tsri_comm_host_buffer(tape->comm, bytes, TSRI_MEM_ACTIVATION, "offloaded inputs",
                                       &slot->buffer),
                 free_slot);
    slot->busy = true;
    tape->slots[tape->slot_count++] = slot;
    *out = slot;
    return TSR_OK;
free_slot:
    tsri_free(&slot);
    return status;
}

static void give_slot(tsri_away *away)
{
    if (away->slot != NULL) {
        away->slot->busy = false;
        away->slot = NULL;
    }
}

/* Copy value down or up, on the copy stream; *ready is the end of that. */
static tsr_status copy(const tsr_tape *tape, const char *path, const tsr_dtensor *value,
                       const tsri_host_slot *slot, bool up, tsr_event *ready)
{
    tsr_stream *stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COPY);
    const size_t bytes = tsri_dtensor_bytes(value);
    tsr_buffer *buffer = tsri_dtensor_buffer(value);
    const size_t offset = tsri_dtensor_buffer_offset(value);

    if (up) {
        TSR_TRY(tsri_copy(buffer, offset, slot->buffer, 0, bytes, path, stream));
    } else {
        TSR_TRY(tsri_copy(slot->buffer, 0, buffer, offset, bytes, path, stream));
    }
    *ready = tsri_event_record(stream);
    return TSR_OK;
}

/* ---- down ---- */

/* Nobody but the tape's scopes and node keeps value, so its memory goes when it leaves. */
static bool can_leave(const tsr_tape *tape, const tsri_node *node, const tsr_dtensor *value)
{
    int owners = 0;

    for (int i = 0; i < node->call.in_count; i++) {
        owners += node->call.in[i] == value;
    }
    for (int i = 0; i < tape->frame->hold_count; i++) {
        owners += tape->frame->holds[i].value == value;
        owners += tape->frame->holds[i].source == value;
    }
    return value->param == NULL && value->local_count > 0 && value->storage != NULL &&
           value->storage->arena != NULL && value->storage->owners == 1 && value->owners == owners;
}

/* What is leaving has left. */
static void let_go(tsr_tape *tape)
{
    tsri_checkpoint *checkpoint = tape->frame->leaving;

    tape->frame->leaving = NULL;
    for (int i = 0; checkpoint != NULL && i < TSRI_OP_MAX_IN; i++) {
        tsri_away *away = &checkpoint->away[i];

        if (away->state == TSRI_AWAY_LEAVING) {
            tsri_storage_drop(&away->storage, away->ready);
            away->state = TSRI_AWAY_GONE;
        }
    }
}

tsr_status tsri_offload_inputs(tsr_tape *tape, tsri_node *node)
{
    tsr_stream *stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COPY);
    bool waited = false;

    let_go(tape);
    for (int i = 0; i < node->call.in_count; i++) {
        tsri_away *away = &node->checkpoint->away[i];
        tsr_dtensor *value = node->call.in[i];

        if (!can_leave(tape, node, value)) {
            continue;
        }
        if (!waited) {
            TSR_TRY(tsri_stream_wait(
                stream, tsri_event_record(tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE))));
            waited = true;
        }
        TSR_TRY(take_slot(tape, tsri_dtensor_bytes(value), &away->slot));
        TSR_TRY(copy(tape, node->call.path, value, away->slot, false, &away->ready));
        away->storage = tsri_dtensor_take_storage(value);
        away->state = TSRI_AWAY_LEAVING;
        tape->frame->leaving = node->checkpoint;
    }
    return TSR_OK;
}

/* ---- up ---- */

/* Begin to bring input i of node back. */
static tsr_status begin_return(tsr_tape *tape, tsri_node *node, int i)
{
    tsri_away *away = &node->checkpoint->away[i];
    tsr_dtensor *value = node->call.in[i];

    if (away->state == TSRI_AWAY_LEAVING) {
        tsri_dtensor_put_storage(value, &away->storage);
    } else {
        TSR_TRY(tsri_dtensor_refill(value, TSRI_MEM_ACTIVATION, node->call.path,
                                    tsri_comm_stream(tape->comm, TSRI_STREAM_COPY)));
        TSR_TRY(copy(tape, node->call.path, value, away->slot, true, &away->ready));
    }
    give_slot(away);
    away->state = TSRI_AWAY_BACK;
    return TSR_OK;
}

/* Input i of node is there for the compute stream. */
static tsr_status end_return(tsr_tape *tape, tsri_node *node, int i)
{
    tsri_away *away = &node->checkpoint->away[i];

    if (away->state == TSRI_AWAY_HERE) {
        return TSR_OK;
    }
    if (away->state != TSRI_AWAY_BACK) {
        TSR_TRY(begin_return(tape, node, i));
    }
    TSR_TRY(tsri_stream_wait(tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE), away->ready));
    away->state = TSRI_AWAY_HERE;
    return TSR_OK;
}

static bool is_away(const tsri_node *node, int i)
{
    return node->checkpoint != NULL && node->checkpoint->away[i].state != TSRI_AWAY_HERE;
}

/* The inputs of the next part below the newest node begin to come back. */
static tsr_status look_ahead(tsr_tape *tape)
{
    tsri_node *node = NULL;

    for (int n = tape->frame->node_count - 2; n >= 0 && node == NULL; n--) {
        for (int i = 0; i < tape->frame->nodes[n]->call.in_count; i++) {
            node = is_away(tape->frame->nodes[n], i) ? tape->frame->nodes[n] : node;
        }
    }
    for (int i = 0; node != NULL && i < node->call.in_count; i++) {
        if (node->checkpoint->away[i].state == TSRI_AWAY_GONE) {
            TSR_TRY(begin_return(tape, node, i));
        }
    }
    return TSR_OK;
}

tsr_status tsri_offload_return(tsr_tape *tape, tsri_node *node)
{
    if (tape->frame->leaving == node->checkpoint) {
        tape->frame->leaving = NULL;
    }
    for (int i = 0; i < node->call.in_count; i++) {
        TSR_TRY(end_return(tape, node, i));
    }
    if (tape->slot_count > 0) {
        TSR_TRY(look_ahead(tape));
    }
    return TSR_OK;
}

static tsr_status return_value(tsr_tape *tape, tsri_node *node, const tsr_dtensor *value)
{
    for (int i = 0; i < node->call.in_count; i++) {
        if (node->call.in[i] == value && is_away(node, i)) {
            TSR_TRY(end_return(tape, node, i));
        }
    }
    return TSR_OK;
}

tsr_status tsri_offload_use(tsr_tape *tape, const tsr_dtensor *value)
{
    if (value->storage != NULL || value->param != NULL || tape->slot_count == 0) {
        return TSR_OK;
    }
    for (int n = tape->frame->node_count - 1; n >= 0 && value->storage == NULL; n--) {
        TSR_TRY(return_value(tape, tape->frame->nodes[n], value));
    }
    return TSR_OK;
}

/* ---- end ---- */

void tsri_offload_forget(tsri_checkpoint *checkpoint)
{
    for (int i = 0; i < TSRI_OP_MAX_IN; i++) {
        tsri_away *away = &checkpoint->away[i];

        tsri_storage_drop(&away->storage, away->ready);
        give_slot(away);
    }
}

void tsri_offload_close(tsr_tape *tape)
{
    if (tape->slot_count > 0) {
        (void)tsri_stream_sync(tsri_comm_stream(tape->comm, TSRI_STREAM_COPY));
    }
    for (int i = 0; i < tape->slot_count; i++) {
        tsri_buffer_release(&tape->slots[i]->buffer);
        tsri_free(&tape->slots[i]);
    }
    tsri_free(&tape->slots);
    tape->slot_count = 0;
}
