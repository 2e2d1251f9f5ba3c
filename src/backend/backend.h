/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file backend.h
 * What a backend supplies: one table of functions each for cpu, cuda and sim.
 *
 * Devices own buffers, streams, events and groups. Streams order everything: a call enqueues on a
 * stream and returns; order across streams comes from events alone. Nothing above dispatch.h calls
 * these slots: dispatch.c checks, records, calls and records (ledger.h, race.h), so every backend
 * is observed in the same way. Above it nobody asks which backend it is, only capability bits.
 *
 * The structs below are the common heads that each backend embeds as first member.
 */
#pragma once

#include "tessera/dtype.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

typedef struct tsr_backend tsr_backend;
typedef struct tsr_device
    tsr_device; /* one process's share of a machine, one GPU, one simulated GPU */
typedef struct tsr_stream tsr_stream; /* ordered queue of work on a device */
typedef struct tsr_group tsr_group;   /* this rank's end of a communicator, bound to one stream */
typedef struct tsr_buffer tsr_buffer; /* bytes on a device; sim buffers have no address */
struct tsri_recorder;
struct tsri_race_buffer;

enum {
    TSR_BACKEND_ABI = 2
};
enum {
    TSR_CAP_EXECUTES = 1u << 0, /* results are computed, not only counted */
    TSR_CAP_ASYNC = 1u << 1,    /* calls may return before their work is done */
    TSR_CAP_BF16 = 1u << 2,     /* computes in bf16 faster than in f32 */
    TSR_CAP_HOST = 1u << 3,     /* addresses are host addresses */
    TSR_CAP_WIDE_SUMS = 1u << 4 /* collectives sum bf16 and f16 in f32 and round once; else they may
                                   round at every rank that a sum passes */
};

/** The named streams of a device. */
typedef enum tsri_stream_kind {
    TSRI_STREAM_COMPUTE = 0, /* kernels, and the collectives that a kernel waits for (tp) */
    TSRI_STREAM_GATHER,      /* parameters: all-gather over level-3 axes */
    TSRI_STREAM_REDUCE,      /* gradients: reduce-scatter */
    TSRI_STREAM_REPLICATE,   /* gradients: all-reduce between replicas */
    TSRI_STREAM_COPY,        /* host and device */
    TSRI_STREAM_COUNT
} tsri_stream_kind;

/** How a stream stands, and with it the groups that are bound to it. */
typedef enum tsri_stream_state {
    TSRI_STREAM_DONE = 0, /* with everything enqueued */
    TSRI_STREAM_RUNNING,
    TSRI_STREAM_LATE, /* an operation has waited for other ranks longer than the device's timeout_s,
                         and does not fail of itself */
    TSRI_STREAM_FAILED
} tsri_stream_state;

/** What memory is for; the rows of plan.txt. */
typedef enum tsri_mem_kind {
    TSRI_MEM_PARAM = 0,  /* parameter shards at rest */
    TSRI_MEM_GRAD,       /* gradient shards */
    TSRI_MEM_OPTIM,      /* optimizer state */
    TSRI_MEM_SLOT_PARAM, /* gathered parameters */
    TSRI_MEM_SLOT_GRAD,  /* full gradients before their reduction */
    TSRI_MEM_ACTIVATION, /* values and their gradients */
    TSRI_MEM_WORKSPACE,  /* scratch of kernels and redistributions */
    TSRI_MEM_OTHER,      /* token ids, scalars, tables */
    TSRI_MEM_COUNT
} tsri_mem_kind;

/** A point in a stream: operations 1..seq of it. A plain value, copied and forgotten freely, so
 * what a backend keeps of a point it may reuse in the end: the event then stands for a later point
 * of its stream, which is as safe to wait for. */
typedef struct tsr_event {
    tsr_stream *stream; /* NULL: always reached */
    uint64_t seq;
    uint64_t mark; /* what the backend keeps of it; 0: nothing */
} tsr_event;

typedef enum tsri_coll_kind {
    TSRI_ALL_GATHER = 0,
    TSRI_REDUCE_SCATTER,
    TSRI_ALL_REDUCE,
    TSRI_ALL_TO_ALL,
    TSRI_BROADCAST,
    TSRI_COLL_COUNT
} tsri_coll_kind;

typedef enum tsri_reduce_op {
    TSRI_SUM = 0,
    TSRI_MAX
} tsri_reduce_op;

/** One buffer range of a collective. W = group size, r = this rank's index in the group; count is
 *  in elements. in and out are borrowed until the stream passes the call.
 *  ALL_GATHER      in count, out W*count; rank i's piece at i*count. In place: in = out + r*count.
 *  REDUCE_SCATTER  in W*count, out count: piece r of the sum. In place: out = in + r*count, and the
 *                  rest of in is unspecified afterwards. Else in stays as it is, as with all kinds.
 *  ALL_REDUCE      in count, out count. In place: in = out.
 *  ALL_TO_ALL      in W*count, out W*count: block j of in goes to block r of rank j's out. Not in
 * place. BROADCAST       count from root's in to every out; in = out allowed. */
