/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_gemm.c
 * The matrix products of a model's linear layers, beside what bounds them.
 *
 * A layer's weight is [out, in]; over t tokens
 *   forward  y [t, out]   = x [t, in] weight^T
 *   dgrad    dx [t, in]   = dy [t, out] weight
 *   wgrad    dw [out, in] = dy^T x
 * Each round runs the ceiling, and then every product once: by us, and by each library that is
 * there.
 */
#include "bench_priv.h"

#include "base/base.h"

#include <string.h>

#define DEFAULT_TOKENS 2048
#define DEFAULT_ROUNDS 5
#define MAX_SHAPES     (TSRI_BENCH_MAX_GEMMS / 6) /* three passes, two dtypes */

typedef struct shape {
    char names[TSRI_BENCH_NAME_BYTES];
    int64_t out, in;
} shape;

typedef struct shapes {
    shape at[MAX_SHAPES];
    int count;
} shapes;

/* Layers of equal shape share an entry. */
static void add_shape(shapes *list, const char *name, int64_t out, int64_t in)
{
    int at = 0;

    while (at < list->count && (list->at[at].out != out || list->at[at].in != in)) {
        at++;
    }
    shape *s = &list->at[at];
    const size_t used = strlen(s->names);

    list->count += at == list->count ? 1 : 0;
    s->out = out;
    s->in = in;
    (void)snprintf(s->names + used, sizeof(s->names) - used, "%s%s", used > 0 ? ", " : "", name);
}

static void list_shapes(const tsri_model_spec *spec, shapes *list)
{
    const int64_t q = spec->heads * tsri_model_head_dim(spec);
    const int64_t kv = tsri_model_kv_heads(spec) * tsri_model_head_dim(spec);

    add_shape(list, "q", q, spec->dim);
    add_shape(list, "k, v", kv, spec->dim);
    add_shape(list, "o", spec->dim, q);
    add_shape(list, tsri_arch_get(spec->arch)->gated ? "gate, up" : "up", spec->ffn, spec->dim);
    add_shape(list, "down", spec->dim, spec->ffn);
    add_shape(list, "head", spec->vocab, spec->dim);
}

/* ---- one product ---- */

typedef struct product {
    tsri_bench_gemm_row row;
    bool trans_a, trans_b;
    double rate[TSRI_BENCH_MAX_ROUNDS]; /* on the wall's clock; shares are by processor time */
    double of_square[TSRI_BENCH_MAX_ROUNDS], of_peak[TSRI_BENCH_MAX_ROUNDS];
    double library[TSRI_BENCH_LIBRARIES][TSRI_BENCH_MAX_ROUNDS];
    double of_library[TSRI_BENCH_LIBRARIES][TSRI_BENCH_MAX_ROUNDS];
} product;

typedef struct gemm_bench {
    tsr_mesh *mesh;
    tsr_comm *comm;
    bench_library libraries[TSRI_BENCH_LIBRARIES];
    int rounds;
    int product_count;
    product products[TSRI_BENCH_MAX_GEMMS];
    double peak[2][TSRI_BENCH_MAX_ROUNDS], square[2][TSRI_BENCH_MAX_ROUNDS];
    double square_of_peak[2][TSRI_BENCH_MAX_ROUNDS];
} gemm_bench;

static void add_products(gemm_bench *b, const shape *s, int64_t tokens, tsr_dtype dtype)
{
    const int64_t mnk[3][3] = {
        {tokens, s->out, s->in}, {tokens, s->in, s->out}, {s->out, s->in, tokens}};
    static const char *const passes[3] = {"forward", "dgrad", "wgrad"};

    for (int pass = 0; pass < 3; pass++) {
        product *p = &b->products[b->product_count++];

        p->row = (tsri_bench_gemm_row){.pass = passes[pass],
                                       .dtype = dtype,
                                       .m = mnk[pass][0],
                                       .n = mnk[pass][1],
                                       .k = mnk[pass][2]};
        memcpy(p->row.weights, s->names, sizeof(p->row.weights));
        p->trans_b = pass == 0;
        p->trans_a = pass == 2;
    }
}

/* Once to touch memory, then once for the clock. p is the product whose libraries' calls follow;
 * NULL: none. */
static tsr_status time_matmul(gemm_bench *b, tsr_dtype dtype, const int64_t mnk[3], product *p,
                              int round, bench_rate *rate_out)
{
    bench_matmul m;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status,
                 tsri_bench_matmul_open(b->comm, dtype, mnk, p != NULL && p->trans_a,
                                        p != NULL && p->trans_b, &m),
                 close);
    TSR_TRY_GOTO(status, tsri_bench_matmul_run(&m, rate_out), close);
    TSR_TRY_GOTO(status, tsri_bench_matmul_run(&m, rate_out), close);
    for (int i = 0; i < TSRI_BENCH_LIBRARIES && p != NULL && dtype == TSR_F32; i++) {
        if (!b->libraries[i].found) {
            continue;
        }
        if (round == 0) { /* so that it has its threads and its memory */
            (void)tsri_bench_library_run(&b->libraries[i], &m);
        }
        const bench_rate its = tsri_bench_library_run(&b->libraries[i], &m);

        p->library[i][round] = its.wall;
        p->of_library[i][round] =
            its.cpu > 0.0 ? rate_out->cpu / its.cpu : rate_out->wall / its.wall;
    }
close:
    tsri_bench_matmul_close(&m);
    return status;
}

