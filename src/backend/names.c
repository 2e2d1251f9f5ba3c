/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Names of collectives, copies, streams and kinds of memory, as ledgers, traces and plans print
 * them. */
#include "backend/recorder.h"

static const char *const coll_names[TSRI_COLL_COUNT] = {
    [TSRI_ALL_GATHER] = "all_gather", [TSRI_REDUCE_SCATTER] = "reduce_scatter",
    [TSRI_ALL_REDUCE] = "all_reduce", [TSRI_ALL_TO_ALL] = "all_to_all",
    [TSRI_BROADCAST] = "broadcast",
};

static const char *const stream_names[TSRI_STREAM_COUNT] = {
    [TSRI_STREAM_COMPUTE] = "compute", [TSRI_STREAM_GATHER] = "gather",
    [TSRI_STREAM_REDUCE] = "reduce",   [TSRI_STREAM_REPLICATE] = "replicate",
    [TSRI_STREAM_COPY] = "copy",
};

static const char *const mem_names[TSRI_MEM_COUNT] = {
    [TSRI_MEM_PARAM] = "parameters",         [TSRI_MEM_GRAD] = "gradients",
    [TSRI_MEM_OPTIM] = "optimizer",          [TSRI_MEM_SLOT_PARAM] = "parameter slots",
    [TSRI_MEM_SLOT_GRAD] = "gradient slots", [TSRI_MEM_ACTIVATION] = "activations",
    [TSRI_MEM_WORKSPACE] = "workspace",      [TSRI_MEM_OTHER] = "other",
};

const char *tsri_coll_name(tsri_coll_kind kind)
{
    return (unsigned)kind < TSRI_COLL_COUNT ? coll_names[kind] : "?";
}

const char *tsri_copy_name(tsri_copy_kind kind)
{
    return kind == TSRI_COPY_WRITE                             ? "write"
           : kind == TSRI_COPY_READ || kind == TSRI_COPY_FETCH ? "read"
                                                               : "copy";
}

const char *tsri_stream_name(tsri_stream_kind kind)
{
    return (unsigned)kind < TSRI_STREAM_COUNT ? stream_names[kind] : "?";
}

const char *tsri_mem_name(tsri_mem_kind kind)
{
    return (unsigned)kind < TSRI_MEM_COUNT ? mem_names[kind] : "?";
}