typedef struct tsri_coll_item {
    tsr_buffer *in;
    size_t in_offset; /* bytes */
    tsr_buffer *out;
    size_t out_offset; /* bytes */
    int64_t count;
} tsri_coll_item;

/** A collective over a list of ranges, which is one operation. All members of the group pass equal
 *  kind, dtype, op, root, item_count and counts, in the same order of calls. How sums of bf16 and
 * f16 accumulate: TSR_CAP_WIDE_SUMS. The order of a sum depends on the group and the counts alone,
 * so every rank and every run gets the same bits. */
typedef struct tsri_coll {
    tsri_coll_kind kind;
    tsr_dtype dtype;
    tsri_reduce_op op;
    int root;
    const tsri_coll_item *items; /* copied when the call is enqueued */
    int item_count;
    const char *label; /* whose data: a unit's or a module's path; lives as long as the group */
} tsri_coll;

/** Most items in one collective; longer lists are split by dispatch in the same way on all ranks.
 */
#define TSRI_COLL_MAX_ITEMS 64

/** Newest timed events of a stream that a backend knows the times of. */
#define TSRI_TIMED_EVENTS 4096

/** Waits of compute as event times tell them (exposed.c); zero: none yet. */
typedef struct tsri_exposure {
    struct tsri_span *spans; /* [count], not yet over */
    int count, capacity;
    double seconds; /* of those that are */
} tsri_exposure;

struct tsr_device {
    const tsr_backend *backend;
    struct tsri_recorder *recorder; /* NULL: nothing is recorded */
    const tsri_kernel_table *kernels;
    uint64_t next_buffer_id;
    int threads;      /* that a kernel may use */
    double timeout_s; /* limit of one collective's wait */
    size_t bytes_now, bytes_peak;
    size_t bytes_kind[TSRI_MEM_COUNT];
    size_t host_now, host_peak; /* of the host pool, which those above leave out */
    size_t host_kind[TSRI_MEM_COUNT];
    unsigned streams_open; /* bit per tsri_stream_kind; kept by dispatch: one stream of each kind */
    bool scribbles;        /* test switch: the arena fills what it hands out with NaN */
    tsri_exposure exposure;
    struct tsri_guard *guard;     /* NULL: nobody to wait for */
    struct tsri_staging *staging; /* NULL until something goes through it */
};

struct tsr_buffer {
    tsr_device *device;
    uint64_t id;
    size_t bytes;
    tsri_mem_kind kind;
    bool host;                     /* in the host pool */
    void *address;                 /* device address; NULL on sim */
    const char *label;             /* set by dispatch; borrowed */
    struct tsri_race_buffer *race; /* the race check's; NULL in a new buffer */
};

/** Every launch, collective, copy, write and read gets a seq: dispatch increments enqueued BEFORE
 * it calls the slot, so within the slot enqueued is the seq of the operation being enqueued (1, 2,
 * ...). A slot that fails must have enqueued nothing, and dispatch takes the increment back.
 * stream_wait and stream_sync count nothing. An event {stream, seq} is reached when
 * operations 1..seq of its stream are done (seq 0: always); a wait enqueued after operation seq is
 * not part of it. A backend only reads these fields; it sets device and kind when it opens the
 * stream. */
struct tsr_stream {
    tsr_device *device;
    tsri_stream_kind kind;
    uint64_t enqueued; /* number of operations enqueued: seq of the newest */
};

struct tsr_group {
    tsr_device *device;
    const char *name; /* of the axes, "shard" or "replicate+shard"; owned by the group */
    int size;
    int index;              /* of this rank within the group */
    const int *world_ranks; /* [size], owned by the group */
    unsigned axis_mask;
    tsri_stream_kind stream_kind;
    uint64_t seq; /* collectives enqueued so far, kept by dispatch like tsr_stream.enqueued */
};

typedef struct tsri_device_options {
    int world_rank, world_size;
    struct tsri_team *team; /* of world_size ranks, borrowed; NULL: the job, or a world of one */
    int threads;            /* 0: cores / local ranks, at least 1 */
    double timeout_s;       /* 0: 600 */
    int local_rank;         /* among the ranks of this host */
    const char *device; /* which of the host's: index ("1") or PCI address ("0000:3b:00.0"); NULL:
                           by local_rank. cpu has one */
    const char *sim_target; /* sim only: backend that runs are planned for; NULL: cpu */
    const char *transport;  /* cpu only: "auto" or "mpi"; NULL: TSR_CPU_TRANSPORT, else "auto" */
} tsri_device_options;

struct tsr_backend { /* lint: the table, slot by slot */
    uint32_t abi;    /* TSR_BACKEND_ABI, checked when a device is opened */
    uint32_t caps;
    const char *name; /* "cpu", "cuda", "sim": also the name in config */

