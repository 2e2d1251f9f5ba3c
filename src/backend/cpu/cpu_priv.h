/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cpu_priv.h
 * What the cpu backend's files share.
 *
 * Memory. A rank has two memfd segments, which have no name and so vanish with the process: a
 * *heap*, sparse and larger than the machine's memory, out of which every buffer is cut, and a
 * *control* segment. The ranks of a node map each other's through /proc/<pid>/fd/<fd>, so an
 * address on one rank is (heap, offset) on every other, and a collective reads peers in place.
 *
 * Execution. The compute stream runs on the thread that calls. The other streams are queues that
 * one progress thread per device advances round robin: an operation is a state machine whose step
 * never blocks, so no order between streams can lock them up.
 *
 * Collectives inside a node advance from barrier to barrier. A group's barrier is one counter in
 * the control segment of its first rank; whoever arrives last rings all members. What a member says
 * of its call lies in its *cell*, one per group, which exists twice (by the parity of the call) so
 * that a fast rank can speak of the next call while a slow one still reads the last.
 *
 * Waiting. One futex word per rank, its *bell*, is rung by whoever made something happen there.
 * Sleeps are bounded, so a lost ring would cost time, never progress.
 */
#pragma once

#include "backend/backend.h"
#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/** Groups that can be open at a time. */
#define TSRI_CPU_CELLS 256
/** A collective whose input fits is copied into the cell: one barrier instead of two or three. */
#define TSRI_CPU_INLINE_BYTES ((size_t)32 << 10)
/** Peers' memory that may stay mapped in: it counts as resident here, but is not this rank's.
 *  Mapping a page in costs a fifth of copying it, so what a step of a small model reads stays. */
#define TSRI_CPU_PEER_BYTES ((size_t)64 << 20)
/** Bytes that one step of a state machine copies, and elements that it reduces. */
#define TSRI_CPU_STEP_BYTES    ((size_t)1 << 20)
#define TSRI_CPU_STEP_ELEMENTS ((int64_t)1 << 17)
/** Most bytes of one MPI message; larger pieces go in rounds. */
#define TSRI_CPU_MPI_BYTES ((size_t)64 << 20)
/** Entries of a stream's queue; a full queue blocks the caller. */
#define TSRI_CPU_QUEUE 128
/** Longest sleep, and the interval at which a waiting rank looks whether its peers live. */
#define TSRI_CPU_NAP_S   0.05
#define TSRI_CPU_ALIVE_S 0.1
/** MPI rings no bell. The first looks at it only yield the core: many where nothing else could run
 *  there, few elsewhere. The later ones sleep in between, for longer and longer. */
#define TSRI_CPU_POLL_MANY    256
#define TSRI_CPU_POLL_FEW     16
#define TSRI_CPU_POLL_FIRST_S 2e-5
#define TSRI_CPU_POLL_LAST_S  2e-4
/** Time to watch the bell before sleeping, where every local rank has a core of its own. */
#define TSRI_CPU_SPIN_S 5e-6
/** Time for which the caller's thread, which has nothing else to do, offers its core to others and
 *  looks again before it sleeps: waking up on a core that went idle takes as long. */
#define TSRI_CPU_LINGER_S    5e-5
#define TSRI_CPU_TEXT_BYTES  320
#define TSRI_CPU_LABEL_BYTES 64

/* ---- the control segment ---- */

/** What a member says of its call; fingerprint is a hash of everything that has to be equal. */
typedef struct tsri_cpu_call {
    uint64_t fingerprint;
    int64_t elements;
    int32_t kind, dtype, reduce, root, item_count;
    char label[TSRI_CPU_LABEL_BYTES];
} tsri_cpu_call;

typedef struct tsri_cpu_slot {
    tsri_cpu_call call;
    uint64_t in[TSRI_COLL_MAX_ITEMS]; /* offsets in the heap */
    uint64_t out[TSRI_COLL_MAX_ITEMS];
    _Alignas(64) unsigned char data[TSRI_CPU_INLINE_BYTES];
} tsri_cpu_slot;

typedef struct tsri_cpu_cell {
    _Alignas(64) _Atomic uint64_t arrivals; /* of all members; used in the first member's cell */
    _Alignas(64) _Atomic uint64_t barrier;  /* the newest that this rank arrived at */
    _Atomic uint32_t failed;                /* this rank will not arrive any more */
    tsri_cpu_slot slot[2];
} tsri_cpu_cell;

typedef struct tsri_cpu_control {
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t closed;
    _Atomic uint32_t failure_state; /* 0 none, 1 being written, 2 text is there */
    uint64_t nonce;                 /* tells whether /proc led to the right process */
    char failure[TSRI_CPU_TEXT_BYTES];
    tsri_cpu_cell cell[TSRI_CPU_CELLS];
} tsri_cpu_control;

