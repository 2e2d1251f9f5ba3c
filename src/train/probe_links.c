/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file probe_links.c
 * Links, from collectives that all groups of a kind make at once.
 *
 * A cell is one kind of collective, over one set of axes, of one size. Its calls follow each other,
 * each waited for. A sample is the time of some calls, on the slowest rank; the cell's time is the
 * median of its samples. Sizes are a small one, for the latency, and that of a unit of the job, for
 * the rate, or as much of it as the time allows. In a step a collective begins when compute goes on
 * with what the one before it brought, and the thread that moves it has to get a core first: so
 * small calls are made once more while the rank multiplies matrices.
 *
 * The machine's tiers are found from where ranks live. What machine.h says of a collective is
 * linear in the cost of a call, the latency of a hop and the time of a byte, so each tier is fitted
 * by least squares, from the nearest on: the rate to large cells, latencies to what the bytes leave
 * of small ones. Relative errors count.
 */
#include "probe_priv.h"
#include "train/bench_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <math.h>
#include <string.h>

enum {
    CELLS = 3, /* of a kind: small, small beside compute, large */
    KINDS = 3,
    ROUNDS = 5,
    MOST_CALLS = 64,
    TRIES = 2,
    GROWTH = 4,
    MOST_MASKS = TSRI_PROBE_MAX_ROWS / CELLS / KINDS
};

static const double small_bytes = 1 << 10, middle_bytes = 256 << 10, most_bytes = 16 << 20;
static const double enough_bytes = 1 << 20, longest_s = 10.0;
static const double unlimited_bytes_per_s = 1e13; /* latency alone explains all times */
static const tsri_coll_kind kinds[KINDS] = {TSRI_ALL_GATHER, TSRI_REDUCE_SCATTER, TSRI_ALL_REDUCE};

/* What is measured, and with how much patience. */
typedef struct link_plan {
    unsigned masks[MOST_MASKS];
    int mask_count;
    int kind_count;     /* of kinds, from the first on */
    double large_bytes; /* of the large cells, at most */
    double
        longest_s;  /* that a large cell may take to get beyond what a network lets pass at once */
    double seconds; /* of all, about */
} link_plan;

typedef struct link_probe {
    tsr_world *world;
    tsr_comm *comm;
    tsr_stream *stream;
    tsr_group *group; /* of the row being measured */
    tsr_buffer *in, *out;
    bench_matmul work; /* what compute does meanwhile */
    const link_plan *plan;
} link_probe;

enum {
    WORK_SIDE = 192 /* of a matmul of some 0.1 ms */
};

/* ---- measuring ---- */

static bool is_large(const tsri_probe_row *row)
{
    return row->bytes >= middle_bytes;
}

static tsr_status work_until(link_probe *p, tsr_event event)
{
    bench_rate ignored;

    while (!tsri_event_done(event)) {
        TSR_TRY(tsri_bench_matmul_run(&p->work, &ignored));
    }
    return TSR_OK;
}

static tsr_status make_calls(link_probe *p, const tsri_probe_row *row, int calls)
{
    const int64_t whole = (int64_t)(row->bytes / sizeof(float));
    const tsri_coll_item item = {.in = p->in,
                                 .out = p->out,
                                 .count =
                                     row->kind == TSRI_ALL_REDUCE ? whole : whole / row->ranks};
    const tsri_coll coll = {.kind = row->kind,
                            .dtype = TSR_F32,
                            .op = TSRI_SUM,
                            .items = &item,
                            .item_count = 1,
                            .label = "probe"};

    for (int i = 0; i < calls; i++) {
        TSR_TRY(tsri_collective(p->group, &coll, p->stream));
        if (row->busy) {
            TSR_TRY(work_until(p, tsri_event_record(p->stream)));
        }
        TSR_TRY(tsri_stream_sync(p->stream));
    }
    return TSR_OK;
}

/* Seconds of a call, on the slowest rank. */
static tsr_status sample(link_probe *p, const tsri_probe_row *row, int calls, double *out)
{
    const int ranks = tsr_world_size(p->world);
    double *all = NULL;
    double mine = 0.0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*all), &all));
    TSR_TRY_GOTO(status, tsri_boot_barrier(), out);
    mine = tsri_now_s();
    TSR_TRY_GOTO(status, make_calls(p, row, calls), out);
    mine = (tsri_now_s() - mine) / calls;
    TSR_TRY_GOTO(status, tsri_boot_all_gather(&mine, sizeof(mine), all), out);
    for (int r = 0; r < ranks; r++) {
        mine = all[r] > mine ? all[r] : mine;
    }
    *out = mine;
out:
    tsri_free(&all);
    return status;
}

