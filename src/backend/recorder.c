/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The ledger, and the door to the race check.
 *
 * Entries are in host order. A backend reports the times of an operation from another thread and
 * knows it by stream and seq alone; index[kind][seq - first_seq] is its entry. The lock guards
 * entries and index against those reports. A caller that reads entries has synced the streams whose
 * times it wants, so it takes no lock. */
#include "backend/backend_priv.h"

#include "base/base.h"
#include "base/intern.h"

#include <pthread.h>
#include <string.h>

typedef struct seq_index {
    int *entry; /* [count] */
    int count, capacity;
    uint64_t first_seq; /* of entry[0]; 0: nothing recorded yet */
} seq_index;

struct tsri_ledger {
    tsri_entry *entries;
    int count;
    tsri_intern *strings;
};

struct tsri_recorder {
    pthread_mutex_t lock;
    tsri_recorder_options options;
    tsri_race *race;      /* NULL without race check */
    tsri_intern *strings; /* NULL: entries borrow */
    tsri_entry *entries;
    int count, capacity;
    int step;
    int wait_count;
    seq_index index[TSRI_STREAM_COUNT];
};

static bool has_seq(tsri_entry_kind kind)
{
    return kind == TSRI_ENTRY_KERNEL || kind == TSRI_ENTRY_COLLECTIVE || kind == TSRI_ENTRY_COPY;
}

static tsr_status keep_text(tsri_intern *strings, const char **text)
{
    const void *copy = NULL;
    if (*text != NULL) {
        TSR_TRY(tsri_intern_keep(strings, *text, strlen(*text) + 1, &copy));
        *text = copy;
    }
    return TSR_OK;
}

static tsr_status keep_all(tsri_intern *strings, tsri_entry *entry)
{
    const void *copy = NULL;
    TSR_TRY(keep_text(strings, &entry->label));
    TSR_TRY(keep_text(strings, &entry->group));
    if (entry->members != NULL) {
        TSR_TRY(tsri_intern_keep(strings, entry->members, sizeof(int) * (size_t)entry->group_size,
                                 &copy));
        entry->members = copy;
    }
    return TSR_OK;
}

static tsr_status append_locked(tsri_recorder *recorder, const tsri_entry *entry)
{
    tsri_entry *place = NULL;
    TSR_TRY(tsri_grow(&recorder->entries, &recorder->capacity, recorder->count + 1,
                      sizeof(tsri_entry)));
    if (has_seq(entry->kind)) {
        seq_index *index = &recorder->index[entry->stream];
        TSR_TRY(tsri_grow(&index->entry, &index->capacity, index->count + 1, sizeof(int)));
        if (index->count == 0) {
            index->first_seq = entry->seq;
        }
        index->entry[index->count] = recorder->count;
    }
    place = &recorder->entries[recorder->count];
    *place = *entry;
    place->step = recorder->step;
    if (recorder->strings != NULL) {
        TSR_TRY(keep_all(recorder->strings, place));
    }
    if (has_seq(entry->kind)) {
        recorder->index[entry->stream].count++;
    }
    recorder->count++;
    return TSR_OK;
}