    /* Required. A call enqueues on its stream and returns; those named _sync alone block. */
    /* What its devices run. Workspace and flops can be asked without a device, and on machines that
     * have none, so that sim plans with them. */
    tsr_status (*kernels)(const tsri_kernel_table **out);
    tsr_status (*device_open)(const tsri_device_options *options, tsr_device **out);
    void (*device_close)(tsr_device *device);
    tsr_status (*alloc)(tsr_device *device, size_t bytes,
                        tsr_buffer **out); /* zeroed; 0 is legal */
    void (*release)(tsr_buffer *buffer);
    tsr_status (*stream_open)(tsr_device *device, tsri_stream_kind kind, tsr_stream **out);
    void (*stream_close)(tsr_stream *stream); /* what is enqueued finishes first */
    tsr_status (*stream_wait)(tsr_stream *stream, tsr_event event);
    /* Blocks until all operations are done and all waits enqueued so far are passed; returns the
     * stream's first failure. */
    tsr_status (*stream_sync)(tsr_stream *stream);
    /* event has stream and seq: note whatever the backend needs to know the point again, and timed:
     * to know when the stream came to it. A failure is the stream's. */
    void (*event_record)(tsr_stream *stream, bool timed, tsr_event *event);
    bool (*event_done)(tsr_event event);
    /* Blocks until event is reached; returns its stream's failure. */
    tsr_status (*event_sync)(tsr_event event);
    /* Seconds between two timed events of a device. TSR_ERR_STATE: one is not timed, not reached,
     * or no longer known, of at least TSRI_TIMED_EVENTS that each stream has. */
    tsr_status (*event_elapsed)(tsr_event from, tsr_event to, double *seconds_out);
    /* A kernel that fails stops its stream: that status is what this call, or a later one on the
     * stream, and stream_sync return, and what waits for the stream fails with. */
    tsr_status (*launch)(tsr_stream *stream, tsrk_id kernel, const void *args, size_t args_bytes);
    /* From any thread, blocking on nothing but other calls: how stream stands. text [size]: what of
     * it is late, or its failure; else "". */
    tsri_stream_state (*poll)(tsr_stream *stream, char *text, size_t size);
    /* From any thread: stream and its groups fail with status and text, unless they have failed,
     * and what is enqueued ends, so that nobody who waits for it hangs. */
    void (*abort)(tsr_stream *stream, tsr_status status, const char *text);
    /* Host memory to or from a buffer. Neither blocks: host [bytes] stays as it is, and is the
     * call's, until the stream has passed it. Dispatch passes memory of stage_alloc's, or the
     * program's where the program waits for it. */
    tsr_status (*write)(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                        tsr_stream *stream);
    tsr_status (*read)(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                       tsr_stream *stream);
    /* Between buffers, each of the device's memory or of the host pool; or within one, between
     * ranges that share no bytes. */
    tsr_status (*copy)(tsr_buffer *to, size_t to_offset, const tsr_buffer *from, size_t from_offset,
                       size_t bytes, tsr_stream *stream);
    /* Collective over the WORLD: all ranks open the same families (axis mask, stream) in the same
     * order, each passing the members of its own group. size 1 is legal and never communicates. */
    tsr_status (*group_open)(tsr_device *device, const int *world_ranks, int size, int index,
                             tsr_stream *stream, const char *name, tsr_group **out);
    void (*group_close)(tsr_group *group);
    /* Dispatch checked it: counts > 0, 1..TSRI_COLL_MAX_ITEMS items, group size > 1. */
    tsr_status (*collective)(tsr_group *group, const tsri_coll *coll, tsr_stream *stream);

    /* Optional. Host memory that write and read reach without blocking (pinned); NULL: any is. */
    tsr_status (*stage_alloc)(tsr_device *device, size_t bytes, void **out);
    void (*stage_free)(tsr_device *device, void *memory);
    /* Optional. Seconds that compute has waited for other streams, or spent in collectives of its
     * own, where the host itself waits. NULL: counted from event times (exposed.c). */
    double (*exposed_s)(const tsr_device *device);
    /* Optional. As alloc, of host memory that kernels can address; NULL: alloc's is such. */
    tsr_status (*alloc_host)(tsr_device *device, size_t bytes, tsr_buffer **out);
};

extern const tsr_backend tsri_backend_cpu;
extern const tsr_backend tsri_backend_sim;
/** Tests may link this, to know backends of their own, which come first; the library has none.
 *  Hidden: no program can put one into the shared library. NULL: name is not of these. */
const tsr_backend *tsri_backend_of_test(const char *name)
    __attribute__((weak, visibility("hidden")));

/** Backend by name, or TSR_ERR_INVALID that lists the names built in. "auto" is the best present.
 */
tsr_status tsri_backend_find(const char *name, const tsr_backend **out);

/** Run a product at once, by the cpu's kernel, on the calling thread and its team; its workspace is
 *  taken and given back here. For kernels of a program's own, which run where the host computes. */
tsr_status tsri_host_matmul(const tsrk_matmul *matmul);
