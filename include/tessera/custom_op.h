/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom_op.h
 * Operations of your own: shapes, a placement rule, a forward and a backward on local pieces.
 *
 * An operation is asked three things, in this order:
 *
 *   shape     once per call: what comes out of these inputs, by global shapes
 *   place     once per mesh axis: how the inputs must lie on it, and how the output then lies
 *   forward   compute this rank's piece of the output from its pieces of the inputs
 *
 * and later, for the gradients, backward. Tessera moves inputs to where place wants them,
 * allocates, and moves gradients. How the gradient of an input comes out of backward follows from
 * the rule: Shard stays Shard; of a Partial it is Replicate; of a Replicate it is Replicate if the
 * output is Replicate, else Partial, for then each rank sees its own piece or term of the output
 * alone.
 *
 * forward and backward run where the device executes, in the order of its compute stream, and are
 * given host memory. On a simulated world they are not called; everything else is the same there.
 * Where tsr_op_* calls suffice, write a module instead: it needs no backward.
 *
 * Threads: one thread at a time per tape.
 */
#pragma once

#include "tessera/tape.h"

TSR_BEGIN_DECLS

/** Most inputs of an operation, and most values that its forward saves. */
#define TSR_OP_MAX_IN    4
#define TSR_OP_MAX_SAVED 4
/** Most bytes of settings. */
#define TSR_OP_ATTR_BYTES 96

/** A whole tensor, whatever its layout. */
typedef struct tsr_op_tensor {
    int ndim;
    int64_t shape[TSR_MAX_DIMS]; /**< Global. */
    tsr_dtype dtype;
} tsr_op_tensor;

/** One call by its shapes. */
typedef struct tsr_op_shapes {
    const char *where; /**< "softcap in layers.0.mlp", for messages; borrowed. */
    const void *attr;  /**< The call's settings, 8-byte aligned; zeros beyond. */
    int in_count;
    tsr_op_tensor in[TSR_OP_MAX_IN]; /**< Given. */
    tsr_op_tensor out;               /**< To be set; begins as in[0]. */
    int saved_count;                 /**< Values that forward writes for backward; begins as 0. */
    tsr_op_tensor saved[TSR_OP_MAX_SAVED];
} tsr_op_shapes;

/** One call on one mesh axis of more than one rank. */
typedef struct tsr_op_axis {
    const tsr_op_shapes *shapes;
    const char *name; /**< Of the axis. */
    int size;
    tsr_placement in[TSR_OP_MAX_IN];       /**< How they lie; to be set to what is wanted. */
    tsr_placement out;                     /**< To be set; begins as Replicate. */
    tsr_placement saved[TSR_OP_MAX_SAVED]; /**< Likewise. Replicate may differ between ranks. */
} tsr_op_axis;

/** This rank's piece of a tensor: row-major, contiguous, in host memory. It may be empty. */
typedef struct tsr_op_piece {
    void *data;    /**< Inputs, out in backward and dout are to be read only. NULL: absent. */
    int64_t count; /**< Elements of the piece. */
    int64_t shape[TSR_MAX_DIMS];  /**< Of the piece. */
    int64_t offset[TSR_MAX_DIMS]; /**< Of the piece in the tensor. */
    int ndim;
    tsr_dtype dtype;
} tsr_op_piece;

/** What forward and backward compute on. */
typedef struct tsr_op_work {
    unsigned char attr[TSR_OP_ATTR_BYTES]; /**< The call's settings; first, so 8-byte aligned. */
    int in_count, saved_count;
    tsr_op_piece in[TSR_OP_MAX_IN]; /**< In backward: those of keep_in. */
    tsr_op_piece out;               /**< In backward: if keep_out. */
    tsr_op_piece saved[TSR_OP_MAX_SAVED];
    tsr_op_piece dout;               /**< Backward: the gradient of out. */
    tsr_op_piece din[TSR_OP_MAX_IN]; /**< Backward: to be written, of in[i]'s type; absent where
                                          nobody wants it. */
    bool accumulate[TSR_OP_MAX_IN];  /**< Backward: add to din[i]; only where adds_grad. */
} tsr_op_work;

