/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading and writing cluster files. One table of numbers, each with its key and unit, serves both
 * ways; links and kernels are lists of their own. */
#include "plan/cluster.h"

#include "base/base.h"
#include "base/file.h"
#include "base/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/clusters.h"

#define AT(field) offsetof(tsri_machine, field)

static const double giga = 1e9;
static const double tera = 1e12;
static const double micro = 1e-6;
static const double one = 1.0;
static const double gibi = 1024.0 * 1024.0 * 1024.0;

typedef struct number_key {
    const char *section; /* NULL: at the top */
    const char *key;
    size_t offset;
    const double *unit;
    bool required; /* and above 0 */
} number_key;

static const number_key numbers[] = {
    {"device", "memory_gib", AT(memory_bytes), &gibi, false},
    {"device", "headroom_gib", AT(headroom_bytes), &gibi, false},
    {"peak_tflops", "f32", AT(peak_flops[TSRI_MACHINE_F32]), &tera, false},
    {"peak_tflops", "bf16", AT(peak_flops[TSRI_MACHINE_HALF]), &tera, false},
    {"tflops", "f32", AT(flops[TSRI_MACHINE_F32]), &tera, true},
    {"tflops", "bf16", AT(flops[TSRI_MACHINE_HALF]), &tera, true},
    {"device", "gb_per_s", AT(bytes_per_s), &giga, true},
    {"device", "launch_us", AT(launch_s), &micro, false},
    {"device", "collective_us", AT(call_s), &micro, false},
    {"device", "host_gb_per_s", AT(host_bytes_per_s), &giga, false},
    {"device", "contention", AT(contention), &one, false},
};

enum {
    NUMBERS = (int)(sizeof(numbers) / sizeof(numbers[0])),
    PLACE_BYTES = 512
};

/* A file is read into three machines at once. */
enum {
    SLOW,
    USUAL,
    FAST,
    ENDS
};

typedef struct reading {
    const char *file;
    tsri_machine *machine[ENDS];
    bool ranged; /* a figure has ends */
    bool knows_bf16;
} reading;

/* ---- single values ---- */

static tsr_status raise_at(reading *r, const tsri_yaml_node *node, const char *what)
{
    return TSR_RAISE(TSR_ERR_INVALID, "%s:%d: %s %s", r->file, node->line,
                     node->key != NULL ? node->key : "entry", what);
}

static tsr_status raise_unknown_key(reading *r, const tsri_yaml_node *node,
                                    const char *const *names, int count)
{
    const char *near = tsri_nearest(node->key, names, count);

    return TSR_RAISE(TSR_ERR_INVALID, "%s:%d: \"%s\" is no key of a cluster file here%s%s", r->file,
                     node->line, node->key, near != NULL ? "; nearest: " : "",
                     near != NULL ? near : "");
}

static tsr_status read_figure(reading *r, const tsri_yaml_node *node, const char *key, double unit,
                              double *out)
{
    char *end = NULL;

    if (node->kind != TSRI_YAML_SCALAR || node->text[0] == '\0') {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s:%d: %s wants a number, or three as [slow, usual, fast]", r->file,
                         node->line, key);
    }
    const double value = strtod(node->text, &end);

    if (*end != '\0' || !isfinite(value) || value < 0.0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s:%d: %s is \"%s\", wants a number of at least 0",
                         r->file, node->line, key, node->text);
    }
    *out = value * unit;
    return TSR_OK;
}

/* One number for all ends, or a list of three. */
static tsr_status read_ends(reading *r, const tsri_yaml_node *node, double unit, double out[ENDS])
{
    if (node->kind != TSRI_YAML_LIST) {
        TSR_TRY(read_figure(r, node, node->key, unit, &out[USUAL]));
        out[SLOW] = out[USUAL];
        out[FAST] = out[USUAL];
        return TSR_OK;
    }
    if (node->count != ENDS) {
        return raise_at(r, node, "wants a number, or three as [slow, usual, fast]");
    }
    for (int i = 0; i < ENDS; i++) {
        TSR_TRY(read_figure(r, &node->children[i], node->key, unit, &out[i]));
    }
    const bool rises = out[SLOW] <= out[USUAL] && out[USUAL] <= out[FAST];
    const bool falls = out[SLOW] >= out[USUAL] && out[USUAL] >= out[FAST];

    if (!rises && !falls) {
        return raise_at(r, node, "wants its three numbers in order: slow, usual, fast");
    }
    r->ranged = true;
    return TSR_OK;
}

