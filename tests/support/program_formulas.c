/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_formulas.c
 * The operations by definition, in double, forward and backward.
 */
#include "support/program_formulas.h"

#include "base/base.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

#include "support/program.h"
#include "support/program_formulas_more.h"

/* ---- nodes ---- */

tsr_status truth_node_add(truth_tape *tape, const int64_t *shape, int ndim, int *out)
{
    truth_node *node = NULL;

    TSR_TRY(tsri_grow(&tape->nodes, &tape->capacity, tape->count + 1, sizeof(truth_node)));
    node = &tape->nodes[tape->count];
    *node = (truth_node){.ndim = ndim, .count = 1};
    for (int d = 0; d < ndim; d++) {
        node->shape[d] = shape[d];
        node->count *= shape[d];
    }
    *out = tape->count++;
    TSR_TRY(tsri_alloc((size_t)node->count, sizeof(double), &node->value));
    TSR_TRY(tsri_alloc((size_t)node->count, sizeof(double), &node->grad));
    return TSR_OK;
}

void truth_tape_clear(truth_tape *tape)
{
    for (int i = 0; i < tape->count; i++) {
        tsri_free(&tape->nodes[i].value);
        tsri_free(&tape->nodes[i].grad);
        tsri_free(&tape->nodes[i].rows);
    }
    tsri_free(&tape->nodes);
    *tape = (truth_tape){.rounding = tape->rounding};
}

static truth_operands operands_of(truth_tape *tape, int node)
{
    truth_operands o = {.y = &tape->nodes[node], .cols = 1};

    o.rounding = tape->rounding > 0.0 ? 0x1p-24 : 0.0;

    for (int i = 0; i < PROGRAM_MAX_IN; i++) {
        o.in[i] = &tape->nodes[o.y->in[i]]; /* those beyond in_count are node 0 */
    }
    if (o.y->ndim > 0) {
        o.cols = o.y->shape[o.y->ndim - 1];
    }
    o.rows = o.y->count / o.cols;
    return o;
}

double truth_round(double value, double unit)
{
    int exponent = 0;
    const int bits = unit > 0.0 ? (int)lround(-log2(unit)) : 0;

    if (bits == 0 || !isfinite(value) || value == 0.0) {
        return value;
    }
    (void)frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(value, bits - exponent)), exponent - bits);
}

/* ---- products and tables ---- */

static void linear(const truth_operands *o)
{
    const int64_t k = o->in[1]->shape[1];

    for (int64_t i = 0; i < o->y->count; i++) {
        const double *x = o->in[0]->value + i / o->cols * k;
        const double *w = o->in[1]->value + i % o->cols * k;
        double sum = o->y->in_count > 2 ? o->in[2]->value[i % o->cols] : 0.0;

        for (int64_t e = 0; e < k; e++) {
            sum += x[e] * w[e];
        }
        o->y->value[i] = sum;
    }
}

static void linear_grad(const truth_operands *o)
{
    const int64_t k = o->in[1]->shape[1];

    for (int64_t i = 0; i < o->y->count; i++) {
        const double dy = o->y->grad[i];
        const int64_t at_x = i / o->cols * k;
        const int64_t at_w = i % o->cols * k;

        for (int64_t e = 0; e < k; e++) {
            o->in[0]->grad[at_x + e] += dy * o->in[1]->value[at_w + e];
            o->in[1]->grad[at_w + e] += dy * o->in[0]->value[at_x + e];
        }
        if (o->y->in_count > 2) {
            o->in[2]->grad[i % o->cols] += dy;
        }
    }
}

/* Row of the table that gives row r of y. */
static int64_t table_row(const truth_operands *o, int64_t r)
{
    return o->y->op.kind == PROGRAM_EMBEDDING ? (int64_t)o->in[0]->value[r] : r % o->y->shape[1];
}