/** An operation. Zero-initialise for defaults. */
typedef struct tsr_custom_op {
    const char *name;                           /**< For messages and the ledger. */
    tsr_status (*shape)(tsr_op_shapes *shapes); /**< NULL: out is as in[0], nothing is saved. */
    tsr_status (*place)(tsr_op_axis *axis);
    void (*forward)(const tsr_op_work *work);
    void (*backward)(const tsr_op_work *work); /**< NULL: the operation has no gradient. */
    unsigned keep_in;                          /**< Bit i: backward reads in[i]. */
    bool keep_out;                             /**< backward reads out. */
    unsigned adds_grad; /**< Bit i: backward adds to din[i] where told to, which saves a copy;
                             else it only ever writes. */
    /** Types that forward and backward read in[i] in: TSR_DTYPE_BIT(TSR_F32) | ...; 0: f32 alone.
     *  A call with another is refused. */
    unsigned takes[TSR_OP_MAX_IN];
} tsr_custom_op;

/**
 * Run an operation of your own. Collective over the groups of the axes on which an input has to
 * move.
 *
 * @param op    Copied, so it may go when this returns.
 * @param in    in_count (1..TSR_OP_MAX_IN) dtensors, borrowed.
 * @param attr  Settings of attr_bytes <= TSR_OP_ATTR_BYTES, copied bit by bit; may be NULL.
 * @param out   A value of the tape.
 * @retval TSR_ERR_INVALID      no name, place or forward; a bad count or size; bits of keep_in or
 *                              adds_grad for inputs that the call does not have; an input of a
 *                              type that the operation does not take.
 * @retval TSR_ERR_PLACEMENT    place asked for a Shard of a dim that a tensor lacks, or for an
 *                              output that is whole although an input is not.
 * @retval TSR_ERR_UNSUPPORTED  the backend computes where the host has no addresses.
 */
TSR_CHECKED tsr_status tsr_op_custom(tsr_tape *tape, const tsr_custom_op *op,
                                     tsr_dtensor *const *in, int in_count, const void *attr,
                                     size_t attr_bytes, tsr_dtensor **out);

/* ---- a product, for forward and backward ---- */

/** c [m, n] (+)= op(a) [m, k] * op(b) [k, n], row-major, in host memory. */
typedef struct tsr_product {
    const void *a;                    /**< [m, k], or [k, m] if trans_a. */
    const void *b;                    /**< [k, n], or [n, k] if trans_b. */
    void *c;                          /**< [m, n]; overlaps neither. */
    int64_t m, n, k;                  /**< 0 or more; k 0 gives 0. */
    int64_t lda, ldb, ldc;            /**< Elements from row to row as stored; 0: rows lie close. */
    tsr_dtype a_type, b_type, c_type; /**< f32, bf16 or f16 each; 0: f32. Sums are f32. */
    bool trans_a, trans_b;
    bool accumulate; /**< Add to c. */
} tsr_product;

/**
 * Multiply matrices on the calling thread and the threads that the device computes with, at the
 * rate of tsr_op_linear(). Local. Blocks.
 *
 * For pieces in forward and backward, whose sizes are right by then: the status need not be looked
 * at there.
 *
 * @retval TSR_ERR_INVALID  a size below 0, rows that lie closer than they are long, another type,
 *                          or NULL where there are elements.
 * @retval TSR_ERR_NOMEM    no memory to pack operands in.
 */
TSR_API tsr_status tsr_product_compute(const tsr_product *product);

/* ---- words for rules ---- */

static inline tsr_placement tsr_shard(int dim)
{
    tsr_placement placement = {TSR_SHARD, 0};

    placement.dim = dim;
    return placement;
}

static inline tsr_placement tsr_replicate(void)
{
    tsr_placement placement = {TSR_REPLICATE, 0};

    return placement;
}

static inline tsr_placement tsr_partial(void)
{
    tsr_placement placement = {TSR_PARTIAL, 0};

    return placement;
}

/**
 * The rule of an operation on rows: in[0] may be Shard of its first @p dims dims, of others it is
 * made whole; the other inputs (gains, biases) are whole; out and what is saved lie as in[0].
 * Local.
 */
TSR_API void tsr_op_place_rows(tsr_op_axis *axis, int dims);

/**
 * The rule of an operation element by element: inputs of one shape lie alike, as the first of them
 * that is Shard, else whole; out and what is saved likewise. Local.
 */
TSR_API void tsr_op_place_pointwise(tsr_op_axis *axis);

TSR_END_DECLS