static double *number_of(tsri_machine *machine, size_t offset)
{
    return (double *)(void *)((char *)machine + offset);
}

/* The same for a number of the machine that lies at offset. */
static tsr_status read_at(reading *r, const tsri_yaml_node *node, double unit, size_t offset)
{
    double values[ENDS];

    TSR_TRY(read_ends(r, node, unit, values));
    for (int i = 0; i < ENDS; i++) {
        *number_of(r->machine[i], offset) = values[i];
    }
    return TSR_OK;
}

static tsr_status read_name(reading *r, const tsri_yaml_node *node, char *out)
{
    if (node->kind != TSRI_YAML_SCALAR || node->text[0] == '\0' ||
        strlen(node->text) >= TSRI_MACHINE_NAME_BYTES) {
        return raise_at(r, node, "wants a short name");
    }
    (void)snprintf(out, TSRI_MACHINE_NAME_BYTES, "%s", node->text);
    return TSR_OK;
}

static tsr_status want_map(reading *r, const tsri_yaml_node *node)
{
    return node->kind == TSRI_YAML_MAP ? TSR_OK : raise_at(r, node, "wants keys with values");
}

/* ---- sections of numbers ---- */

static tsr_status read_numbers(reading *r, const tsri_yaml_node *section, const char *name)
{
    const char *names[NUMBERS + 2];
    int count = 0;

    TSR_TRY(want_map(r, section));
    for (int i = 0; i < NUMBERS; i++) {
        if (strcmp(numbers[i].section, name) == 0) {
            names[count++] = numbers[i].key;
        }
    }
    for (int c = 0; c < section->count; c++) {
        const tsri_yaml_node *node = &section->children[c];
        int row = 0;

        if (strcmp(name, "device") == 0 &&
            (strcmp(node->key, "tflops") == 0 || strcmp(node->key, "peak_tflops") == 0)) {
            TSR_TRY(read_numbers(r, node, node->key));
            continue;
        }
        while (row < NUMBERS && (strcmp(numbers[row].section, name) != 0 ||
                                 strcmp(numbers[row].key, node->key) != 0)) {
            row++;
        }
        if (row == NUMBERS) {
            return raise_unknown_key(r, node, names, count);
        }
        TSR_TRY(read_at(r, node, *numbers[row].unit, numbers[row].offset));
    }
    return TSR_OK;
}

static tsr_status check_required(reading *r)
{
    for (int i = 0; i < NUMBERS; i++) {
        if (numbers[i].required && *number_of(r->machine[SLOW], numbers[i].offset) <= 0.0) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s.%s is missing, wants a number above 0",
                             r->file, numbers[i].section, numbers[i].key);
        }
    }
    if (r->machine[USUAL]->tier_count == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: links is missing, wants at least one", r->file);
    }
    return TSR_OK;
}

/* ---- kernels ---- */

/* Whether the rate of a kernel is in flops. */
static bool multiplies(tsrk_id id)
{
    return id == TSRK_MATMUL || id == TSRK_ATTENTION || id == TSRK_ATTENTION_BWD;
}

static double kernel_unit(tsrk_id id)
{
    return multiplies(id) ? tera : giga;
}

static tsr_status read_kernels(reading *r, const tsri_yaml_node *section)
{
    const char *names[TSRK_COUNT];

    TSR_TRY(want_map(r, section));
    for (int id = 0; id < TSRK_COUNT; id++) {
        names[id] = tsrk_name((tsrk_id)id);
    }
    for (int c = 0; c < section->count; c++) {
        const tsri_yaml_node *node = &section->children[c];
        int id = 0;

        while (id < TSRK_COUNT && strcmp(names[id], node->key) != 0) {
            id++;
        }
        if (id == TSRK_COUNT) {
            return raise_unknown_key(r, node, names, TSRK_COUNT);
        }
        TSR_TRY(read_at(r, node, kernel_unit((tsrk_id)id),
                        AT(kernel_rate) + (size_t)id * sizeof(double)));
    }
    return TSR_OK;
}

