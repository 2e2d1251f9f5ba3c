/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Comparisons for people, for pages (Markdown), and as JSON. */
#include "base/base.h"
#include "base/json.h"

#include <stdarg.h>
#include <string.h>

#include "compare/compare.h"

enum {
    CELL_BYTES = 40,
    COLUMNS = 12,
    MOST_ROWS = TSRI_COMPARE_MAX_PRESETS * 8 + 1
};

typedef struct table {
    char cell[MOST_ROWS][COLUMNS][CELL_BYTES];
    int rows, columns;
    int words; /* first columns, which stand left; numbers stand right */
} table;

__attribute__((format(printf, 3, 4))) static void set(table *t, int column, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    (void)vsnprintf(t->cell[t->rows][column], CELL_BYTES, format, list);
    va_end(list);
    t->columns = column >= t->columns ? column + 1 : t->columns;
}

static void set_bytes(table *t, int column, double bytes)
{
    char text[32];

    set(t, column, "%s", bytes > 0.0 ? tsri_format_bytes(bytes, text, sizeof(text)) : "-");
}

static int width_of(const table *t, int column)
{
    int width = 0;

    for (int r = 0; r < t->rows; r++) {
        const int length = (int)strlen(t->cell[r][column]);

        width = length > width ? length : width;
    }
    return width;
}

static void print_table(const table *t, bool markdown, FILE *stream)
{
    for (int r = 0; r < t->rows; r++) {
        for (int c = 0; c < t->columns; c++) {
            const int width = width_of(t, c);

            (void)fprintf(stream, markdown ? "| %*s " : "%*s  ", c < t->words ? -width : width,
                          t->cell[r][c]);
        }
        (void)fprintf(stream, markdown ? "|\n" : "\n");
        for (int c = 0; markdown && r == 0 && c < t->columns; c++) {
            (void)fprintf(stream, "|%s", c < t->words ? "---" : "---:");
        }
        if (markdown && r == 0) {
            (void)fprintf(stream, "|\n");
        }
    }
}

/* ---- head ---- */

static void print_tiers(const tsri_machine *m, FILE *stream)
{
    for (int i = 0; i < m->tier_count; i++) {
        (void)fprintf(stream, "%s%s %.3g GB/s, %.0f us a hop, %.0f us more beside compute",
                      i > 0 ? "; " : "", m->tiers[i].name, m->tiers[i].bytes_per_s / 1e9,
                      m->tiers[i].hop_s * 1e6, m->tiers[i].busy_s * 1e6);
    }
}

void tsri_compare_print_head(const tsri_compare_report *r, bool markdown, FILE *stream)
{
    const char *end = markdown ? "  \n" : "\n";

    (void)fprintf(stream,
                  "%s, %lld parameters, mesh %s; %d rank%s of %d thread%s on %d host%s%s"
                  "a step: %lld x %lld tokens, in %lld micro-batch%s; medians of %d steps%s",
                  r->arch, (long long)r->params, r->mesh, r->ranks, r->ranks == 1 ? "" : "s",
                  r->threads, r->threads == 1 ? "" : "s", r->hosts, r->hosts == 1 ? "" : "s", end,
                  (long long)r->batch, (long long)r->seq, (long long)r->micro_batches,
                  r->micro_batches == 1 ? "" : "es", r->steps, end);
    (void)fprintf(stream, "machine %016llx, %s before any step: matmul %.4g GFLOP/s a rank; ",
                  (unsigned long long)r->machine.hash, r->probed ? "measured" : "given",
                  r->machine.machine.flops[TSRI_MACHINE_F32] / 1e9);
    print_tiers(&r->machine.machine, stream);
    (void)fprintf(stream, "\n\n");
}

/* ---- tables ---- */

static int find_place(const int *order, int count, int row)
{
    for (int i = 0; i < count; i++) {
        if (order[i] == row) {
            return i + 1;
        }
    }
    return 0;
}

/* Of what compute could hide, the share that it did: what was under way and not waited for. */
static double hidden_share(const tsri_compare_row *row)
{
    const double share = (row->comm_s - row->exposed_s) / row->hideable_s;

    return share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
}

