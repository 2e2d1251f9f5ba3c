/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op.h
 * Differentiable operations on dtensors.
 *
 * Every operation computes on local pieces and has a placement rule: which input layouts it takes,
 * what comes out, what its gradients are. Where an input lies otherwise, a redistribution is
 * inserted (and listed by tsr_plan_print). All are Collective over the groups of the axes that such
 * a redistribution or the rule itself needs; on one axis at most. Inputs are borrowed; outputs
 * belong to the tape (tape.h). Shapes below are global. Values are f32, bf16 or f16, of gain, bias,
 * table, k, v and up that of x, q or gate; another type is TSR_ERR_INVALID, naming operation,
 * module and input.
 *
 * Threads: one thread at a time per tape.
 */
#pragma once

#include "tessera/tape.h"

TSR_BEGIN_DECLS

/**
 * y [..., out] = x [..., in] weight[out, in]^T + bias[out]. Collective, see above.
 *
 * weight Shard(0): y Shard(last). weight Shard(1) with x Shard(last): y Partial; the bias is then
 * added by one rank alone. @p bias may be NULL.
 */
TSR_CHECKED tsr_status tsr_op_linear(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight,
                                     tsr_dtensor *bias, tsr_dtensor **out);

/** y [batch, seq, dim] = table[ids]; ids I32 [batch, seq], table [vocab, dim]. Collective, see
 * above. table Shard(0): y Partial. */
TSR_CHECKED tsr_status tsr_op_embedding(tsr_tape *tape, tsr_dtensor *ids, tsr_dtensor *table,
                                        tsr_dtensor **out);

/** y [batch, seq, dim] = x + table[0 .. seq). table [positions, dim]. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_add_position(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *table,
                                           tsr_dtensor **out);

/** Normalise the last dim; gain, bias [dim]. Collective, see above. x Shard of another dim stays.
 */
TSR_CHECKED tsr_status tsr_op_layernorm(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain,
                                        tsr_dtensor *bias, double eps, tsr_dtensor **out);