static void lookup(const truth_operands *o)
{
    for (int64_t i = 0; i < o->y->count; i++) {
        const int64_t at = table_row(o, i / o->cols) * o->cols + i % o->cols;
        const double x = o->y->op.kind == PROGRAM_POSITION ? o->in[0]->value[i] : 0.0;

        o->y->value[i] = x + o->in[1]->value[at];
    }
}

static void lookup_grad(const truth_operands *o)
{
    for (int64_t i = 0; i < o->y->count; i++) {
        o->in[1]->grad[table_row(o, i / o->cols) * o->cols + i % o->cols] += o->y->grad[i];
        if (o->y->op.kind == PROGRAM_POSITION) {
            o->in[0]->grad[i] += o->y->grad[i];
        }
    }
}

/* ---- norms ---- */

typedef struct row_norm {
    double mean, rstd;
} row_norm;

static row_norm norm_of(const truth_operands *o, int64_t r)
{
    const double *x = o->in[0]->value + r * o->cols;
    row_norm n = {0};
    double squares = 0.0;

    for (int64_t c = 0; c < o->cols && o->y->op.kind == PROGRAM_LAYERNORM; c++) {
        n.mean += x[c] / (double)o->cols;
    }
    for (int64_t c = 0; c < o->cols; c++) {
        squares += (x[c] - n.mean) * (x[c] - n.mean);
    }
    n.rstd = 1.0 / sqrt(squares / (double)o->cols + o->y->op.value);
    return n;
}

static void norm(const truth_operands *o)
{
    for (int64_t r = 0; r < o->rows; r++) {
        const row_norm n = norm_of(o, r);

        for (int64_t c = 0; c < o->cols; c++) {
            const double xhat = (o->in[0]->value[r * o->cols + c] - n.mean) * n.rstd;
            const double bias = o->y->in_count > 2 ? o->in[2]->value[c] : 0.0;

            o->y->value[r * o->cols + c] = xhat * o->in[1]->value[c] + bias;
        }
    }
}

static void norm_grad(const truth_operands *o)
{
    const bool centred = o->y->op.kind == PROGRAM_LAYERNORM;

    for (int64_t r = 0; r < o->rows; r++) {
        const row_norm n = norm_of(o, r);
        const double *x = o->in[0]->value + r * o->cols;
        const double *dy = o->y->grad + r * o->cols;
        double sum_g = 0.0;
        double sum_gx = 0.0;

        for (int64_t c = 0; c < o->cols; c++) {
            const double xhat = (x[c] - n.mean) * n.rstd;

            sum_g += centred ? dy[c] * o->in[1]->value[c] : 0.0;
            sum_gx += dy[c] * o->in[1]->value[c] * xhat;
            o->in[1]->grad[c] += dy[c] * xhat;
            if (o->y->in_count > 2) {
                o->in[2]->grad[c] += dy[c];
            }
        }
        for (int64_t c = 0; c < o->cols; c++) {
            const double xhat = (x[c] - n.mean) * n.rstd;

            o->in[0]->grad[r * o->cols + c] +=
                n.rstd * (dy[c] * o->in[1]->value[c] - (sum_g + xhat * sum_gx) / (double)o->cols);
        }
    }
}

/* ---- element by element ---- */

/* f(x) and f'(x). */
static double curve(const program_op *op, double x, double *slope)
{
    const double k = sqrt(2.0 / 3.14159265358979323846);
    double t = 0.0;

    switch ((int)op->kind) {
    case PROGRAM_GELU:
        t = tanh(k * (x + 0.044715 * x * x * x));
        *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * x * (1.0 + t);
    case PROGRAM_CAP:
        t = tanh(x / op->value);
        *slope = 1.0 - t * t;
        return op->value * t;
    case PROGRAM_TANH:
        return tanh(x);
    case PROGRAM_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    default:
        *slope = op->value;
        return op->value * x;
    }
}

static double dropout_factor(const truth_node *y, int64_t i)
{
    const double p = (double)(float)y->op.value;
    const int64_t row_elements = y->count / y->shape[0];
    const int64_t index = y->first_row * row_elements + i;
    const bool keeps =
        (double)tsri_rng_word(y->key, (uint64_t)index) >= floor(p * 4294967296.0 + 0.5);

    return keeps ? 1.0 / (1.0 - p) : 0.0;
}

