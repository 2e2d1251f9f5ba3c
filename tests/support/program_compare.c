/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_compare.c
 * Tolerances of a program, and what is off by more.
 */
#include "support/program_compare.h"

#include <math.h>
#include <stdio.h>

#include "autograd/param.h"
#include "support/array.h"
#include "support/program.h"

static double unit_of(const program *p)
{
    return fmax(tsr_array_unit(p->param_dtype), tsr_array_unit(p->reduce_dtype));
}

static double base_tolerance(const program *p)
{
    return unit_of(p) * 64.0 * sqrt((double)(p->batch * p->seq * (p->dim + p->vocab)));
}

static double largest(const double *x, const double *less, int64_t count)
{
    double most = 0.0;

    for (int64_t i = 0; x != NULL && i < count; i++) {
        most = fmax(most, fabs(x[i] - (less != NULL ? less[i] : 0.0)));
    }
    return most;
}

/* What gradients of param are measured by. */
static double grad_scale(const program *p, const program_truth *t, int step, int param)
{
    double model = 0.0;

    for (int i = 0; i < p->param_count; i++) {
        model = fmax(model, largest(t->grad[step][i], NULL, program_param_elements(&p->params[i])));
    }
    return fmax(fmax(largest(t->grad[step][param], NULL, program_param_elements(&p->params[param])),
                     model / 64.0),
                1e-12);
}

/* Relative error of any gradient of the step. */
static double grad_tolerance(const program *p, const program_run_options *o, int step)
{
    double noise = 0.0;

    for (int i = 0; i < p->param_count; i++) {
        noise = fmax(noise, largest(o->exact->grad[step][i], o->rounded->grad[step][i],
                                    program_param_elements(&p->params[i])) /
                                grad_scale(p, o->exact, step, i));
    }
    return base_tolerance(p) + 16.0 * noise;
}

/* Absolute error of a value after the updates of steps 0 .. step. */
static double value_tolerance(const program *p, const program_run_options *o, int step, int param)
{
    const tsr_optimizer_options *opt =
        &p->optimizers[p->optimizer_count == 2 && p->params[param].second ? 1 : 0];
    const int64_t count = program_param_elements(&p->params[param]);
    double sum =
        0x1p-22 * largest(o->exact->value[step][param], NULL, count) +
        16.0 * largest(o->exact->value[step][param], o->rounded->value[step][param], count);

    for (int s = 0; s <= step; s++) {
        const double error =
            p->steps[s].update ? grad_tolerance(p, o, s) * grad_scale(p, o->exact, s, param) : 0.0;

        sum += p->lr * (opt->kind == TSR_SGD ? 3.0 * error : fmin(4.0, 4.0 * error / opt->eps));
    }
    return sum;
}

static void miss(program_report *report, double off, double tolerance, const char *text)
{
    const double ratio = off / tolerance;

    if (!(ratio <= report->worst)) {
        report->worst = ratio;
    }
    if (!(off <= tolerance) && !report->failed) {
        report->failed = true;
        (void)snprintf(report->text, sizeof(report->text), "%s", text);
    }
}

void program_compare_number(const program *p, const program_run_options *o, int step,
                            const char *what, double have, double want, double rounded,
                            program_report *report)
{
    const double noise = p->steps[step].update ? grad_tolerance(p, o, step) : base_tolerance(p);
    const double tolerance = noise * fabs(want) + 16.0 * fabs(want - rounded) + 1e-12;
    char text[256];

    (void)snprintf(text, sizeof(text), "step %d: %s is %.9g, wants %.9g, off by %.3g > %.3g", step,
                   what, have, want, fabs(have - want), tolerance);
    miss(report, fabs(have - want), tolerance, text);
}

void program_compare_piece(const program *p, const program_run_options *o, int step, int param,
                           bool is_grad, const tsr_param *piece, const float *have,
                           program_report *report)
{
    const double *want = is_grad ? o->exact->grad[step][param] : o->exact->value[step][param];
    const double tolerance = is_grad
                                 ? grad_tolerance(p, o, step) * grad_scale(p, o->exact, step, param)
                                 : value_tolerance(p, o, step, param);

    const tsri_block b = piece->master.piece.block;
    for (int64_t e = piece->master.piece.begin; e < piece->master.piece.end; e++) {
        const int64_t row = b.first_row + e / b.cols;
        const int64_t col = b.first_col + e % b.cols;
        const double mine = (double)have[e - piece->master.piece.begin];
        const double right = want[row * b.global_cols + col];
        char text[256];

        (void)snprintf(text, sizeof(text),
                       "step %d: %s of %s at %lld, %lld is %.9g, wants %.9g (ratio %.6g), off by "
                       "%.3g > %.3g",
                       step, is_grad ? "gradient" : "value", tsr_param_name(piece), (long long)row,
                       (long long)col, mine, right, mine / right, fabs(mine - right), tolerance);
        miss(report, fabs(mine - right), tolerance, text);
    }
}
