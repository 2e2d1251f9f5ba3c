/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The race check: which accesses of device memory does no event path order?
 *
 * An epoch is the number of an operation on its stream kind, counted on when a stream is reopened.
 * clock[t][s] is the newest epoch of s that everything enqueued on t from now on comes after;
 * host[s] is the same for the host, and every operation takes it over when it is enqueued. An
 * access (s, e) is ordered before an operation of t if and only if clock[t][s] >= e.
 *
 * A buffer's ranges are disjoint sorted segments, each with its last write and the last read of
 * each stream. That is enough: an access that is ordered after the last write is ordered after all
 * that the last write was checked against. The clocks that events carry are kept as points at which
 * a stream's clock changed, and forgotten once every stream is past them. */
#include "backend/backend_priv.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 400

typedef struct vector {
    uint64_t at[TSRI_STREAM_COUNT];
} vector;

/* Who accessed; epoch 0: nobody. */
typedef struct mark {
    uint64_t epoch;
    const char *label;
    tsri_entry_kind kind;
    int op;
} mark;

typedef struct segment {
    size_t begin, end;
    mark write;
    tsri_stream_kind write_stream;
    mark reads[TSRI_STREAM_COUNT];
} segment;

struct tsri_race_buffer {
    struct tsri_race_buffer *previous, *next;
    tsr_buffer *buffer;
    segment *segments;
    int count, capacity;
};
typedef struct tsri_race_buffer race_buffer;

/* From operation `from` on, the stream's clock was `clock`. */
typedef struct point {
    uint64_t from;
    vector clock;
} point;

typedef struct history {
    point *points;
    int count, capacity;
    bool changed; /* the clock gained something since the newest point */
} history;

struct tsri_race {
    vector clock[TSRI_STREAM_COUNT];
    vector host;
    uint64_t base[TSRI_STREAM_COUNT]; /* epochs of earlier streams of the kind */
    history history[TSRI_STREAM_COUNT];
    race_buffer *buffers;
    int wait_count, drop_wait, found_count;
    bool is_pending;
    char pending[MESSAGE_BYTES];
};

/* ---- clocks ---- */

static bool join(vector *into, const vector *from)
{
    bool gained = false;
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        if (from->at[s] > into->at[s]) {
            into->at[s] = from->at[s];
            gained = true;
        }
    }
    return gained;
}

/* Points that no stream can ask for any more: a later one is already behind every stream. */
static void forget_points(tsri_race *race, tsri_stream_kind kind)
{
    history *past = &race->history[kind];
    uint64_t floor = UINT64_MAX;
    int dropped = 0;
    for (int t = 0; t < TSRI_STREAM_COUNT; t++) {
        const uint64_t known = race->clock[t].at[kind] > race->host.at[kind]
                                   ? race->clock[t].at[kind]
                                   : race->host.at[kind];
        floor = known < floor ? known : floor;
    }
    while (dropped + 1 < past->count && past->points[dropped + 1].from <= floor) {
        dropped++;
    }
    past->count -= dropped;
    memmove(past->points, past->points + dropped, (size_t)past->count * sizeof(point));
}

static tsr_status remember_point(tsri_race *race, tsri_stream_kind kind, uint64_t epoch)
{
    history *past = &race->history[kind];
    if (past->count == past->capacity && past->count > 0) {
        forget_points(race, kind);
    }
    TSR_TRY(tsri_grow(&past->points, &past->capacity, past->count + 1, sizeof(point)));
    past->points[past->count++] = (point){epoch, race->clock[kind]};
    past->changed = false;
    return TSR_OK;
}

/* The clock of stream kind at its operation epoch. */
static vector clock_at(const tsri_race *race, tsri_stream_kind kind, uint64_t epoch)
{
    const history *past = &race->history[kind];
    vector clock = {{0}};
    int low = 0;
    int high = past->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (past->points[middle].from <= epoch) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low > 0) {
        clock = past->points[low - 1].clock;
    }
    clock.at[kind] = epoch;
    return clock;
}