static double sigmoid(double z)
{
    return 1.0 / (1.0 + exp(-z));
}

static void pointwise(const truth_operands *o)
{
    double slope = 0.0;

    for (int64_t i = 0; i < o->y->count; i++) {
        const double a = o->in[0]->value[i];
        double *y = &o->y->value[i];

        switch ((int)o->y->op.kind) {
        case PROGRAM_ADD:
            *y = a + o->in[1]->value[i];
            break;
        case PROGRAM_SILU_MUL:
            *y = a * sigmoid(a) * o->in[1]->value[i];
            break;
        case PROGRAM_DROPOUT:
            *y = a * dropout_factor(o->y, i);
            break;
        case PROGRAM_SPLIT_HEADS:
        case PROGRAM_MERGE_HEADS:
        case PROGRAM_REDISTRIBUTE:
            *y = a;
            break;
        default:
            *y = curve(&o->y->op, a, &slope);
        }
    }
}

static void pointwise_grad(const truth_operands *o)
{
    for (int64_t i = 0; i < o->y->count; i++) {
        const double a = o->in[0]->value[i];
        const double dy = o->y->grad[i];
        double slope = 1.0;

        switch ((int)o->y->op.kind) {
        case PROGRAM_ADD:
            o->in[1]->grad[i] += dy;
            break;
        case PROGRAM_SILU_MUL:
            slope = sigmoid(a) * (1.0 + a * (1.0 - sigmoid(a))) * o->in[1]->value[i];
            o->in[1]->grad[i] += dy * a * sigmoid(a);
            break;
        case PROGRAM_DROPOUT:
            slope = dropout_factor(o->y, i);
            break;
        case PROGRAM_TANH: /* of the result, as it is kept */
            slope = 1.0 - o->y->value[i] * o->y->value[i];
            break;
        case PROGRAM_SIGMOID:
            slope = o->y->value[i] * (1.0 - o->y->value[i]);
            break;
        case PROGRAM_SPLIT_HEADS:
        case PROGRAM_MERGE_HEADS:
        case PROGRAM_REDISTRIBUTE:
            break;
        default:
            (void)curve(&o->y->op, a, &slope);
        }
        o->in[0]->grad[i] += dy * slope;
    }
}

/* ---- heads ---- */

/* back: turn the gradient back. */
static void rope(const truth_operands *o, bool back)
{
    const int64_t d = o->cols;
    const int64_t heads = o->y->shape[2];

    for (int64_t i = 0; i < o->y->count; i++) {
        const int64_t c = i % d;
        const int64_t t = i / d / heads % o->y->shape[1];
        const int64_t pair = c < d / 2 ? i + d / 2 : i - d / 2;
        const double angle = (double)(t + o->y->op.number) *
                             pow(o->y->op.value, -2.0 * (double)(c % (d / 2)) / (double)d);
        const double turn = (c < d / 2) != back ? -sin(angle) : sin(angle);

        if (back) {
            o->in[0]->grad[i] += o->y->grad[i] * cos(angle) + o->y->grad[pair] * turn;
        } else {
            o->y->value[i] = o->in[0]->value[i] * cos(angle) + o->in[0]->value[pair] * turn;
        }
    }
}

/* Offset of (b, t, h, 0) in a tensor of attention. */
static int64_t head_at(const truth_node *x, int64_t b, int64_t t, int64_t h)
{
    return ((b * x->shape[1] + t) * x->shape[2] + h) * x->shape[3];
}

/* Positions that query (b, t, h) sees. */
static int64_t seen(const truth_operands *o, const int64_t *at)
{
    return o->y->op.number == 1 ? o->in[1]->shape[1] : at[1] + 1;
}