/* ---- links ---- */

static tsr_status read_span(reading *r, const tsri_yaml_node *node, int *out)
{
    double value = 0.0;

    if (node->kind == TSRI_YAML_SCALAR && strcmp(node->text, "all") == 0) {
        *out = 0;
        return TSR_OK;
    }
    TSR_TRY(read_figure(r, node, node->key, 1.0, &value));
    if (value < 1.0 || value > 1 << 20 || value != floor(value)) {
        return raise_at(r, node, "wants a number of ranks, or all");
    }
    *out = (int)value;
    return TSR_OK;
}

static tsr_status read_link_key(reading *r, const tsri_yaml_node *node, int at)
{
    static const char *const names[] = {"name", "ranks", "gb_per_s", "hop_us", "busy_us"};
    const size_t place = AT(tiers) + (size_t)at * sizeof(tsri_tier);
    tsri_tier *tier = &r->machine[USUAL]->tiers[at];

    if (strcmp(node->key, "name") == 0) {
        return read_name(r, node, tier->name);
    }
    if (strcmp(node->key, "ranks") == 0) {
        return read_span(r, node, &tier->span);
    }
    if (strcmp(node->key, "gb_per_s") == 0) {
        return read_at(r, node, giga, place + offsetof(tsri_tier, bytes_per_s));
    }
    if (strcmp(node->key, "hop_us") == 0) {
        return read_at(r, node, micro, place + offsetof(tsri_tier, hop_s));
    }
    if (strcmp(node->key, "busy_us") == 0) {
        return read_at(r, node, micro, place + offsetof(tsri_tier, busy_s));
    }
    return raise_unknown_key(r, node, names, 5);
}

static tsr_status read_link(reading *r, const tsri_yaml_node *entry, int at, bool last)
{
    tsri_tier *tier = &r->machine[USUAL]->tiers[at];
    const int below = at > 0 ? tier[-1].span : 1;

    for (int i = 0; i < ENDS; i++) {
        r->machine[i]->tiers[at] = (tsri_tier){.span = -1};
    }
    TSR_TRY(want_map(r, entry));
    for (int c = 0; c < entry->count; c++) {
        TSR_TRY(read_link_key(r, &entry->children[c], at));
    }
    if (tier->name[0] == '\0' || tier->span < 0 || r->machine[SLOW]->tiers[at].bytes_per_s <= 0.0) {
        return raise_at(r, entry, "of links wants name, ranks and gb_per_s above 0");
    }
    if ((tier->span == 0) != last) {
        return raise_at(r, entry, "of links: the last one, and it alone, joins all ranks");
    }
    if (!last && tier->span % below != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s:%d: link %s joins %d ranks, wants a multiple of the %d of the link "
                         "before it",
                         r->file, entry->line, tier->name, tier->span, below);
    }
    return TSR_OK;
}

static tsr_status read_tiers(reading *r, const tsri_yaml_node *list)
{
    if (list->kind != TSRI_YAML_LIST || list->count < 1 || list->count > TSRI_MACHINE_MAX_TIERS) {
        return raise_at(r, list, "wants a list of 1 to 4 links, the nearest first");
    }
    for (int i = 0; i < list->count; i++) {
        TSR_TRY(read_link(r, &list->children[i], i, i == list->count - 1));
    }
    r->machine[USUAL]->tier_count = list->count;
    return TSR_OK;
}

/* ---- the file ---- */

static tsr_status read_choice(reading *r, const tsri_yaml_node *node, const char *yes,
                              const char *no, bool *out)
{
    const bool is_yes = node->kind == TSRI_YAML_SCALAR && strcmp(node->text, yes) == 0;

    if (!is_yes && (node->kind != TSRI_YAML_SCALAR || strcmp(node->text, no) != 0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s:%d: %s wants %s or %s", r->file, node->line,
                         node->key, yes, no);
    }
    *out = is_yes;
    return TSR_OK;
}