/** y = x / sqrt(mean(x^2) + eps) * gain over the last dim. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_rmsnorm(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain, double eps,
                                      tsr_dtensor **out);

/** y = exp(x) / its sum over the last dim. Collective, see above. x Shard of another dim stays. */
TSR_CHECKED tsr_status tsr_op_softmax(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** gelu in its tanh form. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_gelu(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** x where it is above 0, else 0 (and no gradient). Collective, see above. */
TSR_CHECKED tsr_status tsr_op_relu(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** tanh(x). Collective, see above. */
TSR_CHECKED tsr_status tsr_op_tanh(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** 1 / (1 + exp(-x)). Collective, see above. */
TSR_CHECKED tsr_status tsr_op_sigmoid(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** silu(gate) * up. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_silu_mul(tsr_tape *tape, tsr_dtensor *gate, tsr_dtensor *up,
                                       tsr_dtensor **out);

/**
 * Entries begin .. begin + count of dim @p dim of x. Collective, see above. x is made whole along
 * dim; a Shard of another dim stays.
 *
 * @retval TSR_ERR_SHAPE  x has no such dim or entries, or count is below 1.
 */
TSR_CHECKED tsr_status tsr_op_slice(tsr_tape *tape, tsr_dtensor *x, int dim, int64_t begin,
                                    int64_t count, tsr_dtensor **out);

/**
 * parts[part_count] one after another along dim @p dim. Collective, see above.
 *
 * They are of one type, and of one shape but for dim, along which they are made whole; a Shard of
 * another dim stays.
 *
 * @param part_count  1..4; of more, a concat of concats.
 * @retval TSR_ERR_SHAPE    the first has no such dim, or another has another shape.
 * @retval TSR_ERR_INVALID  a bad count.
 */
TSR_CHECKED tsr_status tsr_op_concat(tsr_tape *tape, tsr_dtensor *const *parts, int part_count,
                                     int dim, tsr_dtensor **out);

/** View [..., heads * d] as [..., heads, d]. Local. A Shard of the last dim becomes one of heads,
 *  which the axis must divide. */
TSR_CHECKED tsr_status tsr_op_split_heads(tsr_tape *tape, tsr_dtensor *x, int heads,
                                          tsr_dtensor **out);

/** View [..., heads, d] as [..., heads * d]: the inverse of tsr_op_split_heads. Local. */
TSR_CHECKED tsr_status tsr_op_merge_heads(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out);

/** Rotary embedding, half-split, of x [batch, seq, heads, d]; positions 0..seq-1; theta above 0.
 *  Collective. */
TSR_CHECKED tsr_status tsr_op_rope(tsr_tape *tape, tsr_dtensor *x, double theta, tsr_dtensor **out);

/** tsr_op_rope() at positions first .. first + seq - 1, first from 0 to 2^52: x goes on where
 * others ended. Collective. TSR_ERR_INVALID: another first, or theta. */
TSR_CHECKED tsr_status tsr_op_rope_at(tsr_tape *tape, tsr_dtensor *x, double theta, int64_t first,
                                      tsr_dtensor **out);

/**
 * Causal attention: q [batch, seq, heads, d], k and v [batch, seq, kv_heads, d]. Collective.
 *
 * Heads may be sharded; k and v then are sharded alike, or replicated where kv_heads divides the
 * axis. @p scale 0 means 1 / sqrt(d).
 */
TSR_CHECKED tsr_status tsr_op_attention(tsr_tape *tape, tsr_dtensor *q, tsr_dtensor *k,
                                        tsr_dtensor *v, double scale, tsr_dtensor **out);

/** Zero-initialise for defaults. */
typedef struct tsr_attention_options {
    double scale; /**< Of scores; 0: 1 / sqrt(d). */
    bool full;    /**< Every query sees every key; default: causal. */
} tsr_attention_options;

/**
 * Attention of q [batch, seq, heads, d] to k and v [batch, kv_seq, kv_heads, d]. Collective, placed
 * as tsr_op_attention().
 *
 * Causal: the queries are the last of kv_seq positions, and see the keys up to their own; kv_seq is
 * then seq at least. Full: to a sequence of another length, in both directions.
 *
 * @param options  NULL for defaults.
 * @retval TSR_ERR_SHAPE  batch or d differ, kv_heads do not divide heads, or keys are too few.
 */
TSR_CHECKED tsr_status tsr_op_attention_with(tsr_tape *tape, tsr_dtensor *q, tsr_dtensor *k,
                                             tsr_dtensor *v, const tsr_attention_options *options,
                                             tsr_dtensor **out);

/** Zero-initialise for defaults. */
typedef struct tsr_matmul_options {
    bool trans_a; /**< a is [..., k, m]. */
    bool trans_b; /**< b is [..., n, k]. */
} tsr_matmul_options;

/**
 * y [..., m, n] = a [..., m, k] b [..., k, n], product by product of equal leading dims.
 * Collective, see above. Of one product with a weight: tsr_op_linear().
 *
 * Shards of leading dims, of m and of n stay; a or b Shard(k): y Partial. Where an axis splits both
 * m and n, b is made whole on it.
 *
 * @param options  NULL for defaults.
 * @retval TSR_ERR_SHAPE  fewer than two dims, or dims that do not meet.
 */
TSR_CHECKED tsr_status tsr_op_matmul(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b,
                                     const tsr_matmul_options *options, tsr_dtensor **out);

/** a + b, of one shape. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_add(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b,
                                  tsr_dtensor **out);

/**
 * a * b, element by element, of a's shape and type. Collective, see above.
 *
 * b has a's shape, but for neighbouring dims in which it is repeated: those in which it is 1, or
 * which it lacks in front (a dim that is 1 in both counts either way). [batch, seq, dim] times
 * [dim], [batch, seq, 1] or [seq, dim]; not [batch, 1, dim, 1] to four dims, which are two runs.
 *
 * @retval TSR_ERR_SHAPE  b has another shape.
 */
TSR_CHECKED tsr_status tsr_op_multiply(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b,
                                       tsr_dtensor **out);

/**
 * Sum of x over dim @p dim. Collective, see above. x Shard(dim): out Partial.
 *
 * Over all dims, one after another, it is a scalar: a loss of one's own.
 *
 * @param keep  out has the dim too, of extent 1, so that tsr_op_multiply() repeats it along it.
 * @retval TSR_ERR_SHAPE  x has no such dim.
 */
TSR_CHECKED tsr_status tsr_op_sum(tsr_tape *tape, tsr_dtensor *x, int dim, bool keep,
                                  tsr_dtensor **out);

/** tsr_op_sum() divided by the dim's extent, which is not 0. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_mean(tsr_tape *tape, tsr_dtensor *x, int dim, bool keep,
                                   tsr_dtensor **out);

/** x * factor. Collective, see above. */
TSR_CHECKED tsr_status tsr_op_scale(tsr_tape *tape, tsr_dtensor *x, double factor,
                                    tsr_dtensor **out);

/** x in another of f32, bf16 and f16; its gradient is cast back. Local. Of x's own type: out is x.
 */
TSR_CHECKED tsr_status tsr_op_cast(tsr_tape *tape, tsr_dtensor *x, tsr_dtype dtype,
                                   tsr_dtensor **out);

/** Zero each element with probability @p p, scale the others by 1 / (1 - p). Collective. The mask
 *  depends on seed, step, module path, call number and global element alone; the call number counts
 *  calls in that path on this rank, so ranks that leave one out should leave out those behind it
 *  too, or give them a module of their own. p 0, and in an evaluation: out is x. */
TSR_CHECKED tsr_status tsr_op_dropout(tsr_tape *tape, tsr_dtensor *x, double p, tsr_dtensor **out);

/**
 * loss [] = sum of the cross entropies of rows whose label is not TSR_IGNORE_INDEX, divided by the
 * step's count of them; in an evaluation by the count of these labels. Collective over the axes
 * that shard the vocabulary (max, then sums), in an evaluation also over those that split labels.
 *
 * Labels that were not given to tsr_step_begin are not in that count: the log says so once.
 *
 * @param logits  [batch, seq, vocab]; the vocabulary may be sharded.
 * @param labels  I32 [batch, seq], placed as logits are on batch and seq.
 * @param out     f32 scalar, Partial over the data axes.
 */
TSR_CHECKED tsr_status tsr_op_cross_entropy(tsr_tape *tape, tsr_dtensor *logits,
                                            tsr_dtensor *labels, tsr_dtensor **out);

/** x in another layout, differentiable by the dual rule. Collective over the axes that change.
 *  TSR_ERR_PLACEMENT to Partial from anything but Partial. */
TSR_CHECKED tsr_status tsr_op_redistribute(tsr_tape *tape, tsr_dtensor *x, const tsr_layout *layout,
                                           tsr_dtensor **out);

TSR_END_DECLS
