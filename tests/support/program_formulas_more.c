/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_formulas_more.c
 * Softmax, products, means, copies and losses by definition, in double; back: their gradients.
 */
#include "support/program_formulas_more.h"

#include <math.h>

#include "support/program.h"

/* ---- rows ---- */

double truth_log_sum(const double *x, int64_t n)
{
    double most = x[0];
    double sum = 0.0;

    for (int64_t i = 1; i < n; i++) {
        most = fmax(most, x[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(x[i] - most);
    }
    return most + log(sum);
}

static void softmax(const truth_operands *o, bool back)
{
    for (int64_t r = 0; r < o->rows; r++) {
        const int64_t at = r * o->cols;
        const double lse = truth_log_sum(o->in[0]->value + at, o->cols);
        double along = 0.0;

        for (int64_t c = 0; c < o->cols; c++) {
            along += o->y->grad[at + c] * o->y->value[at + c];
        }
        for (int64_t c = 0; c < o->cols; c++) {
            if (back) {
                o->in[0]->grad[at + c] += o->y->value[at + c] * (o->y->grad[at + c] - along);
            } else {
                o->y->value[at + c] = exp(o->in[0]->value[at + c] - lse);
            }
        }
    }
}

/* ---- products, means and copies ---- */

/* Element of from that belongs to element i of y: dims aligned at the last, those of extent 1 once.
 */
static int64_t repeated_at(const truth_node *y, const truth_node *from, int64_t i)
{
    int64_t at = 0;
    int64_t stride = 1;

    for (int d = y->ndim - 1, e = from->ndim - 1; e >= 0; d--, e--) {
        at += from->shape[e] > 1 ? i % y->shape[d] * stride : 0;
        stride *= from->shape[e];
        i /= y->shape[d];
    }
    return at;
}

static void multiply(const truth_operands *o, bool back)
{
    for (int64_t i = 0; i < o->y->count; i++) {
        const int64_t at = repeated_at(o->y, o->in[1], i);

        if (back) {
            o->in[0]->grad[i] += o->y->grad[i] * o->in[1]->value[at];
            o->in[1]->grad[at] += o->y->grad[i] * o->in[0]->value[i];
        } else {
            o->y->value[i] = o->in[0]->value[i] * o->in[1]->value[at];
        }
    }
}

static void mean(const truth_operands *o, bool back)
{
    const double share = 1.0 / (double)o->in[0]->shape[o->y->op.number];

    for (int64_t i = 0; i < o->in[0]->count; i++) {
        const int64_t at = repeated_at(o->in[0], o->y, i);

        if (back) {
            o->in[0]->grad[i] += share * o->y->grad[at];
        } else {
            o->y->value[at] += share * o->in[0]->value[i];
        }
    }
}

/* A slice or parts of the last dim: y's columns from to on are x's from from on. */
static void copy_columns(const truth_operands *o, truth_node *x, int64_t to, int64_t from,
                         bool back)
{
    const int64_t cols = x->shape[x->ndim - 1];

    for (int64_t i = 0; i < x->count; i++) {
        const int64_t column = i % cols - from + to;

        if (i % cols < from || column >= o->cols) {
            continue;
        }
        if (back) {
            x->grad[i] += o->y->grad[i / cols * o->cols + column];
        } else {
            o->y->value[i / cols * o->cols + column] = x->value[i];
        }
    }
}

static void concat(const truth_operands *o, bool back)
{
    int64_t to = 0;

    for (int i = 0; i < o->y->in_count; i++) {
        copy_columns(o, o->in[i], to, 0, back);
        to += o->in[i]->shape[o->y->ndim - 1];
    }
}

/* y [..., m, n] = a [..., m, k] b, of b [..., k, n] or [..., n, k]. */
static void matmul(const truth_operands *o, bool back)
{
    truth_node *a = o->in[0];
    truth_node *b = o->in[1];
    const int64_t m = o->y->shape[o->y->ndim - 2];
    const int64_t k = a->shape[a->ndim - 1];

    for (int64_t i = 0; i < o->y->count; i++) {
        for (int64_t e = 0; e < k; e++) {
            const int64_t item = i / o->cols / m * o->cols * k;
            const int64_t at_a = i / o->cols * k + e;
            const int64_t at_b =
                item + (o->y->op.number == 1 ? i % o->cols * k + e : e * o->cols + i % o->cols);

            if (back) {
                a->grad[at_a] += o->y->grad[i] * b->value[at_b];
                b->grad[at_b] += o->y->grad[i] * a->value[at_a];
            } else {
                o->y->value[i] += a->value[at_a] * b->value[at_b];
            }
        }
    }
}

/* ---- scalars ---- */

static void cross_entropy(const truth_operands *o, bool back)
{
    truth_node *x = o->in[0];
    const int64_t n = x->shape[x->ndim - 1];

    for (int64_t r = 0; r < x->count / n; r++) {
        const int label = (int)o->in[1]->value[r];
        const double lse = truth_round(truth_log_sum(x->value + r * n, n), o->rounding);

        for (int64_t c = 0; back && label != TSR_IGNORE_INDEX && c < n; c++) {
            x->grad[r * n + c] += o->y->grad[0] / o->y->tokens *
                                  (exp(x->value[r * n + c] - lse) - (c == label ? 1.0 : 0.0));
        }
        if (!back && label != TSR_IGNORE_INDEX) {
            o->y->value[0] += (lse - x->value[r * n + label]) / o->y->tokens;
        }
    }
}

static void square_sum(const truth_operands *o, bool back)
{
    for (int64_t i = 0; i < o->in[0]->count; i++) {
        const double x = o->in[0]->value[i];

        if (back) {
            o->in[0]->grad[i] += o->y->op.value * x * o->y->grad[0];
        } else {
            o->y->value[0] += o->y->op.value * 0.5 * x * x;
        }
    }
}

/* ---- all of them ---- */

void truth_more(const truth_operands *o, bool back)
{
    switch ((int)o->y->op.kind) {
    case PROGRAM_CROSS_ENTROPY:
        cross_entropy(o, back);
        break;
    case PROGRAM_SQUARE_SUM:
        square_sum(o, back);
        break;
    case PROGRAM_SOFTMAX:
        softmax(o, back);
        break;
    case PROGRAM_MULTIPLY:
        multiply(o, back);
        break;
    case PROGRAM_MEAN:
        mean(o, back);
        break;
    case PROGRAM_SLICE:
        copy_columns(o, o->in[0], 0, o->y->op.number, back);
        break;
    case PROGRAM_CONCAT:
        concat(o, back);
        break;
    default:
        matmul(o, back);
    }
}