/* ---- devices, groups, operations ---- */

/** A rank of this node, this rank included; control is NULL for ranks that memory cannot reach. */
typedef struct tsri_cpu_peer {
    tsri_cpu_control *control;
    unsigned char *heap;
    size_t heap_bytes;
    int node;
    pid_t pid;
    int pidfd;
    _Atomic size_t touched; /* bytes of its heap mapped in since they were last let go */
} tsri_cpu_peer;

typedef struct tsri_cpu_extent {
    size_t offset, bytes;
} tsri_cpu_extent;

typedef struct tsri_cpu_heap {
    unsigned char *base;
    size_t bytes;
    int fd;
    tsri_cpu_extent *free; /* by offset, never adjacent to each other */
    int free_count, free_capacity;
    int live;
    size_t live_bytes;
} tsri_cpu_heap;

typedef struct tsri_cpu_device tsri_cpu_device;
typedef struct tsri_cpu_stream tsri_cpu_stream;
typedef struct tsri_cpu_group tsri_cpu_group;
struct tsri_cpu_mpi;

typedef struct tsri_cpu_item {
    const unsigned char *in;
    unsigned char *out;
    int64_t count;
} tsri_cpu_item;

typedef enum tsri_cpu_state {
    TSRI_CPU_BEGIN = 0,
    TSRI_CPU_ARRIVE, /* wait until every member has made its call */
    TSRI_CPU_MOVE,   /* copy or reduce */
    TSRI_CPU_MEET,   /* all-reduce: wait until every slice is reduced */
    TSRI_CPU_SPREAD, /* all-reduce: copy the slices of the others */
    TSRI_CPU_LEAVE,  /* wait until nobody reads this rank's memory any more */
    TSRI_CPU_DONE
} tsri_cpu_state;

/** A collective under way. item, member and at are the cursor of MOVE and SPREAD. */
typedef struct tsri_cpu_op {
    tsri_cpu_group *group;
    tsri_coll_kind kind;
    tsr_dtype dtype;
    tsri_reduce_op reduce;
    int root, item_count;
    const char *label;
    uint64_t number; /* of the call within its group, from 1 */
    tsri_cpu_item items[TSRI_COLL_MAX_ITEMS];

    tsri_cpu_state state;
    bool in_cell;    /* inputs travel in the cell, or in the letter */
    bool past_cache; /* outputs are larger than this rank's share of the caches */
    int item, member;
    int64_t at;
    size_t packed; /* where item's input begins in the cell */
    double begin_s, wait_s, looked_s;
} tsri_cpu_op;

struct tsri_cpu_group {
    tsr_group head;
    char *name;
    int *ranks;
    int cell; /* index in every member's control segment */
    bool shared;
    uint64_t barrier;         /* the newest that this rank arrived at */
    uint64_t call;            /* collectives begun */
    tsri_cpu_peer **peer;     /* [size] */
    const void **sources;     /* [size], scratch of a reduction */
    struct tsri_cpu_mpi *mpi; /* NULL where shared */
    tsri_cpu_group *next;
    _Atomic bool breaks; /* somebody writes the failure */
    _Atomic int broken;  /* status of the first failure; text is then final */
    char text[TSRI_CPU_TEXT_BYTES];
};

typedef enum tsri_cpu_entry_kind {
    TSRI_CPU_WAIT,
    TSRI_CPU_LAUNCH,
    TSRI_CPU_COLLECTIVE,
    TSRI_CPU_COPY,
    TSRI_CPU_MARK
} tsri_cpu_entry_kind;

typedef struct tsri_cpu_entry {
    tsri_cpu_entry_kind kind;
    uint64_t seq;   /* of the operation; 0 for a wait and a mark */
    double begin_s; /* of a copy that has begun, where somebody records */
    union {
        tsr_event event; /* of a wait, or a mark's */
        struct {
            tsrk_id kernel;
            _Alignas(8) unsigned char args[TSRK_ARGS_MAX_BYTES];
        } launch;
        struct {
            unsigned char *to;
            const unsigned char *from;
            size_t bytes, at;
        } copy;
        tsri_cpu_op op;
    } as;
} tsri_cpu_entry;

/** When a stream came to a timed event. */
typedef struct tsri_cpu_mark {
    _Atomic uint64_t number; /* the event's mark; written after the time */
    double at_s;
} tsri_cpu_mark;