/* Its weights over them, and where its kv head is. */
static void attention_weights(const truth_operands *o, const int64_t *at, double *weight)
{
    const truth_node *q = o->in[0];
    const truth_node *k = o->in[1];
    const int64_t d = q->shape[3];
    const int64_t kv = at[2] / (q->shape[2] / k->shape[2]);
    const double *query = q->value + head_at(q, at[0], at[1], at[2]);
    double lse = 0.0;

    for (int64_t s = 0; s < seen(o, at); s++) {
        const double *key = k->value + head_at(k, at[0], s, kv);

        weight[s] = 0.0;
        for (int64_t c = 0; c < d; c++) {
            weight[s] += query[c] * key[c] / sqrt((double)d);
        }
    }
    lse = truth_log_sum(weight, seen(o, at));
    for (int64_t s = 0; s < seen(o, at); s++) {
        weight[s] = exp(weight[s] - lse);
    }
}

static void attention_row(const truth_operands *o, const int64_t *at, bool back)
{
    truth_node *q = o->in[0];
    truth_node *k = o->in[1];
    truth_node *v = o->in[2];
    const int64_t d = q->shape[3];
    const int64_t kv = at[2] / (q->shape[2] / k->shape[2]);
    const int64_t own = head_at(q, at[0], at[1], at[2]);
    double weight[64] = {0.0};
    double mean = 0.0;

    attention_weights(o, at, weight);
    for (int64_t s = 0; s < seen(o, at); s++) {
        const int64_t other = head_at(k, at[0], s, kv);

        for (int64_t c = 0; c < d; c++) {
            if (!back) {
                o->y->value[own + c] += weight[s] * v->value[other + c];
            } else {
                v->grad[other + c] += weight[s] * o->y->grad[own + c];
                mean += weight[s] * o->y->grad[own + c] * v->value[other + c];
            }
        }
    }
    for (int64_t s = 0; back && s < seen(o, at); s++) {
        const int64_t other = head_at(k, at[0], s, kv);
        double score = -mean;

        for (int64_t c = 0; c < d; c++) {
            score += o->y->grad[own + c] * v->value[other + c];
        }
        score *= weight[s] / sqrt((double)d);
        for (int64_t c = 0; c < d; c++) {
            q->grad[own + c] += score * k->value[other + c];
            k->grad[other + c] += score * q->value[own + c];
        }
    }
}

static void attention(const truth_operands *o, bool back)
{
    const int64_t *shape = o->y->shape;

    for (int64_t b = 0; b < shape[0]; b++) {
        for (int64_t t = 0; t < shape[1]; t++) {
            for (int64_t h = 0; h < shape[2]; h++) {
                attention_row(o, (const int64_t[]){b, t, h}, back);
            }
        }
    }
}

/* ---- nodes ---- */

static void result_shape(const truth_tape *tape, const program_op *op, const int *in,
                         int64_t *shape, int *ndim)
{
    const truth_node *x = &tape->nodes[in[0]];

    *ndim = x->ndim;
    memcpy(shape, x->shape, sizeof(x->shape));
    if (op->kind == PROGRAM_LINEAR) {
        shape[*ndim - 1] = tape->nodes[in[1]].shape[0];
    } else if (op->kind == PROGRAM_EMBEDDING) {
        shape[(*ndim)++] = tape->nodes[in[1]].shape[1];
    } else if (op->kind == PROGRAM_SPLIT_HEADS) {
        shape[*ndim] = shape[*ndim - 1] / op->number;
        shape[*ndim - 1] = op->number;
        (*ndim)++;
    } else if (op->kind == PROGRAM_MERGE_HEADS) {
        (*ndim)--;
        shape[*ndim - 1] *= shape[*ndim];
    } else if (op->kind == PROGRAM_MEAN) {
        shape[op->number] = 1;
    } else if (op->kind == PROGRAM_SLICE) {
        shape[*ndim - 1] = op->span;
    } else if (op->kind == PROGRAM_CONCAT) {
        for (int i = 1; i < op->in_count; i++) {
            shape[*ndim - 1] += tape->nodes[in[i]].shape[*ndim - 1];
        }
    } else if (op->kind == PROGRAM_MATMUL) {
        shape[*ndim - 1] = tape->nodes[in[1]].shape[op->number == 1 ? *ndim - 2 : *ndim - 1];
    } else if (op->kind == PROGRAM_CROSS_ENTROPY || op->kind == PROGRAM_SQUARE_SUM) {
        *ndim = 0;
    }
}

