/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file probe_fit.c
 * From times of collectives to the figures of a link.
 *
 * What machine.h says of a collective is linear in the cost of a call, the latency of a hop and the
 * time of a byte, so each tier is fitted by least squares, from the nearest on: the rate to large
 * cells, latencies to what the bytes leave of small ones. Relative errors count.
 */
#include "bench/bench_priv.h"
#include "probe_priv.h"

#include <math.h>
#include <string.h>

static const double unlimited_bytes_per_s = 1e13; /* latency alone explains all times */

/* Solve a x = b of size n by elimination; false if it is singular. */
static bool solve(double a[TSRI_PROBE_UNKNOWNS][TSRI_PROBE_UNKNOWNS + 1], int n, double *x)
{
    for (int i = 0; i < n; i++) {
        int best = i;

        for (int r = i + 1; r < n; r++) {
            best = fabs(a[r][i]) > fabs(a[best][i]) ? r : best;
        }
        if (!(fabs(a[best][i]) > 0.0)) {
            return false;
        }
        for (int c = 0; c <= n; c++) {
            const double held = a[i][c];

            a[i][c] = a[best][c];
            a[best][c] = held;
        }
        for (int r = 0; r < n; r++) {
            const double factor = r == i ? 0.0 : a[r][i] / a[i][i];

            for (int c = i; c <= n; c++) {
                a[r][c] -= factor * a[i][c];
            }
        }
    }
    for (int i = 0; i < n; i++) {
        x[i] = a[i][n] / a[i][i];
    }
    return true;
}

typedef struct system {
    const double (*rows)[TSRI_PROBE_UNKNOWNS];
    const double *wanted;
    int count, unknowns;
} system;

/* The fit in which only the unknowns of set are not 0; false if one would be below. */
static bool fit_set(const system *s, unsigned set, double *x)
{
    double a[TSRI_PROBE_UNKNOWNS][TSRI_PROBE_UNKNOWNS + 1] = {{0.0}};
    double found[TSRI_PROBE_UNKNOWNS] = {0.0};
    int index[TSRI_PROBE_UNKNOWNS];
    int n = 0;

    for (int u = 0; u < s->unknowns; u++) {
        x[u] = 0.0;
        if ((set >> u & 1U) != 0) {
            index[n++] = u;
        }
    }
    for (int r = 0; r < s->count; r++) {
        const double weight = 1.0 / (s->wanted[r] * s->wanted[r]);

        for (int i = 0; i < n; i++) {
            for (int k = 0; k < n; k++) {
                a[i][k] += weight * s->rows[r][index[i]] * s->rows[r][index[k]];
            }
            a[i][n] += weight * s->rows[r][index[i]] * s->wanted[r];
        }
    }
    if (!solve(a, n, found)) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!(found[i] >= 0.0)) {
            return false;
        }
        x[index[i]] = found[i];
    }
    return true;
}

static double error_of(const system *s, const double *x)
{
    double sum = 0.0;

    for (int r = 0; r < s->count; r++) {
        double value = 0.0;

        for (int u = 0; u < s->unknowns; u++) {
            value += s->rows[r][u] * x[u];
        }
        sum += (value / s->wanted[r] - 1.0) * (value / s->wanted[r] - 1.0);
    }
    return sum;
}

/* Few unknowns: all sets of those that are not 0 are tried. */
void tsri_probe_fit(const double (*rows)[TSRI_PROBE_UNKNOWNS], const double *wanted, int count,
                    int unknowns, double *x)
{
    const system s = {rows, wanted, count, unknowns};
    double least = INFINITY;

    memset(x, 0, sizeof(*x) * (size_t)unknowns);
    for (unsigned set = 1; set < 1U << unknowns; set++) {
        double found[TSRI_PROBE_UNKNOWNS];

        if (fit_set(&s, set, found) && error_of(&s, found) < least) {
            least = error_of(&s, found);
            memcpy(x, found, sizeof(*x) * (size_t)unknowns);
        }
    }
}

static double rounds_of(tsri_coll_kind kind)
{
    return kind == TSRI_ALL_REDUCE ? 2.0 : 1.0;
}

/* Hops of a tier that a collective waits for. */
static double hops_of(const tsri_reach *reach, const tsri_probe_row *row, int tier)
{
    return rounds_of(row->kind) * reach->hops[tier] * (row->ranks - 1.0) / row->ranks;
}

/* Which rows a fit is made to, and what of them it has to explain. */
typedef struct fitting {
    double rows[TSRI_PROBE_MAX_ROWS][TSRI_PROBE_UNKNOWNS];
    double wanted[TSRI_PROBE_MAX_ROWS];
    int count;
} fitting;

static void add_row(fitting *f, double s, double rest, double a, double b)
{
    const double least = 0.1 * s; /* noise may leave nothing to explain */

    f->rows[f->count][0] = a;
    f->rows[f->count][1] = b;
    f->wanted[f->count++] = rest > least ? rest : least;
}