static double round_bytes(double bytes, int ranks)
{
    const double unit = (double)sizeof(float) * ranks;

    return ceil(bytes / unit) * unit;
}

/* The median of some samples that take budget_s together, where calls are fast enough for it. */
static tsr_status measure_row(link_probe *p, tsri_probe_row *row, double budget_s)
{
    double values[ROUNDS] = {0.0};
    double once = 0.0;

    for (int i = 0; i < TRIES; i++) { /* the first call opens connections and touches memory */
        TSR_TRY(sample(p, row, 1, &once));
    }
    const double fit = budget_s / ROUNDS / once;
    const int calls = fit < 1.0 ? 1 : fit > MOST_CALLS ? MOST_CALLS : (int)fit;

    for (int i = 0; i < ROUNDS; i++) {
        TSR_TRY(sample(p, row, calls, &values[i]));
    }
    row->s = tsri_bench_median(values, ROUNDS);
    return TSR_OK;
}

/* As many bytes as rounds of calls can move in budget_s, but enough that what a network lets pass
 * at once does not count. */
static tsr_status find_large(link_probe *p, tsri_probe_row *row, double budget_s)
{
    const double most = p->plan->large_bytes;
    const double patience_s = budget_s > p->plan->longest_s ? budget_s : p->plan->longest_s;
    double once = 0.0;

    row->bytes = round_bytes(middle_bytes, row->ranks);
    TSR_TRY(sample(p, row, 1, &once));
    TSR_TRY(sample(p, row, 1, &once));
    while (row->bytes * GROWTH <= most &&
           once * GROWTH * (ROUNDS + TRIES) < (row->bytes < enough_bytes ? patience_s : budget_s)) {
        row->bytes = round_bytes(row->bytes * GROWTH, row->ranks);
        TSR_TRY(sample(p, row, 1, &once));
    }
    return TSR_OK;
}

static tsr_status measure_kind(link_probe *p, const tsri_probe_row *like, double budget_s,
                               tsri_probe_row *rows)
{
    for (int i = 0; i < CELLS; i++) {
        const bool large = i == CELLS - 1;

        rows[i] = *like;
        rows[i].busy = i == 1;
        rows[i].bytes = round_bytes(small_bytes, like->ranks);
        if (large) {
            TSR_TRY(find_large(p, &rows[i], budget_s));
        }
        TSR_TRY(measure_row(p, &rows[i], large ? 0.6 * budget_s : 0.2 * budget_s));
    }
    return TSR_OK;
}

static tsr_status measure_masks(link_probe *p, tsri_probe_row *rows, int *row_count)
{
    const link_plan *plan = p->plan;
    const double budget_s = plan->seconds / (plan->mask_count * plan->kind_count);

    *row_count = 0;
    for (int m = 0; m < plan->mask_count; m++) {
        tsri_probe_row like = {.mask = plan->masks[m]};

        (void)tsri_comm_mask_name(p->comm, like.mask, like.axes, sizeof(like.axes));
        TSR_TRY(tsri_comm_group(p->comm, like.mask, p->stream->kind, &p->group));
        like.ranks = p->group->size;
        for (int k = 0; k < plan->kind_count && k < KINDS; k++) {
            like.kind = kinds[k];
            TSR_TRY(measure_kind(p, &like, budget_s, rows + *row_count));
            *row_count += CELLS;
        }
    }
    return TSR_OK;
}

static tsr_status measure(tsr_world *world, tsr_mesh *mesh, const link_plan *plan,
                          tsri_probe_row *rows, int *row_count)
{
    const int64_t mnk[3] = {WORK_SIDE, WORK_SIDE, WORK_SIDE};
    const size_t bytes = (size_t)round_bytes(plan->large_bytes, tsr_world_size(world));
    link_probe p = {.world = world, .plan = plan};
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_comm_open(world, mesh, NULL, &p.comm));
    p.stream = tsri_comm_stream(p.comm, TSRI_STREAM_REDUCE);
    TSR_TRY_GOTO(status, tsri_comm_buffer(p.comm, bytes, TSRI_MEM_OTHER, "in", &p.in), close);
    TSR_TRY_GOTO(status, tsri_comm_buffer(p.comm, bytes, TSRI_MEM_OTHER, "out", &p.out), close);
    TSR_TRY_GOTO(status, tsri_bench_matmul_open(p.comm, TSR_F32, mnk, false, false, &p.work),
                 close);
    TSR_TRY_GOTO(status, measure_masks(&p, rows, row_count), close);
close:
    tsri_bench_matmul_close(&p.work);
    tsri_buffer_release(&p.in);
    tsri_buffer_release(&p.out);
    tsr_comm_release(&p.comm);
    return status;
}