/** pushed belongs to the caller's thread, popped to the progress thread. */
struct tsri_cpu_stream {
    tsr_stream head;
    tsri_cpu_entry *queue; /* NULL for compute */
    tsri_cpu_mark *marks;  /* [TSRI_TIMED_EVENTS] by number; NULL until the first is taken */
    uint64_t marked;       /* number of the newest taken */
    _Atomic uint64_t pushed, popped;
    _Atomic uint64_t completed; /* seq of the newest operation done */
    _Atomic int failed;         /* status of the first failure; text is then final */
    _Atomic bool waits;         /* compute: the caller's thread does, for other ranks or streams */
    _Atomic bool fails;         /* somebody writes the failure */
    char text[TSRI_CPU_TEXT_BYTES];
};

struct tsri_cpu_device {
    tsr_device head;
    int rank, world;
    struct tsri_team *team; /* borrowed */
    double spin_s;
    size_t cache_bytes; /* this rank's share of the last-level cache */
    size_t mpi_bytes;
    tsri_cpu_control *control;
    int control_fd;
    tsri_cpu_heap heap;
    tsri_cpu_peer *peer; /* [world] */
    bool shared;         /* the ranks of this node reach each other's memory */
    double exposed_s;    /* that the caller's thread has waited, or spent in collectives */
    uint64_t cells_used[TSRI_CPU_CELLS / 64];
    tsri_cpu_group *groups;
    tsri_cpu_stream *stream[TSRI_STREAM_COUNT];
    pthread_mutex_t lock; /* of groups and stream, which the progress thread reads */
    pthread_t thread;
    bool running;
    _Atomic bool stop;
};

/** What a round over the state machines found. */
typedef struct tsri_cpu_activity {
    bool moved;   /* something advanced */
    bool pending; /* something waits */
    bool polls;   /* for MPI, which rings no bell */
} tsri_cpu_activity;

/* ---- heap.c ---- */
tsr_status tsri_cpu_heap_open(tsri_cpu_heap *heap, int local_ranks);
void tsri_cpu_heap_close(tsri_cpu_heap *heap);
tsr_status tsri_cpu_heap_take(tsri_cpu_heap *heap, size_t bytes, void **out);
void tsri_cpu_heap_give(tsri_cpu_heap *heap, void *address, size_t bytes);
tsr_status tsri_cpu_alloc(tsr_device *device, size_t bytes, tsr_buffer **out);
void tsri_cpu_release(tsr_buffer *buffer);
/** Count peers' bytes as touched; beyond TSRI_CPU_PEER_BYTES let all of them go. */
void tsri_cpu_touched(tsri_cpu_device *device, tsri_cpu_peer *peer, size_t bytes);

/* ---- peers.c ---- */
/** Make this rank's segments and map those of the node, if the transport asked for (NULL: that of
 *  the environment) allows. Collective over the world. */
tsr_status tsri_cpu_peers_open(tsri_cpu_device *device, const char *asked);
void tsri_cpu_peers_close(tsri_cpu_device *device);
bool tsri_cpu_peer_alive(const tsri_cpu_peer *peer);

/* ---- bell.c ---- */
uint32_t tsri_cpu_bell(const tsri_cpu_device *device);
void tsri_cpu_ring(tsri_cpu_control *control);
/** Yield the core until the bell is no longer seen, which returns true, or for TSRI_CPU_LINGER_S.
 */
bool tsri_cpu_linger(const tsri_cpu_device *device, uint32_t seen);
/** Return when the bell is no longer seen, or after nap_s. */
void tsri_cpu_pause(const tsri_cpu_device *device, uint32_t seen, double nap_s);
/** The same for what has to be looked at: after looks in vain, the first few (yields) only yield
 * the core. */
void tsri_cpu_poll_pause(const tsri_cpu_device *device, uint32_t seen, int looks, int yields);

/* ---- stream.c ---- */
tsr_status tsri_cpu_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out);
void tsri_cpu_stream_close(tsr_stream *stream);
tsr_status tsri_cpu_stream_wait(tsr_stream *stream, tsr_event event);
tsr_status tsri_cpu_stream_sync(tsr_stream *stream);
void tsri_cpu_event_record(tsr_stream *stream, bool timed, tsr_event *event);
bool tsri_cpu_event_done(tsr_event event);
tsr_status tsri_cpu_event_sync(tsr_event event);
tsr_status tsri_cpu_event_elapsed(tsr_event from, tsr_event to, double *seconds_out);
/** Now stream comes to mark. */
void tsri_cpu_mark_now(tsri_cpu_stream *stream, uint64_t mark);
tsr_status tsri_cpu_launch(tsr_stream *stream, tsrk_id kernel, const void *args, size_t args_bytes);
tsr_status tsri_cpu_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                          tsr_stream *stream);
tsr_status tsri_cpu_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                         tsr_stream *stream);
tsr_status tsri_cpu_copy_buffer(tsr_buffer *to, size_t to_offset, const tsr_buffer *from,
                                size_t from_offset, size_t bytes, tsr_stream *stream);