static tsr_status append(tsri_recorder *recorder, const tsri_entry *entry)
{
    if (!recorder->options.ledger) {
        return TSR_OK;
    }
    (void)pthread_mutex_lock(&recorder->lock);
    tsr_status status = append_locked(recorder, entry);
    (void)pthread_mutex_unlock(&recorder->lock);
    if (status != TSR_OK) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

/* ---- what dispatch calls ---- */

tsr_status tsri_recorder_op_begin(tsr_stream *stream, const tsri_entry *entry,
                                  const tsri_access *access, int access_count)
{
    tsri_recorder *recorder = stream->device->recorder;
    tsri_entry filled = *entry;
    tsr_status status = TSR_OK;
    if (recorder == NULL) {
        return TSR_OK;
    }
    filled.stream = stream->kind;
    filled.seq = stream->enqueued;
    TSR_TRY(append(recorder, &filled));
    if (recorder->race != NULL) {
        TSR_TRY_GOTO(status, tsri_race_pending(recorder->race), undo);
        TSR_TRY_GOTO(status, tsri_race_op(recorder->race, stream, &filled, access, access_count),
                     undo);
    }
    return TSR_OK;
undo:
    tsri_recorder_op_undo(stream);
    return status;
}

void tsri_recorder_op_undo(tsr_stream *stream)
{
    tsri_recorder *recorder = stream->device->recorder;
    if (recorder == NULL) {
        return;
    }
    if (recorder->race != NULL) {
        tsri_race_op_undo(recorder->race, stream);
    }
    if (!recorder->options.ledger) {
        return;
    }
    (void)pthread_mutex_lock(&recorder->lock);
    recorder->count--;
    recorder->index[stream->kind].count--;
    (void)pthread_mutex_unlock(&recorder->lock);
}

tsr_status tsri_recorder_wait(tsr_stream *stream, tsr_event event)
{
    tsri_recorder *recorder = stream->device->recorder;
    if (recorder == NULL) {
        return TSR_OK;
    }
    const tsri_entry entry = {.kind = TSRI_ENTRY_WAIT,
                              .stream = stream->kind,
                              .op = (int)event.stream->kind,
                              .seq = event.seq};
    recorder->wait_count++;
    if (recorder->race != NULL) {
        TSR_TRY(tsri_race_pending(recorder->race));
        TSR_TRY(tsri_race_wait(recorder->race, stream, event));
    }
    TSR_TRY(append(recorder, &entry));
    return TSR_OK;
}

void tsri_recorder_host_join(tsr_stream *stream)
{
    const tsri_recorder *recorder = stream->device->recorder;
    if (recorder != NULL && recorder->race != NULL) {
        tsri_race_host_join(recorder->race, stream->kind);
    }
}

tsr_status tsri_recorder_sync(tsr_event event)
{
    tsri_recorder *recorder = event.stream->device->recorder;
    const tsri_entry entry = {
        .kind = TSRI_ENTRY_SYNC, .stream = event.stream->kind, .seq = event.seq};
    if (recorder != NULL) {
        TSR_TRY(append(recorder, &entry));
    }
    return TSR_OK;
}

void tsri_recorder_host_sync(tsr_event event)
{
    const tsri_recorder *recorder = event.stream->device->recorder;
    if (recorder != NULL && recorder->race != NULL) {
        tsri_race_host_sync(recorder->race, event);
    }
}

void tsri_recorder_stream_open(tsr_stream *stream)
{
    tsri_recorder *recorder = stream->device->recorder;
    if (recorder == NULL) {
        return;
    }
    /* A new stream counts from 1 again; times of the old one's entries are final. */
    (void)pthread_mutex_lock(&recorder->lock);
    recorder->index[stream->kind].count = 0;
    (void)pthread_mutex_unlock(&recorder->lock);
    if (recorder->race != NULL) {
        tsri_race_stream_open(recorder->race, stream->kind);
    }
}

static tsri_entry memory_entry(tsri_entry_kind kind, const tsr_buffer *buffer)
{
    return (tsri_entry){
        .kind = kind, .op = (int)buffer->kind, .label = buffer->label, .bytes = buffer->bytes};
}

tsr_status tsri_recorder_alloc(tsr_buffer *buffer)
{
    tsri_recorder *recorder = buffer->device->recorder;
    if (recorder == NULL) {
        return TSR_OK;
    }
    const tsri_entry entry = memory_entry(TSRI_ENTRY_ALLOC, buffer);
    if (recorder->race != NULL) {
        TSR_TRY(tsri_race_pending(recorder->race));
    }
    TSR_TRY(append(recorder, &entry));
    return TSR_OK;
}

tsr_status tsri_recorder_group(const tsr_group *group)
{
    tsri_recorder *recorder = group->device->recorder;
    const int64_t alike[] = {group->axis_mask, group->stream_kind, group->size};
    const tsri_entry entry = {.kind = TSRI_ENTRY_GROUP,
                              .stream = group->stream_kind,
                              .group = group->name,
                              .members = group->world_ranks,
                              .group_size = group->size,
                              .axis_mask = group->axis_mask,
                              .call = tsri_hash(alike, sizeof(alike), 0)};
    if (recorder != NULL && group->size > 1) {
        TSR_TRY(append(recorder, &entry));
    }
    return TSR_OK;
}

void tsri_recorder_release(tsr_buffer *buffer)
{
    tsri_recorder *recorder = buffer->device->recorder;
    if (recorder == NULL) {
        return;
    }
    const tsri_entry entry = memory_entry(TSRI_ENTRY_RELEASE, buffer);
    if (recorder->race != NULL) {
        tsri_race_release(recorder->race, buffer);
    }
    if (append(recorder, &entry) != TSR_OK) {
        tsri_log(TSRI_LOG_WARN, "release of %s left out of the ledger: %s",
                 buffer->label == NULL ? "?" : buffer->label, tsr_error_message());
        tsr_error_clear();
    }
}

/* ---- for the layers above ---- */

tsr_status tsri_recorder_attach(tsr_device *device, const tsri_recorder_options *options)
{
    tsri_recorder *recorder = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc(1, sizeof(*recorder), &recorder));
    recorder->options = *options;
    if (options->own) {
        TSR_TRY_GOTO(status, tsri_intern_create(&recorder->strings), free_recorder);
    }
    if (options->race_check) {
        TSR_TRY_GOTO(status, tsri_race_create(options->drop_wait, &recorder->race), free_strings);
    }
    if (pthread_mutex_init(&recorder->lock, NULL) != 0) {
        status = TSR_RAISE(TSR_ERR_NOMEM, "no lock for the ledger");
        goto free_race;
    }
    tsri_recorder_detach(device);
    device->recorder = recorder;
    return TSR_OK;
free_race:
    tsri_race_destroy(&recorder->race);
free_strings:
    tsri_intern_destroy(&recorder->strings);
free_recorder:
    tsri_free(&recorder);
    return status;
}