/* ---- segments ---- */

static int first_ending_after(const race_buffer *ranges, size_t offset)
{
    int low = 0;
    int high = ranges->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (ranges->segments[middle].end <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static tsr_status insert_segment(race_buffer *ranges, int index, const segment *added)
{
    const segment copy = *added;
    TSR_TRY(tsri_grow(&ranges->segments, &ranges->capacity, ranges->count + 1, sizeof(segment)));
    memmove(ranges->segments + index + 1, ranges->segments + index,
            (size_t)(ranges->count - index) * sizeof(segment));
    ranges->segments[index] = copy;
    ranges->count++;
    return TSR_OK;
}

static tsr_status split_at(race_buffer *ranges, size_t offset)
{
    const int i = first_ending_after(ranges, offset);
    if (i == ranges->count || ranges->segments[i].begin >= offset) {
        return TSR_OK;
    }
    TSR_TRY(insert_segment(ranges, i, &ranges->segments[i]));
    ranges->segments[i].end = offset;
    ranges->segments[i + 1].begin = offset;
    return TSR_OK;
}

static tsr_status put_write(race_buffer *ranges, size_t begin, size_t end, tsri_stream_kind stream,
                            const mark *who)
{
    const segment written = {.begin = begin, .end = end, .write = *who, .write_stream = stream};
    TSR_TRY(split_at(ranges, begin));
    TSR_TRY(split_at(ranges, end));
    const int first = first_ending_after(ranges, begin);
    int last = first;
    while (last < ranges->count && ranges->segments[last].begin < end) {
        last++;
    }
    if (last == first) {
        TSR_TRY(insert_segment(ranges, first, &written));
        return TSR_OK;
    }
    ranges->segments[first] = written;
    memmove(ranges->segments + first + 1, ranges->segments + last,
            (size_t)(ranges->count - last) * sizeof(segment));
    ranges->count -= last - first - 1;
    return TSR_OK;
}

/* Make segment index begin at `at`: a gap there becomes a segment that nobody wrote. */
static tsr_status fill_gap(race_buffer *ranges, int index, size_t at, size_t end)
{
    const bool is_last = index == ranges->count || ranges->segments[index].begin >= end;
    const segment gap = {.begin = at, .end = is_last ? end : ranges->segments[index].begin};
    if (index < ranges->count && ranges->segments[index].begin == at) {
        return TSR_OK;
    }
    TSR_TRY(insert_segment(ranges, index, &gap));
    return TSR_OK;
}

static tsr_status put_read(race_buffer *ranges, size_t begin, size_t end, tsri_stream_kind stream,
                           const mark *who)
{
    TSR_TRY(split_at(ranges, begin));
    TSR_TRY(split_at(ranges, end));
    int i = first_ending_after(ranges, begin);
    for (size_t at = begin; at < end; i++) {
        TSR_TRY(fill_gap(ranges, i, at, end));
        ranges->segments[i].reads[stream] = *who;
        at = ranges->segments[i].end;
    }
    return TSR_OK;
}

/* ---- conflicts ---- */

static const char *mark_name(const mark *who)
{
    switch (who->kind) {
    case TSRI_ENTRY_KERNEL:
        return tsrk_name((tsrk_id)who->op);
    case TSRI_ENTRY_COLLECTIVE:
        return tsri_coll_name((tsri_coll_kind)who->op);
    case TSRI_ENTRY_COPY:
        return tsri_copy_name((tsri_copy_kind)who->op);
    case TSRI_ENTRY_RELEASE:
        return "release";
    case TSRI_ENTRY_ALLOC:
    case TSRI_ENTRY_WAIT:
    case TSRI_ENTRY_SYNC:
    case TSRI_ENTRY_GROUP:
    default:
        return "?";
    }
}

static const char *label_or_unknown(const char *label)
{
    return label == NULL ? "?" : label;
}

/* The access that [begin, end) would race with, or NULL; *stream_out: its stream. */
static const mark *find_conflict(const race_buffer *ranges, size_t begin, size_t end, bool is_write,
                                 const vector *clock, const segment **segment_out,
                                 tsri_stream_kind *stream_out)
{
    for (int i = first_ending_after(ranges, begin);
         i < ranges->count && ranges->segments[i].begin < end; i++) {
        const segment *held = &ranges->segments[i];
        *segment_out = held;
        if (held->write.epoch > clock->at[held->write_stream]) {
            *stream_out = held->write_stream;
            return &held->write;
        }
        for (int s = 0; is_write && s < TSRI_STREAM_COUNT; s++) {
            if (held->reads[s].epoch > clock->at[s]) {
                *stream_out = (tsri_stream_kind)s;
                return &held->reads[s];
            }
        }
    }
    return NULL;
}

static void describe(char *text, const tsr_buffer *buffer, const segment *held, const mark *before,
                     tsri_stream_kind before_stream, const char *now)
{
    (void)snprintf(text, MESSAGE_BYTES,
                   "race in buffer %llu (%s): %s is not ordered after %s of %s (%s:%llu), which "
                   "%s bytes %zu..%zu",
                   (unsigned long long)buffer->id, label_or_unknown(buffer->label), now,
                   mark_name(before), label_or_unknown(before->label),
                   tsri_stream_name(before_stream), (unsigned long long)before->epoch,
                   before == &held->write ? "writes" : "reads", held->begin, held->end);
}

static tsr_status check_access(tsri_race *race, tsri_stream_kind stream, const mark *who,
                               const tsri_access *access)
{
    const segment *held = NULL;
    tsri_stream_kind before_stream = TSRI_STREAM_COMPUTE;
    if (access->bytes == 0 || access->buffer->race == NULL) {
        return TSR_OK;
    }
    const race_buffer *ranges = access->buffer->race;
    const mark *before = find_conflict(ranges, access->offset, access->offset + access->bytes,
                                       access->write, &race->clock[stream], &held, &before_stream);
    if (before == NULL) {
        return TSR_OK;
    }
    char now[MESSAGE_BYTES / 2];
    char text[MESSAGE_BYTES];
    (void)snprintf(now, sizeof(now), "%s of %s (%s:%llu), which %s bytes %zu..%zu,", mark_name(who),
                   label_or_unknown(who->label), tsri_stream_name(stream),
                   (unsigned long long)who->epoch, access->write ? "writes" : "reads",
                   access->offset, access->offset + access->bytes);
    describe(text, access->buffer, held, before, before_stream, now);
    race->found_count++;
    return TSR_RAISE(TSR_ERR_INTERNAL, "%s", text);
}

static tsr_status put_access(tsri_race *race, tsri_stream_kind stream, const mark *who,
                             const tsri_access *access)
{
    const size_t end = access->offset + access->bytes;
    if (access->bytes == 0) {
        return TSR_OK; /* and perhaps no buffer */
    }
    race_buffer *ranges = access->buffer->race;
    if (ranges == NULL) {
        TSR_TRY(tsri_alloc(1, sizeof(*ranges), &ranges));
        ranges->buffer = access->buffer;
        ranges->next = race->buffers;
        if (race->buffers != NULL) {
            race->buffers->previous = ranges;
        }
        race->buffers = ranges;
        access->buffer->race = ranges;
    }
    if (access->write) {
        TSR_TRY(put_write(ranges, access->offset, end, stream, who));
    } else {
        TSR_TRY(put_read(ranges, access->offset, end, stream, who));
    }
    return TSR_OK;
}

static void drop_ranges(tsri_race *race, race_buffer *ranges)
{
    if (ranges->previous != NULL) {
        ranges->previous->next = ranges->next;
    } else {
        race->buffers = ranges->next;
    }
    if (ranges->next != NULL) {
        ranges->next->previous = ranges->previous;
    }
    ranges->buffer->race = NULL;
    tsri_free(&ranges->segments);
    tsri_free(&ranges);
}

/* ---- what the recorder calls ---- */

tsr_status tsri_race_create(int drop_wait, tsri_race **out)
{
    tsri_race *race = NULL;
    TSR_TRY(tsri_alloc(1, sizeof(*race), &race));
    race->drop_wait = drop_wait;
    *out = race;
    return TSR_OK;
}

void tsri_race_destroy(tsri_race **race)
{
    if (*race == NULL) {
        return;
    }
    while ((*race)->buffers != NULL) {
        drop_ranges(*race, (*race)->buffers);
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_free(&(*race)->history[s].points);
    }
    tsri_free(race);
}

tsr_status tsri_race_op(tsri_race *race, tsr_stream *stream, const tsri_entry *entry,
                        const tsri_access *access, int access_count)
{
    const tsri_stream_kind t = stream->kind;
    const mark who = {race->base[t] + stream->enqueued, entry->label, entry->kind, entry->op};
    history *past = &race->history[t];
    past->changed = join(&race->clock[t], &race->host) || past->changed;
    race->clock[t].at[t] = who.epoch;
    if (past->changed || past->count == 0) {
        TSR_TRY(remember_point(race, t, who.epoch));
    }
    tsr_status status = TSR_OK;
    for (int i = 0; i < access_count; i++) {
        TSR_TRY_GOTO(status, check_access(race, t, &who, &access[i]), undo);
    }
    for (int i = 0; i < access_count; i++) {
        TSR_TRY_GOTO(status, put_access(race, t, &who, &access[i]), undo);
    }
    return TSR_OK;
undo:
    tsri_race_op_undo(race, stream);
    return status;
}

/* Otherwise a sync would order the host after an operation that is yet to come. */
void tsri_race_op_undo(tsri_race *race, const tsr_stream *stream)
{
    race->clock[stream->kind].at[stream->kind] = race->base[stream->kind] + stream->enqueued - 1;
}

tsr_status tsri_race_wait(tsri_race *race, tsr_stream *stream, tsr_event event)
{
    const tsri_stream_kind t = stream->kind;
    const tsri_stream_kind s = event.stream->kind;
    const uint64_t epoch = race->base[s] + event.seq;
    race->wait_count++;
    if (race->wait_count == race->drop_wait || race->clock[t].at[s] >= epoch) {
        return TSR_OK;
    }
    const vector carried = clock_at(race, s, epoch);
    race->history[t].changed = join(&race->clock[t], &carried) || race->history[t].changed;
    return TSR_OK;
}

void tsri_race_host_join(tsri_race *race, tsri_stream_kind kind)
{
    (void)join(&race->host, &race->clock[kind]);
}

void tsri_race_host_sync(tsri_race *race, tsr_event event)
{
    const tsri_stream_kind s = event.stream->kind;
    const vector carried = clock_at(race, s, race->base[s] + event.seq);
    (void)join(&race->host, &carried);
}

void tsri_race_stream_open(tsri_race *race, tsri_stream_kind kind)
{
    race->base[kind] = race->clock[kind].at[kind];
}

void tsri_race_release(tsri_race *race, tsr_buffer *buffer)
{
    const segment *held = NULL;
    tsri_stream_kind before_stream = TSRI_STREAM_COMPUTE;
    if (buffer->race == NULL) {
        return;
    }
    const mark *before =
        find_conflict(buffer->race, 0, buffer->bytes, true, &race->host, &held, &before_stream);
    if (before != NULL) {
        race->found_count++;
        race->is_pending = true;
        describe(race->pending, buffer, held, before, before_stream, "release by the host");
        tsri_log(TSRI_LOG_ERROR, "%s", race->pending);
    }
    drop_ranges(race, buffer->race);
}

tsr_status tsri_race_pending(tsri_race *race)
{
    if (!race->is_pending) {
        return TSR_OK;
    }
    race->is_pending = false;
    return TSR_RAISE(TSR_ERR_INTERNAL, "%s", race->pending);
}

int tsri_race_found_count(const tsri_race *race)
{
    return race->found_count;
}