static tsr_status read_top(reading *r, const tsri_yaml_node *node)
{
    static const char *const names[] = {"name",    "target", "bf16",   "device",
                                        "kernels", "links",  "sources"};

    if (strcmp(node->key, "name") == 0) {
        return read_name(r, node, r->machine[USUAL]->name);
    }
    if (strcmp(node->key, "target") == 0) {
        return read_choice(r, node, "cpu", "cuda", &r->machine[USUAL]->inline_compute);
    }
    if (strcmp(node->key, "bf16") == 0) {
        r->knows_bf16 = true;
        return read_choice(r, node, "native", "emulated", &r->machine[USUAL]->native_bf16);
    }
    if (strcmp(node->key, "device") == 0) {
        return read_numbers(r, node, "device");
    }
    if (strcmp(node->key, "kernels") == 0) {
        return read_kernels(r, node);
    }
    if (strcmp(node->key, "links") == 0) {
        return read_tiers(r, node);
    }
    if (strcmp(node->key, "sources") == 0) {
        return node->kind == TSRI_YAML_LIST ? TSR_OK : raise_at(r, node, "wants a list of lines");
    }
    return raise_unknown_key(r, node, names, 7);
}

/* What has no ends is the same on all three. */
static void share_ends(const reading *r)
{
    tsri_machine *usual = r->machine[USUAL];

    if (!r->knows_bf16) {
        usual->native_bf16 = !usual->inline_compute || tsri_here_computes_bf16();
    }
    for (int i = 0; i < ENDS; i++) {
        tsri_machine *m = r->machine[i];

        memmove(m->name, usual->name, sizeof(m->name));
        m->inline_compute = usual->inline_compute;
        m->native_bf16 = usual->native_bf16;
        m->tier_count = usual->tier_count;
        for (int tier = 0; tier < usual->tier_count && m != usual; tier++) {
            memcpy(m->tiers[tier].name, usual->tiers[tier].name, sizeof(m->tiers[tier].name));
            m->tiers[tier].span = usual->tiers[tier].span;
        }
    }
}

/* Where the file gives no ends at all. */
static void assume_ends(const reading *r)
{
    static const double factors[ENDS] = {
        [SLOW] = 1.0 - TSRI_CLUSTER_ASSUMED, [USUAL] = 1.0, [FAST] = 1.0 + TSRI_CLUSTER_ASSUMED};

    for (int i = 0; i < ENDS; i++) {
        tsri_machine *m = r->machine[i];

        for (int type = 0; type < TSRI_MACHINE_TYPES; type++) {
            m->flops[type] *= factors[i];
        }
        for (int id = 0; id < TSRK_COUNT; id++) {
            m->kernel_rate[id] *= factors[i];
        }
        m->bytes_per_s *= factors[i];
        m->host_bytes_per_s *= factors[i];
        for (int tier = 0; tier < m->tier_count; tier++) {
            m->tiers[tier].bytes_per_s *= factors[i];
        }
    }
}

static tsr_status read_root(reading *r, const tsri_yaml_node *root)
{
    if (root->kind != TSRI_YAML_MAP) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: wants keys with values", r->file);
    }
    for (int c = 0; c < root->count; c++) {
        TSR_TRY(read_top(r, &root->children[c]));
    }
    if (r->machine[USUAL]->name[0] == '\0') {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: name is missing", r->file);
    }
    TSR_TRY(check_required(r));
    share_ends(r);
    for (int i = 0; i < ENDS; i++) {
        TSR_TRY(tsri_cluster_check(r->machine[i], r->file));
    }
    if (!r->ranged) {
        assume_ends(r);
    }
    return TSR_OK;
}

tsr_status tsri_cluster_parse(const char *text, size_t bytes, const char *name, tsri_cluster *out)
{
    tsri_cluster cluster = {.hash = tsri_hash(text, bytes, 0)};
    reading r = {.file = name, .machine = {&cluster.slow, &cluster.machine, &cluster.fast}};
    tsri_yaml_node *root = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_yaml_parse(text, bytes, name, &root));
    TSR_TRY_GOTO(status, read_root(&r, root), free_root);
    cluster.assumed = !r.ranged;
    if (cluster.machine.tier_count > 1) {
        cluster.devices = cluster.machine.tiers[cluster.machine.tier_count - 2].span;
    }
    *out = cluster;