static void add_table_row(table *t, const tsri_compare_row *row, int planned, int measured)
{
    const tsri_forecast *f = &row->plan;

    set(t, 0, "%s", f->preset);
    set_bytes(t, 1, (double)row->planned_bytes);
    set_bytes(t, 2, (double)row->peak_bytes);
    set(t, 3, "%.3f s", f->step_s);
    set(t, 4, "%.3f s", row->step_s);
    set(t, 5, "%.2f", row->step_s / f->step_s);
    set(t, 6, "%.0f", row->tokens_per_s);
    set(t, 7, "%.3f s", f->exposed_s);
    set(t, 8, "%.3f s", row->exposed_s);
    set(t, 9, "%.0f %%", 100.0 * hidden_share(row));
    set(t, 10, "%d", planned);
    set(t, 11, "%d", measured);
    t->rows++;
}

static void print_times(const tsri_compare_report *r, bool markdown, table *t, FILE *stream)
{
    static const char *const heads[COLUMNS] = {
        "preset",   "memory, planned", "measured",    "step, planned",
        "measured", "ratio",           "tokens/s",    "exposed, planned",
        "measured", "measured hidden", "planned no.", "measured no."};
    int planned[TSRI_COMPARE_MAX_PRESETS];
    int measured[TSRI_COMPARE_MAX_PRESETS];
    const int count = tsri_compare_order(r, true, planned);

    (void)tsri_compare_order(r, false, measured);
    *t = (table){.words = 1};
    for (int c = 0; c < COLUMNS; c++) {
        set(t, c, "%s", heads[c]);
    }
    t->rows++;
    for (int i = 0; i < r->row_count; i++) {
        if (r->rows[i].ran) {
            add_table_row(t, &r->rows[i], find_place(planned, count, i),
                          find_place(measured, count, i));
        } else {
            set(t, 0, "%s", r->rows[i].plan.preset);
            set(t, 1, "did not run");
            t->rows++;
        }
    }
    print_table(t, markdown, stream);
}

static void print_traffic(const tsri_compare_report *r, bool markdown, table *t, FILE *stream)
{
    *t = (table){.words = 2};
    set(t, 0, "preset");
    set(t, 1, "axes");
    set(t, 2, "a rank sends, planned");
    set(t, 3, "counted");
    set(t, 4, "a host sends, planned");
    set(t, 5, "counted");
    set(t, 6, "its interfaces");
    t->rows++;
    for (int i = 0; i < r->row_count; i++) {
        const tsri_compare_row *row = &r->rows[i];

        for (int a = 0; row->ran && a < row->axes_count && t->rows < MOST_ROWS; a++) {
            set(t, 0, "%s", a == 0 ? row->plan.preset : "");
            set(t, 1, "%s", row->axes[a].axes);
            set_bytes(t, 2, row->axes[a].planned);
            set_bytes(t, 3, row->axes[a].measured);
            if (a == 0) {
                set_bytes(t, 4, row->plan.node_bytes);
                set_bytes(t, 5, row->host_bytes);
                set_bytes(t, 6, row->nic_bytes);
            }
            t->rows++;
        }
    }
    print_table(t, markdown, stream);
}

static void print_order(const tsri_compare_report *r, bool planned, FILE *stream)
{
    int order[TSRI_COMPARE_MAX_PRESETS];
    const int count = tsri_compare_order(r, planned, order);

    (void)fprintf(stream, "%s order:", planned ? "planned" : "measured");
    for (int i = 0; i < count; i++) {
        (void)fprintf(stream, "%s %s", i > 0 ? "," : "", r->rows[order[i]].plan.preset);
    }
}

void tsri_compare_print_table(const tsri_compare_report *r, bool markdown, FILE *stream)
{
    table *t = NULL;

    if (tsri_alloc(1, sizeof(*t), &t) != TSR_OK) {
        tsr_error_clear();
        (void)fprintf(stream, "no memory for the table\n");
        return;
    }
    print_times(r, markdown, t, stream);
    (void)fprintf(stream, "\n");
    for (int i = 0; i < r->row_count; i++) {
        if (!r->rows[i].ran) {
            (void)fprintf(stream, "%s did not run: %s\n\n", r->rows[i].plan.preset, r->rows[i].why);
        }
    }
    print_traffic(r, markdown, t, stream);
    (void)fprintf(stream, "\n");
    print_order(r, true, stream);
    (void)fprintf(stream, "; ");
    print_order(r, false, stream);
    (void)fprintf(stream, "\n");
    if (r->probed) {
        (void)fprintf(
            stream, "on the machine as it was at the end, plans differ by a factor %.2f at most\n",
            r->apart);
    }
    tsri_free(&t);
}