void tsri_recorder_detach(tsr_device *device)
{
    tsri_recorder *recorder = device->recorder;
    if (recorder == NULL) {
        return;
    }
    device->recorder = NULL;
    tsri_race_destroy(&recorder->race);
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_free(&recorder->index[s].entry);
    }
    tsri_free(&recorder->entries);
    tsri_intern_destroy(&recorder->strings);
    (void)pthread_mutex_destroy(&recorder->lock);
    tsri_free(&recorder);
}

void tsri_recorder_set_step(tsr_device *device, int step)
{
    if (device->recorder != NULL) {
        device->recorder->step = step;
    }
}

void tsri_recorder_clear(tsr_device *device)
{
    tsri_recorder *recorder = device->recorder;
    if (recorder == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&recorder->lock);
    recorder->count = 0;
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        recorder->index[s].count = 0;
    }
    (void)pthread_mutex_unlock(&recorder->lock);
}

const tsri_entry *tsri_recorder_entries(const tsr_device *device, int *count_out)
{
    const tsri_recorder *recorder = device->recorder;
    *count_out = recorder == NULL ? 0 : recorder->count;
    return recorder == NULL ? NULL : recorder->entries;
}

tsr_status tsri_recorder_take(tsr_device *device, tsri_ledger **out)
{
    tsri_recorder *recorder = device->recorder;
    tsri_intern *strings = NULL;
    tsri_ledger *ledger = NULL;
    tsr_status status = TSR_OK;
    if (recorder == NULL || recorder->strings == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "taking the ledger of a device whose recorder owns none");
    }
    TSR_TRY(tsri_intern_create(&strings));
    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*ledger), &ledger), free_strings);
    *ledger = (tsri_ledger){
        .entries = recorder->entries, .count = recorder->count, .strings = recorder->strings};
    recorder->entries = NULL;
    recorder->capacity = 0;
    recorder->strings = strings;
    tsri_recorder_clear(device);
    *out = ledger;
    return TSR_OK;
free_strings:
    tsri_intern_destroy(&strings);
    return status;
}

const tsri_entry *tsri_ledger_entries(const tsri_ledger *ledger, int *count_out)
{
    *count_out = ledger->count;
    return ledger->entries;
}

void tsri_ledger_destroy(tsri_ledger **pointer)
{
    tsri_ledger *ledger = *pointer;
    *pointer = NULL;
    if (ledger != NULL) {
        tsri_free(&ledger->entries);
        tsri_intern_destroy(&ledger->strings);
        tsri_free(&ledger);
    }
}

int tsri_recorder_wait_count(const tsr_device *device)
{
    return device->recorder == NULL ? 0 : device->recorder->wait_count;
}

int tsri_recorder_race_count(const tsr_device *device)
{
    const tsri_recorder *recorder = device->recorder;
    return recorder == NULL || recorder->race == NULL ? 0 : tsri_race_found_count(recorder->race);
}

size_t tsri_recorder_sent_bytes(const tsr_device *device, unsigned axis_mask)
{
    const tsri_recorder *recorder = device->recorder;
    size_t sum = 0;
    for (int i = 0; recorder != NULL && i < recorder->count; i++) {
        const tsri_entry *entry = &recorder->entries[i];
        if (entry->kind == TSRI_ENTRY_COLLECTIVE && entry->axis_mask == axis_mask) {
            sum += entry->sent_bytes;
        }
    }
    return sum;
}

void tsri_record_time(tsr_device *device, tsri_stream_kind stream, uint64_t seq, double begin_s,
                      double end_s)
{
    tsri_recorder *recorder = device->recorder;
    if (recorder == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&recorder->lock);
    const seq_index *index = &recorder->index[stream];
    if (index->count > 0 && seq >= index->first_seq &&
        seq - index->first_seq < (uint64_t)index->count) {
        tsri_entry *entry = &recorder->entries[index->entry[seq - index->first_seq]];
        entry->begin_s = begin_s;
        entry->end_s = end_s;
    }
    (void)pthread_mutex_unlock(&recorder->lock);
}