static void solve_fitting(const fitting *f, int unknowns, double *x)
{
    tsri_probe_fit((const double(*)[TSRI_PROBE_UNKNOWNS])f->rows, f->wanted, f->count, unknowns, x);
}

/* A link's figures: of a byte, of a hop, for the nearest one of a call, and of compute beside it.
 */
typedef struct link_costs {
    double byte_s, hop_s, call_s, busy_s;
} link_costs;

/* What a row says about one link: seconds without those of links before it. */
typedef struct link_row {
    double s, bytes, hops;
    bool large, busy;
} link_row;

/* Of the time of a large call latency is little. */
static void fit_byte(const link_row *rows, int count, link_costs *costs)
{
    fitting f = {.count = 0};
    double x[TSRI_PROBE_UNKNOWNS];

    for (int r = 0; r < count; r++) {
        if (rows[r].large) {
            add_row(&f, rows[r].s, rows[r].s, rows[r].bytes, 0.0);
        }
    }
    solve_fitting(&f, 1, x);
    costs->byte_s = x[0];
}

static void fit_latency(const link_row *rows, int count, bool first, link_costs *costs)
{
    fitting f = {.count = 0};
    double x[TSRI_PROBE_UNKNOWNS] = {0.0};

    for (int r = 0; r < count; r++) {
        if (!rows[r].large && !rows[r].busy) {
            add_row(&f, rows[r].s, rows[r].s - (rows[r].bytes * costs->byte_s), rows[r].hops, 1.0);
        }
    }
    solve_fitting(&f, first ? 2 : 1, x);
    costs->hop_s = x[0];
    costs->call_s = first ? x[1] : 0.0;
}

/* The median of what busy calls take longer than the idle ones before them. */
static void find_busy(const link_row *rows, int count, link_costs *costs)
{
    double values[TSRI_PROBE_MAX_ROWS];
    int used = 0;

    for (int r = 1; r < count; r++) {
        if (rows[r].busy) {
            values[used++] = rows[r].s > rows[r - 1].s ? rows[r].s - rows[r - 1].s : 0.0;
        }
    }
    costs->busy_s = used > 0 ? tsri_bench_median(values, used) : 0.0;
}

static link_costs fit_link(const link_row *rows, int count, bool first)
{
    link_costs costs = {0.0, 0.0, 0.0, 0.0};

    fit_byte(rows, count, &costs);
    fit_latency(rows, count, first, &costs);
    find_busy(rows, count, &costs);
    return costs;
}

static double rate_of(const link_costs *costs)
{
    return costs->byte_s > 1.0 / unlimited_bytes_per_s ? 1.0 / costs->byte_s
                                                       : unlimited_bytes_per_s;
}

void tsri_probe_fit_tier(tsri_machine *m, int tier, const tsri_probe_row *rows, int count,
                         const tsri_reach *reach)
{
    link_row found[TSRI_PROBE_MAX_ROWS] = {{0}};
    int used = 0;

    for (int r = 0; r < count; r++) {
        const bool large = rows[r].large;
        double rest = rows[r].s - (tier > 0 && !large ? m->call_s : 0.0);

        if (reach[r].top != tier) {
            continue;
        }
        for (int below = 0; below < tier && !large; below++) {
            rest -= hops_of(&reach[r], &rows[r], below) * m->tiers[below].hop_s;
        }
        found[used++] =
            (link_row){.s = rest > 0.1 * rows[r].s ? rest : 0.1 * rows[r].s,
                       .bytes = tsri_machine_crossing(&reach[r], tier, (int)rows[r].kind,
                                                      rows[r].bytes, rows[r].ranks) *
                                reach[r].shared[tier],
                       .hops = hops_of(&reach[r], &rows[r], tier),
                       .large = large,
                       .busy = rows[r].busy};
    }
    const link_costs costs = fit_link(found, used, tier == 0);

    m->tiers[tier].hop_s = costs.hop_s;
    m->tiers[tier].busy_s = costs.busy_s;
    m->tiers[tier].bytes_per_s = rate_of(&costs);
    m->call_s = tier == 0 ? costs.call_s : m->call_s;
}

void tsri_probe_fit_axis(const tsri_probe_row *rows, int count, tsri_probe_axis *axis)
{
    link_row found[TSRI_PROBE_MAX_ROWS] = {{0}};

    for (int r = 0; r < count; r++) {
        const double steps = rounds_of(rows[r].kind) * (rows[r].ranks - 1.0);

        found[r] = (link_row){.s = rows[r].s,
                              .bytes = steps * rows[r].bytes / rows[r].ranks,
                              .hops = steps,
                              .large = rows[r].large,
                              .busy = rows[r].busy};
    }
    const link_costs costs = fit_link(found, count, false);

    axis->hop_s = costs.hop_s;
    axis->bytes_per_s = rate_of(&costs);
}
