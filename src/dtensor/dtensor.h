/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtensor.h
 * Inside of a dtensor, for the folders above: storage, views, accesses of kernels.
 *
 * Storage is a range of device memory with owners. Three kinds: a buffer of its own, a range of the
 * step arena (given back when the last owner goes, with the compute stream's event of that moment),
 * or a borrowed range whose owner outlives it (parameters in their slots).
 */
#pragma once

#include "tessera/dtensor.h"

#include "comm/comm.h"

typedef struct tsri_storage {
    int owners;
    tsri_arena *arena; /* not NULL: mem goes back there */
    tsr_buffer *owned; /* not NULL: released with the storage */
    tsri_mem mem;
    tsr_stream *stream; /* whose event marks the last use (arena storage) */
} tsri_storage;

struct tsr_dtensor {
    int owners;
    tsr_comm *comm; /* retained */
    tsr_layout layout;
    tsr_dtype dtype;
    int64_t local_shape[TSR_MAX_DIMS];
    int64_t local_offset[TSR_MAX_DIMS];
    int64_t local_count;
    tsri_storage *storage; /* NULL: no memory at the moment (a parameter that is not gathered) */
    size_t offset;         /* bytes into the storage's range */
    char *label;
    /** NULL, or what a write from the host does beyond the piece: the value of a parameter brings
     * it to what is at rest. */
    tsr_status (*write)(tsr_dtensor *tensor, const void *host);
    /* Autograd's part (src/autograd). node < 0: not produced on the tape. */
    struct tsr_param *param; /* not NULL: the compute value of this parameter, a leaf */
    int node, node_output;
    uint64_t tape_epoch; /* the tape_begin to which node belongs */
    bool needs_grad;
};

/** A dtensor in the step arena, contents unspecified. extra_bytes: slack behind the piece. label is
 *  copied, but ledger and arena keep the original: give a long-lived one. */
tsr_status tsri_dtensor_acquire(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                                tsri_mem_kind kind, const char *label, size_t extra_bytes,
                                tsr_dtensor **out);
/** A dtensor without memory. */
tsr_status tsri_dtensor_bare(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                             const char *label, tsr_dtensor **out);
/** Another dtensor on from's storage at offset (bytes) from its start: same bytes, own layout. */
tsr_status tsri_dtensor_view(tsr_dtensor *from, const tsr_layout *layout, size_t offset,
                             tsr_dtensor **out);
/** Attach a borrowed range (buffer NULL detaches). */
tsr_status tsri_dtensor_attach(tsr_dtensor *tensor, tsr_buffer *buffer, size_t offset);

/** Take the storage of a tensor that is alone on a range of the step arena; it has no memory then.
 *  NULL: it is not. */
tsri_storage *tsri_dtensor_take_storage(tsr_dtensor *tensor);
/** Give what was taken back to a tensor without memory. */
void tsri_dtensor_put_storage(tsr_dtensor *tensor, tsri_storage **storage);
/** Give what was taken back to the arena; last_use: the point after which it may be taken over. */
void tsri_storage_drop(tsri_storage **storage, tsr_event last_use);
/** A new range of the step arena for a tensor without memory, for use on stream first; the compute
 *  stream is made to wait for that use by the caller. label long-lived. */
tsr_status tsri_dtensor_refill(tsr_dtensor *tensor, tsri_mem_kind kind, const char *label,
                               tsr_stream *stream);

/** True if tensor was released, or its memory was that of a step that is over; check: fail then. */
bool tsri_dtensor_is_stale(const tsr_dtensor *tensor);
tsr_status tsri_dtensor_check(const tsr_dtensor *tensor, const char *what);

/** Bytes of the local piece. */
size_t tsri_dtensor_bytes(const tsr_dtensor *tensor);
/** Where the piece lies; buffer NULL when it has no memory. */
tsr_buffer *tsri_dtensor_buffer(const tsr_dtensor *tensor);
size_t tsri_dtensor_buffer_offset(const tsr_dtensor *tensor);

/** Declare the whole piece in a kernel call; the address for its argument struct. */
const void *tsri_in(tsri_call *call, const tsr_dtensor *tensor);
void *tsri_out(tsri_call *call, tsr_dtensor *tensor);
void *tsri_inout(tsri_call *call, tsr_dtensor *tensor);

/** What a program asks for: TSR_ERR_PLACEMENT to Partial from anything
 *  else, on axes of one rank too. Layouts are of one mesh. */
tsr_status tsri_dtensor_check_partial(const tsr_dtensor *tensor, const tsr_layout *to);

/** How redistribute places its result. */
typedef struct tsri_redistribute_options {
    bool persistent;        /* a buffer of its own instead of the step arena */
    bool asked;             /* by the program: words of axes of one rank count too */
    tsr_dtype reduce_dtype; /* of P→R and P→S; default: the tensor's */
    const char *label;      /* of its collectives, long-lived; NULL: "redistribute" */
} tsri_redistribute_options;
/** As tsr_dtensor_redistribute, in the step arena by default. Where layouts differ in words alone
 *  (axes of size 1), the result is a view of the same memory. */
tsr_status tsri_redistribute(tsr_dtensor *tensor, const tsr_layout *to,
                             const tsri_redistribute_options *options, tsr_dtensor **out);
/** Number of collectives that tsri_redistribute makes; a rank whose groups have nothing to move
 * makes fewer. -1 if it would refuse. */
int tsri_redistribute_cost(const tsr_layout *from, const tsr_layout *to);