/* ---- JSON ---- */

static json_t *axes_json(const tsri_compare_row *row)
{
    json_t *list = json_array();

    for (int i = 0; i < row->axes_count; i++) {
        (void)json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "axes", row->axes[i].axes,
                                                    "planned", row->axes[i].planned, "counted",
                                                    row->axes[i].measured));
    }
    return list;
}

static json_t *planned_json(const tsri_compare_row *row)
{
    const tsri_forecast *f = &row->plan;

    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "memory_bytes",
                     (json_int_t)row->planned_bytes, "step_s", f->step_s, "tokens_per_s",
                     f->tokens_per_s, "compute_s", f->compute_s, "comm_s", f->comm_s, "exposed_s",
                     f->exposed_s, "host_bytes", f->node_bytes);
}

static json_t *row_json(const tsri_compare_row *row)
{
    if (!row->ran) {
        return json_pack("{s:s, s:b, s:s}", "preset", row->plan.preset, "ran", 0, "why", row->why);
    }
    json_t *measured =
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "memory_bytes",
                  (json_int_t)row->peak_bytes, "step_s", row->step_s, "min_step_s", row->min_s,
                  "max_step_s", row->max_s, "tokens_per_s", row->tokens_per_s, "compute_s",
                  row->compute_s, "comm_s", row->comm_s, "exposed_s", row->exposed_s, "host_bytes",
                  row->host_bytes, "hideable_s", row->hideable_s);

    if (row->hideable_s > 0.0) {
        (void)json_object_set_new(measured, "hidden", json_real(hidden_share(row)));
    }
    if (row->nic_bytes > 0.0) {
        (void)json_object_set_new(measured, "interface_bytes", json_real(row->nic_bytes));
    }
    return json_pack("{s:s, s:b, s:o, s:o, s:f, s:o}", "preset", row->plan.preset, "ran", 1,
                     "planned", planned_json(row), "measured", measured, "measured_by_planned",
                     row->step_s / row->plan.step_s, "sent_by_axes", axes_json(row));
}

static json_t *order_json(const tsri_compare_report *r, bool planned)
{
    int order[TSRI_COMPARE_MAX_PRESETS];
    const int count = tsri_compare_order(r, planned, order);
    json_t *list = json_array();

    for (int i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_string(r->rows[order[i]].plan.preset));
    }
    return list;
}

tsr_status tsri_compare_print_json(const tsri_compare_report *r, FILE *stream)
{
    char hash[17];
    json_t *rows = json_array();

    (void)snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)r->machine.hash);
    for (int i = 0; i < r->row_count; i++) {
        (void)json_array_append_new(rows, row_json(&r->rows[i]));
    }
    json_t *root = json_pack(
        "{s:s, s:I, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:s, s:b, s:o, s:o, s:o}", "arch",
        r->arch, "parameters", (json_int_t)r->params, "mesh", r->mesh, "ranks", r->ranks, "hosts",
        r->hosts, "threads", r->threads, "steps", r->steps, "batch", (json_int_t)r->batch, "seq",
        (json_int_t)r->seq, "micro_batches", (json_int_t)r->micro_batches, "cluster_hash", hash,
        "probed", r->probed, "presets", rows, "planned_order", order_json(r, true),
        "measured_order", order_json(r, false));

    if (root == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the comparison as JSON");
    }
    if (r->probed) {
        (void)json_object_set_new(root, "cluster_file", json_string(r->cluster));
        (void)json_object_set_new(root, "apart_at_the_end", json_real(r->apart));
    }
    const int failed = json_dumpf(root, stream, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(root);
    if (failed != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write the comparison as JSON");
    }
    (void)fprintf(stream, "\n");
    return TSR_OK;
}