/** Enqueue an operation, or run it here on the compute stream. op is copied. */
tsr_status tsri_cpu_submit(tsri_cpu_stream *stream, const tsri_cpu_op *op);
/** Raise the failure that stream stopped at, if it has. */
tsr_status tsri_cpu_stream_check(tsri_cpu_stream *stream);
/** Wait until stream is empty, whether it failed or not. */
void tsri_cpu_stream_drain(tsri_cpu_stream *stream);
/** Is event over, and did its stream not fail? */
tsr_status tsri_cpu_event_look(tsr_event event, bool *over_out);
/** Stop stream at the calling thread's failure, and break the groups that use it. */
void tsri_cpu_stream_fail(tsri_cpu_device *device, tsri_cpu_stream *stream, tsr_status status);
tsri_stream_state tsri_cpu_poll(tsr_stream *stream, char *text, size_t size);
void tsri_cpu_abort(tsr_stream *stream, tsr_status status, const char *text);

/* ---- progress.c ---- */
tsr_status tsri_cpu_progress_start(tsri_cpu_device *device);
void tsri_cpu_progress_stop(tsri_cpu_device *device);
/** Run op to its end on this thread. */
tsr_status tsri_cpu_run(tsri_cpu_device *device, tsri_cpu_op *op);
void tsri_cpu_record(tsri_cpu_stream *stream, uint64_t seq, double begin_s);

/* ---- group.c ---- */
tsr_status tsri_cpu_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                               tsr_stream *stream, const char *name, tsr_group **out);
void tsri_cpu_group_close(tsr_group *group);
tsr_status tsri_cpu_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream);
/** Mark group broken with this failure, and tell its members. Any thread. */
void tsri_cpu_group_break(tsri_cpu_group *group, tsr_status status, const char *text);
/** Advance op by one step. A failure breaks its group. */
tsr_status tsri_cpu_op_step(tsri_cpu_op *op, tsri_cpu_activity *activity);
/** What op's caller says of it. */
void tsri_cpu_describe(const tsri_cpu_op *op, tsri_cpu_call *out);
/** TSR_ERR_DISAGREE if call of member differs from mine. */
tsr_status tsri_cpu_compare(const tsri_cpu_op *op, const tsri_cpu_call *mine,
                            const tsri_cpu_call *theirs, int member);
/** Elements of input and output per element of count. */
int64_t tsri_cpu_in_pieces(const tsri_cpu_op *op);
int64_t tsri_cpu_out_pieces(const tsri_cpu_op *op);

/* ---- node.c: collectives through memory ---- */
tsr_status tsri_cpu_node_step(tsri_cpu_op *op, tsri_cpu_activity *activity);

/* ---- wire.c, ring.c: collectives through MPI ---- */
tsr_status tsri_cpu_mpi_open(tsri_cpu_group *group);
void tsri_cpu_mpi_close(tsri_cpu_group *group);
tsr_status tsri_cpu_mpi_step(tsri_cpu_op *op, tsri_cpu_activity *activity);
/** Does op wait for member, as far as this rank can know? */
bool tsri_cpu_mpi_absent(const tsri_cpu_op *op, int member);

/* ---- watch.c ---- */
/** op waits: fail if a member is gone, has failed, or the time is up. */
tsr_status tsri_cpu_watch(tsri_cpu_op *op);

/* ---- copy.c ---- */
/** Bytes that a rank of local_ranks can write and find in the last-level cache afterwards. */
size_t tsri_cpu_cache_share(int local_ranks);
/** memcpy; past_cache: with stores that leave the caches alone. */
void tsri_cpu_copy(void *to, const void *from, size_t bytes, bool past_cache);

/* ---- reduce.c ---- */
/** out [count] = source 0 op source 1 ... in this order; bf16 and f16 in f32. out may be one of the
 *  sources, not otherwise overlap. */
void tsri_cpu_reduce(tsr_dtype dtype, tsri_reduce_op op, const void *const *source,
                     int source_count, void *out, int64_t count);
/** acc [count] = acc op term [count]; of bf16 and f16 terms acc is f32. */
void tsri_cpu_accumulate(tsr_dtype dtype, tsri_reduce_op op, void *acc, const void *term,
                         int64_t count);
/** out [count] f32 from bf16 or f16, and back. */
void tsri_cpu_widen(tsr_dtype dtype, const void *in, float *out, int64_t count);
void tsri_cpu_narrow(tsr_dtype dtype, const float *in, void *out, int64_t count);