tsr_status truth_forward(truth_tape *tape, const program_op *op, const int *in, int *out)
{
    int64_t shape[TSR_MAX_DIMS];
    int ndim = 0;

    result_shape(tape, op, in, shape, &ndim);
    TSR_TRY(truth_node_add(tape, shape, ndim, out));
    tape->nodes[*out].op = *op;
    tape->nodes[*out].in_count = op->in_count;
    memcpy(tape->nodes[*out].in, in, (size_t)op->in_count * sizeof(int));
    return TSR_OK;
}

static void select_rows(const truth_operands *o, bool back)
{
    const int64_t row = o->y->count / o->y->shape[0];

    for (int64_t i = 0; i < o->y->count; i++) {
        truth_node *from = o->in[o->y->rows[i / row] ? 0 : 1];

        if (back) {
            from->grad[i] += o->y->grad[i];
        } else {
            o->y->value[i] = from->value[i];
        }
    }
}

void truth_compute(truth_tape *tape, int node)
{
    const truth_operands o = operands_of(tape, node);

    if (o.y->leaf == TRUTH_SELECT) {
        select_rows(&o, false);
        return;
    }
    switch ((int)o.y->op.kind) {
    case PROGRAM_SOFTMAX:
    case PROGRAM_MULTIPLY:
    case PROGRAM_MEAN:
    case PROGRAM_SLICE:
    case PROGRAM_CONCAT:
    case PROGRAM_MATMUL:
    case PROGRAM_CROSS_ENTROPY:
    case PROGRAM_SQUARE_SUM:
        truth_more(&o, false);
        break;
    case PROGRAM_LINEAR:
        linear(&o);
        break;
    case PROGRAM_EMBEDDING:
    case PROGRAM_POSITION:
        lookup(&o);
        break;
    case PROGRAM_LAYERNORM:
    case PROGRAM_RMSNORM:
        norm(&o);
        break;
    case PROGRAM_ROPE:
        rope(&o, false);
        break;
    case PROGRAM_ATTENTION:
        attention(&o, false);
        break;
    default:
        pointwise(&o);
    }
    for (int64_t i = 0; i < o.y->count; i++) {
        o.y->value[i] = truth_round(o.y->value[i], tape->rounding);
    }
}

void truth_backward(truth_tape *tape, int node)
{
    const truth_operands o = operands_of(tape, node);

    for (int64_t i = 0; i < o.y->count; i++) {
        o.y->grad[i] = truth_round(o.y->grad[i], tape->rounding);
    }
    if (o.y->leaf == TRUTH_SELECT) {
        select_rows(&o, true);
        return;
    }
    switch ((int)o.y->op.kind) {
    case PROGRAM_SOFTMAX:
    case PROGRAM_MULTIPLY:
    case PROGRAM_MEAN:
    case PROGRAM_SLICE:
    case PROGRAM_CONCAT:
    case PROGRAM_MATMUL:
    case PROGRAM_CROSS_ENTROPY:
    case PROGRAM_SQUARE_SUM:
        truth_more(&o, true);
        break;
    case PROGRAM_LINEAR:
        linear_grad(&o);
        break;
    case PROGRAM_EMBEDDING:
    case PROGRAM_POSITION:
        lookup_grad(&o);
        break;
    case PROGRAM_LAYERNORM:
    case PROGRAM_RMSNORM:
        norm_grad(&o);
        break;
    case PROGRAM_ROPE:
        rope(&o, true);
        break;
    case PROGRAM_ATTENTION:
        attention(&o, true);
        break;
    default:
        pointwise_grad(&o);
    }
}