/* ---- fitting ---- */

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

/* Fit tier to the rows whose slowest tier it is; those before it are known. */
static void fit_tier(tsri_machine *m, int tier, const tsri_probe_row *rows, int count,
                     const tsri_reach *reach)
{
    link_row found[TSRI_PROBE_MAX_ROWS];
    int used = 0;

    for (int r = 0; r < count; r++) {
        const bool large = is_large(&rows[r]);
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

/* ---- this machine's tiers ---- */

typedef struct place {
    int node, local_size;
} place;

/* Ranks of a host, if all hosts have as many and ranks are numbered host by host; else 0. */
static tsr_status find_hosts(tsr_world *world, int *local_out)
{
    const int ranks = tsr_world_size(world);
    const tsri_boot_info *info = tsri_boot_get_info();
    const place mine = {info->node, info->local_size};
    place *all = NULL;
    tsr_status status = TSR_OK;

    *local_out = 1;
    if (ranks == 1) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*all), &all));
    TSR_TRY_GOTO(status, tsri_boot_all_gather(&mine, sizeof(mine), all), out);
    *local_out = mine.local_size;
    for (int r = 0; r < ranks; r++) {
        const bool regular =
            all[r].local_size == all[0].local_size && all[r].node == r / all[0].local_size;

        *local_out = regular ? *local_out : 0;
    }
out:
    tsri_free(&all);
    return status;
}

/* Tiers without figures: within a host where it has several ranks, between hosts where there are
 * several. */
static void name_tiers(int ranks, int local, tsri_machine *m)
{
    m->tier_count = 0;
    if (local > 1 && local < ranks) {
        m->tiers[m->tier_count++] = (tsri_tier){.name = "host", .span = local};
    }
    tsri_tier *last = &m->tiers[m->tier_count++];

    *last = (tsri_tier){.span = 0};
    (void)snprintf(last->name, sizeof(last->name), "%s",
                   local == 0       ? "mixed"
                   : local == ranks ? "host"
                                    : "network");
}

static tsr_status measure_tiers(tsr_world *world, int local, double large_bytes, double seconds,
                                tsri_probe_report *out)
{
    const int ranks = tsr_world_size(world);
    const int inner = local > 0 ? local : ranks;
    const tsr_mesh_axis axes[2] = {{"host", ranks / inner}, {"local", inner}};
    link_plan plan = {.kind_count = KINDS,
                      .large_bytes = large_bytes,
                      .longest_s = longest_s,
                      .seconds = seconds};
    tsr_mesh *mesh = NULL;
    tsri_reach reach[TSRI_PROBE_MAX_ROWS];
    int *ring = NULL;
    int size = 0;
    int index = 0;
    tsr_status status = TSR_OK;

    if (inner > 1) {
        plan.masks[plan.mask_count++] = 2U;
    }
    if (inner < ranks) {
        plan.masks[plan.mask_count++] = 1U;
    }
    if (plan.mask_count == 2) {
        plan.masks[plan.mask_count++] = 3U;
    }
    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*ring), &ring));
    TSR_TRY_GOTO(status, tsr_mesh_create(ranks, axes, 2, NULL, &mesh), free_ring);
    TSR_TRY_GOTO(status, measure(world, mesh, &plan, out->measured, &out->row_count), release);
    for (int r = 0; r < out->row_count; r++) {
        TSR_TRY_GOTO(status,
                     tsr_mesh_flat_ranks(mesh, out->measured[r].mask, tsr_world_rank(world), ring,
                                         &size, &index),
                     release);
        tsri_machine_reach(&out->machine, ring, size, &reach[r]);
    }
    for (int tier = 0; tier < out->machine.tier_count; tier++) {
        fit_tier(&out->machine, tier, out->measured, out->row_count, reach);
    }
release:
    tsr_mesh_release(&mesh);
free_ring:
    tsri_free(&ring);
    return status;
}

tsr_status tsri_probe_links(tsr_world *world, double unit_bytes, double seconds,
                            tsri_probe_report *out)
{
    const int ranks = tsr_world_size(world);
    const double large_bytes = unit_bytes > most_bytes     ? most_bytes
                               : unit_bytes > enough_bytes ? unit_bytes
                                                           : enough_bytes;
    int local = 0;

    TSR_TRY(find_hosts(world, &local));
    out->hosts = ranks > 1 ? tsri_boot_get_info()->node_count : 1;
    name_tiers(ranks, ranks == 1 ? 1 : local, &out->machine);
    if (ranks == 1) { /* no link, but a cluster file has one */
        out->machine.tiers[0].bytes_per_s = out->machine.host_bytes_per_s;
        return TSR_OK;
    }
    TSR_TRY(measure_tiers(world, local, large_bytes, seconds, out));
    return TSR_OK;
}