static tsr_status run_round(gemm_bench *b, int round, tsri_bench_gemm_report *report)
{
    const int64_t cube[3] = {BENCH_SIDE, BENCH_SIDE, BENCH_SIDE};
    bench_rate square[2] = {{0.0, 0.0}};
    bench_rate peak[2] = {{0.0, 0.0}};
    bench_rate rate;

    for (int c = 0; c < report->ceiling_count; c++) {
        tsri_bench_ceiling *ceiling = &report->ceiling[c];

        peak[c] = tsri_bench_peak(ceiling->dtype, report->threads, &ceiling->instructions);
        TSR_TRY(time_matmul(b, ceiling->dtype, cube, NULL, round, &square[c]));
        b->peak[c][round] = peak[c].wall;
        b->square[c][round] = square[c].wall;
        b->square_of_peak[c][round] = peak[c].cpu > 0.0 ? square[c].cpu / peak[c].cpu : 0.0;
    }
    for (int i = 0; i < b->product_count; i++) {
        product *p = &b->products[i];
        const int64_t mnk[3] = {p->row.m, p->row.n, p->row.k};
        const int c = p->row.dtype == TSR_F32 ? 0 : 1;

        TSR_TRY(time_matmul(b, p->row.dtype, mnk, p, round, &rate));
        p->rate[round] = rate.wall;
        p->of_square[round] = rate.cpu / square[c].cpu;
        p->of_peak[round] = peak[c].cpu > 0.0 ? rate.cpu / peak[c].cpu : 0.0;
    }
    return TSR_OK;
}

static void compare_libraries(const gemm_bench *b, product *p)
{
    tsri_bench_gemm_row *row = &p->row;

    row->best = -1;
    for (int i = 0; i < TSRI_BENCH_LIBRARIES && row->dtype == TSR_F32; i++) {
        if (b->libraries[i].found) {
            row->library[i].rate = tsri_bench_median(p->library[i], b->rounds);
            row->library[i].ours = tsri_bench_median(p->of_library[i], b->rounds);
            row->best = row->best < 0 || row->library[i].ours < row->library[row->best].ours
                            ? i
                            : row->best;
        }
    }
}

static void report_products(gemm_bench *b, tsri_bench_gemm_report *report)
{
    for (int c = 0; c < report->ceiling_count; c++) {
        report->ceiling[c].peak = tsri_bench_median(b->peak[c], b->rounds);
        report->ceiling[c].square = tsri_bench_median(b->square[c], b->rounds);
        report->ceiling[c].square_of_peak = tsri_bench_median(b->square_of_peak[c], b->rounds);
    }
    report->row_count = b->product_count;
    for (int i = 0; i < b->product_count; i++) {
        product *p = &b->products[i];

        p->row.rate = tsri_bench_median(p->rate, b->rounds);
        p->row.of_square = tsri_bench_median(p->of_square, b->rounds);
        p->row.of_peak = tsri_bench_median(p->of_peak, b->rounds);
        compare_libraries(b, p);
        report->rows[i] = p->row;
    }
}

static tsr_status measure_products(gemm_bench *b, tsr_world *world,
                                   const tsri_bench_gemm_options *options,
                                   tsri_bench_gemm_report *out)
{
    tsri_model_spec spec;
    shapes list = {.count = 0};

    *out = (tsri_bench_gemm_report){
        .model = options->model != NULL ? options->model : "llama-25m",
        .tokens = options->tokens > 0 ? options->tokens : DEFAULT_TOKENS,
    };
    TSR_TRY(tsri_model_preset(out->model, &spec));
    TSR_TRY(tsri_bench_open_comm(world, &b->mesh, &b->comm));
    const tsr_device *device = tsri_comm_device(b->comm);

    out->threads = device->threads;
    b->rounds = options->rounds > 0 ? options->rounds : DEFAULT_ROUNDS;
    if (b->rounds > TSRI_BENCH_MAX_ROUNDS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d rounds, at most %d", b->rounds,
                         TSRI_BENCH_MAX_ROUNDS);
    }
    tsri_bench_libraries_open(out->threads, b->libraries);
    for (int i = 0; i < TSRI_BENCH_LIBRARIES; i++) {
        bench_library *l = &b->libraries[i];

        l->found = l->found && (device->backend->caps & TSR_CAP_HOST) != 0;
        out->library_name[i] = l->name;
        out->library_found[i] = l->found;
    }
    list_shapes(&spec, &list);
    out->ceiling_count = (device->backend->caps & TSR_CAP_BF16) != 0 ? 2 : 1;
    for (int c = 0; c < out->ceiling_count; c++) {
        out->ceiling[c].dtype = c == 0 ? TSR_F32 : TSR_BF16;
        out->ceiling[c].side = BENCH_SIDE;
        for (int i = 0; i < list.count; i++) {
            add_products(b, &list.at[i], out->tokens, out->ceiling[c].dtype);
        }
    }
    for (int round = 0; round < b->rounds; round++) {
        TSR_TRY(run_round(b, round, out));
    }
    report_products(b, out);
    return TSR_OK;
}

tsr_status tsri_bench_gemm(tsr_world *world, const tsri_bench_gemm_options *options,
                           tsri_bench_gemm_report *out)
{
    gemm_bench *b = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*b), &b));
    TSR_TRY_GOTO(status, measure_products(b, world, options, out), close);
close:
    tsri_bench_libraries_close(b->libraries);
    tsr_comm_release(&b->comm);
    tsr_mesh_release(&b->mesh);
    tsri_free(&b);
    return status;
}