free_root:
    tsri_yaml_free(&root);
    return status;
}

/* ---- finding it ---- */

/* The failure under way says why name is no file that can be read. */
static tsr_status raise_missing(const char *name)
{
    const char *names[TSRI_CLUSTER_COUNT];
    char why[PLACE_BYTES];

    for (int i = 0; i < TSRI_CLUSTER_COUNT; i++) {
        names[i] = tsri_clusters[i].name;
    }
    const char *near = tsri_nearest(name, names, TSRI_CLUSTER_COUNT);

    (void)snprintf(why, sizeof(why), "%s", tsr_error_message());
    tsr_error_clear();
    return TSR_RAISE(TSR_ERR_IO, "cluster \"%s\" is none of %s%s%s, and no file: %s", name,
                     tsri_cluster_names(), near != NULL ? "; nearest: " : "",
                     near != NULL ? near : "", why);
}

tsr_status tsri_cluster_load(const char *name, tsri_cluster *out)
{
    char *text = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    for (int i = 0; i < TSRI_CLUSTER_COUNT; i++) {
        if (strcmp(tsri_clusters[i].name, name) == 0) {
            return tsri_cluster_parse(tsri_clusters[i].text, strlen(tsri_clusters[i].text), name,
                                      out);
        }
    }
    if (tsri_file_read(name, &text, &bytes) != TSR_OK) {
        return raise_missing(name);
    }
    TSR_TRY_GOTO(status, tsri_cluster_parse(text, bytes, name, out), free_text);
free_text:
    tsri_free(&text);
    return status;
}

const char *tsri_cluster_names(void)
{
    return TSRI_CLUSTER_NAMES;
}

/* ---- writing ---- */

static void print_numbers(const tsri_machine *m, const char *section, tsri_text *text)
{
    bool first = true;

    for (int i = 0; i < NUMBERS; i++) {
        const double value = *(const double *)(const void *)((const char *)m + numbers[i].offset);

        if (strcmp(numbers[i].section, section) == 0) {
            tsri_text_add(text, "%s%s: %.6g", first ? "" : ", ", numbers[i].key,
                          value / *numbers[i].unit);
            first = false;
        }
    }
}

void tsri_cluster_print(const tsri_machine *m, const char *sources, tsri_text *text)
{
    bool first = true;

    tsri_text_add(text, "name: %s\ntarget: %s\nbf16: %s\ndevice: {", m->name,
                  m->inline_compute ? "cpu" : "cuda", m->native_bf16 ? "native" : "emulated");
    print_numbers(m, "device", text);
    tsri_text_add(text, ",\n         peak_tflops: {");
    print_numbers(m, "peak_tflops", text);
    tsri_text_add(text, "}, tflops: {");
    print_numbers(m, "tflops", text);
    tsri_text_add(text, "}}\nkernels: {");
    for (int id = 0; id < TSRK_COUNT; id++) {
        if (m->kernel_rate[id] > 0.0) {
            tsri_text_add(text, "%s%s: %.6g", first ? "" : ", ", tsrk_name((tsrk_id)id),
                          m->kernel_rate[id] / kernel_unit((tsrk_id)id));
            first = false;
        }
    }
    tsri_text_add(text, "}\nlinks:\n");
    for (int i = 0; i < m->tier_count; i++) {
        const tsri_tier *t = &m->tiers[i];
        char span[PLACE_BYTES];

        (void)snprintf(span, sizeof(span), "%d", t->span);
        tsri_text_add(text, "  - {name: %s, ranks: %s, gb_per_s: %.6g, hop_us: %.6g", t->name,
                      t->span == 0 ? "all" : span, t->bytes_per_s / giga, t->hop_s / micro);
        if (t->busy_s > 0.0) {
            tsri_text_add(text, ", busy_us: %.6g", t->busy_s / micro);
        }
        tsri_text_add(text, "}\n");
    }
    tsri_text_add(text, "sources:\n%s", sources);
}