/* ---- axes of a job's mesh ---- */

static void fit_axis(const tsri_probe_row *rows, int count, tsri_probe_axis *axis)
{
    link_row found[TSRI_PROBE_MAX_ROWS];

    for (int r = 0; r < count; r++) {
        const double steps = rounds_of(rows[r].kind) * (rows[r].ranks - 1.0);

        found[r] = (link_row){.s = rows[r].s,
                              .bytes = steps * rows[r].bytes / rows[r].ranks,
                              .hops = steps,
                              .large = is_large(&rows[r]),
                              .busy = rows[r].busy};
    }
    const link_costs costs = fit_link(found, count, false);

    axis->hop_s = costs.hop_s;
    axis->bytes_per_s = rate_of(&costs);
}

/* What a rank of a ring can expect of a machine: its slowest tier's share, its mean hop. */
static void expect(const tsri_machine *machine, const int *members, tsri_probe_axis *axis)
{
    tsri_reach reach;
    double hops_s = 0.0;
    double slowest = INFINITY;

    tsri_machine_reach(machine, members, axis->ranks, &reach);
    for (int tier = 0; tier <= reach.top; tier++) {
        const tsri_tier *t = &machine->tiers[tier];

        hops_s += reach.hops[tier] * t->hop_s;
        if (reach.shared[tier] > 0.0 && t->bytes_per_s / reach.shared[tier] < slowest) {
            slowest = t->bytes_per_s / reach.shared[tier];
        }
    }
    axis->declared_hop_s = hops_s / axis->ranks;
    axis->declared_bytes_per_s = slowest;
}

/* Hosts under members[size], which lie in order. */
static int count_hosts(const tsr_world *world, const int *members, int size)
{
    int count = 0;

    for (int m = 0; m < size; m++) {
        bool seen = false;

        for (int before = 0; before < m; before++) {
            seen = seen || strcmp(tsr_world_host(world, members[before]),
                                  tsr_world_host(world, members[m])) == 0;
        }
        count += seen ? 0 : 1;
    }
    return count;
}

/* Which axes have ranks, and on how many hosts their groups lie. members has room for all ranks. */
static tsr_status list_axes(const tsr_world *world, const tsr_mesh *mesh,
                            const tsri_machine *declared, int *members, tsri_probe_axis *axes,
                            unsigned *masks, int *count_out)
{
    *count_out = 0;
    for (int a = 0; a < tsr_mesh_axis_count(mesh); a++) {
        tsri_probe_axis *axis = &axes[*count_out];

        *axis = (tsri_probe_axis){.ranks = tsr_mesh_axis_size(mesh, a)};
        if (axis->ranks == 1) {
            continue;
        }
        (void)snprintf(axis->name, sizeof(axis->name), "%s", tsr_mesh_axis_name(mesh, a));
        for (int rank = tsr_world_size(world) - 1; rank >= 0; rank--) {
            TSR_TRY(tsr_mesh_axis_ranks(mesh, a, rank, members));
            const int hosts = count_hosts(world, members, axis->ranks);

            axis->hosts = hosts > axis->hosts ? hosts : axis->hosts;
        }
        if (declared != NULL) {
            expect(declared, members, axis); /* those of rank 0 */
        }
        masks[*count_out] = 1U << a;
        ++*count_out;
    }
    return TSR_OK;
}

tsr_status tsri_probe_axes(tsr_world *world, tsr_mesh *mesh, const tsri_machine *declared,
                           double seconds, tsri_probe_axis *axes, int *count_out)
{
    link_plan plan = {.kind_count = 1, .large_bytes = enough_bytes, .seconds = seconds};
    tsri_probe_row rows[TSRI_PROBE_MAX_ROWS];
    int row_count = 0;
    int *members = NULL;
    tsr_status status = TSR_OK;

    *count_out = 0;
    TSR_TRY(tsri_alloc((size_t)tsr_world_size(world), sizeof(*members), &members));
    TSR_TRY_GOTO(status,
                 list_axes(world, mesh, declared, members, axes, plan.masks, &plan.mask_count),
                 free_members);
    if (plan.mask_count > 0 && seconds > 0.0) {
        TSR_TRY_GOTO(status, measure(world, mesh, &plan, rows, &row_count), free_members);
    }
    for (int a = 0; a * CELLS < row_count; a++) {
        fit_axis(rows + (ptrdiff_t)(a * CELLS), CELLS, &axes[a]);
    }
    *count_out = plan.mask_count;
free_members:
    tsri_free(&members);
    return status;
}
