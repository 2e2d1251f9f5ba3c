/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The ledger as a Chrome trace: complete events ("X") in microseconds, streams as threads. */
#include "plan/trace.h"

#include "base/base.h"

void tsri_trace_begin(tsri_text *text, int rank)
{
    tsri_text_add(text,
                  "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                  "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, "
                  "\"args\": {\"name\": \"rank %d\"}}",
                  rank, rank);
    for (int stream = 0; stream < TSRI_STREAM_COUNT; stream++) {
        tsri_text_add(text,
                      ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, "
                      "\"args\": {\"name\": \"%s\"}}",
                      rank, stream, tsri_stream_name((tsri_stream_kind)stream));
    }
}

static const char *name_of(const tsri_entry *entry)
{
    if (entry->kind == TSRI_ENTRY_KERNEL) {
        return tsrk_name((tsrk_id)entry->op);
    }
    if (entry->kind == TSRI_ENTRY_COLLECTIVE) {
        return tsri_coll_name((tsri_coll_kind)entry->op);
    }
    return tsri_copy_name((tsri_copy_kind)entry->op);
}

static void add_entry(tsri_text *text, const tsri_entry *entry, int rank, double begin_s)
{
    const double micro = 1e6;

    tsri_text_add(text, ",\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, ",
                  name_of(entry), rank, (int)entry->stream);
    tsri_text_add(text, "\"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %d, \"of\": ",
                  (entry->begin_s - begin_s) * micro, (entry->end_s - entry->begin_s) * micro,
                  entry->step);
    tsri_text_add_quoted(text, entry->label != NULL ? entry->label : "");
    if (entry->kind == TSRI_ENTRY_COLLECTIVE) {
        tsri_text_add(text, ", \"axes\": ");
        tsri_text_add_quoted(text, entry->group);
        tsri_text_add(text, ", \"bytes\": %zu, \"sent\": %zu", entry->bytes, entry->sent_bytes);
    }
    tsri_text_add(text, "}}");
}

void tsri_trace_add(tsri_text *text, const tsri_entry *entries, int count, int rank, double begin_s)
{
    for (int i = 0; i < count; i++) {
        const tsri_entry *entry = &entries[i];
        const bool ran = entry->kind == TSRI_ENTRY_KERNEL || entry->kind == TSRI_ENTRY_COLLECTIVE ||
                         entry->kind == TSRI_ENTRY_COPY;

        if (ran && entry->begin_s >= begin_s && entry->end_s >= entry->begin_s) {
            add_entry(text, entry, rank, begin_s);
        }
    }
}

void tsri_trace_end(tsri_text *text)
{
    tsri_text_add(text, "\n]}\n");
}
