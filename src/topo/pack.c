/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A machine as JSON and back: what hosts of a job send each other, and what programs read.
 *
 * Reading checks every index, because a description may come from a file or another build. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include "topo/json.h"

/* ---- writing ---- */

static json_t *ints(const int *values, int count)
{
    json_t *list = json_array();

    for (int i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static json_t *device_json(const tsri_topo_device *d)
{
    json_t *name = json_string(d->name);

    return json_pack("{s:s, s:o, s:i, s:i, s:f, s:o}", "busid", d->busid, "name",
                     name != NULL ? name : json_string(""), "numa", d->numa, "package", d->package,
                     "pci_gb_s", d->pci_gb_s, "path", ints(d->path.bridge, d->path.count));
}

static json_t *numas_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->numa_count; i++) {
        const tsri_topo_numa *n = &t->numas[i];

        (void)json_array_append_new(
            list, json_pack("{s:i, s:i, s:I, s:i}", "os_index", n->os_index, "package", n->package,
                            "memory_bytes", (json_int_t)n->memory_bytes, "cores", n->core_count));
    }
    return list;
}

static json_t *cores_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->core_count; i++) {
        const tsri_topo_core *c = &t->cores[i];

        (void)json_array_append_new(list, json_pack("{s:i, s:i, s:o}", "package", c->package,
                                                    "numa", c->numa, "pus",
                                                    ints(t->pus + c->pu_first, c->pu_count)));
    }
    return list;
}

static json_t *bridges_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->bridge_count; i++) {
        (void)json_array_append_new(list, json_pack("{s:s, s:b}", "busid", t->bridges[i].busid,
                                                    "host", (int)t->bridges[i].host));
    }
    return list;
}

static json_t *gpus_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->gpu_count; i++) {
        const tsri_topo_gpu *g = &t->gpus[i];

        (void)json_array_append_new(
            list, json_pack("{s:o, s:i, s:i, s:i, s:I, s:b, s:b, s:b}", "at", device_json(&g->at),
                            "device", g->device, "nvml", g->nvml, "vendor", g->vendor,
                            "memory_bytes", (json_int_t)g->memory_bytes, "visible", (int)g->visible,
                            "opencl", (int)g->opencl, "opencl_alone", (int)g->opencl_alone));
    }
    return list;
}

static json_t *nics_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->nic_count; i++) {
        const tsri_topo_nic *n = &t->nics[i];

        (void)json_array_append_new(list, json_pack("{s:o, s:i, s:f}", "at", device_json(&n->at),
                                                    "kind", (int)n->kind, "gb_s", n->gb_s));
    }
    return list;
}

static json_t *links_json(const tsri_topo *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->gpu_count * t->gpu_count; i++) {
        (void)json_array_append_new(list, json_real(t->links[i]));
    }
    return list;
}

tsr_status tsri_topo_to_json(const tsri_topo *t, json_t **out)
{
    json_t *tree =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:s, s:b}", "host", t->host,
                  "source", t->source, "packages", t->package_count, "cores_of_machine",
                  t->core_total, "threads_of_machine", t->pu_total, "numa_nodes", numas_json(t),
                  "cores", cores_json(t), "bridges", bridges_json(t), "gpus", gpus_json(t), "nics",
                  nics_json(t), "link_kind", t->link_kind, "link_switched", (int)t->link_switched);

    if (tree == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the machine, or its host's name is no text");
    }
    if (t->links != NULL) {
        (void)json_object_set_new(tree, "links_gb_s", links_json(t));
    }
    *out = tree;
    return TSR_OK;
}

tsr_status tsri_topo_pack(const tsri_topo *topo, char **out)
{
    json_t *tree = NULL;
    char *text = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_topo_to_json(topo, &tree));
    text = json_dumps(tree, JSON_COMPACT);
    json_decref(tree);
    if (text == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the machine");
    }
    status = tsri_strdup(text, out);
    free(text); /* lint: jansson's */
    TSR_TRY(status);
    return TSR_OK;
}

/* ---- reading ---- */

static tsr_status get_int(const json_t *o, const char *key, const char *name, int64_t least,
                          int64_t most, int *out)
{
    int64_t value = 0;

    TSR_TRY(tsri_json_int(o, key, name, &value));
    if (value < least || value > most) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: \"%s\" is %lld, wants %lld to %lld", name, key,
                         (long long)value, (long long)least, (long long)most);
    }
    *out = (int)value;
    return TSR_OK;
}

static tsr_status get_text(const json_t *o, const char *key, const char *name, char *out,
                           size_t size)
{
    const char *text = NULL;

    TSR_TRY(tsri_json_string(o, key, name, &text));
    (void)snprintf(out, size, "%s", text);
    return TSR_OK;
}

/* The array at key, and room for its entries. */
static tsr_status get_list(const json_t *o, const char *key, const char *name, size_t entry_bytes,
                           json_t **list_out, void *array_out, int *count_out)
{
    TSR_TRY(tsri_json_array(o, key, name, list_out));
    TSR_TRY(tsri_to_int((int64_t)json_array_size(*list_out), key, count_out));
    TSR_TRY(tsri_alloc((size_t)*count_out, entry_bytes, array_out));
    return TSR_OK;
}

static tsr_status read_path(const json_t *o, const char *name, const tsri_topo *t,
                            tsri_topo_path *out)
{
    json_t *list = NULL;

    TSR_TRY(tsri_json_array(o, "path", name, &list));
    if (json_array_size(list) > TSRI_TOPO_MAX_PATH) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: a path of %zu bridges, wants at most %d", name,
                         json_array_size(list), TSRI_TOPO_MAX_PATH);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_int_t value = json_integer_value(entry);

        if (!json_is_integer(entry) || value < 0 || value >= t->bridge_count) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: a path names bridge %lld of %d", name,
                             (long long)value, t->bridge_count);
        }
        out->bridge[out->count++] = (int)value;
    }
    return TSR_OK;
}

static tsr_status read_device(const json_t *o, const char *name, const tsri_topo *t,
                              tsri_topo_device *out)
{
    json_t *at = NULL;

    TSR_TRY(tsri_json_object(o, "at", name, &at));
    TSR_TRY(get_text(at, "busid", name, out->busid, sizeof(out->busid)));
    TSR_TRY(get_text(at, "name", name, out->name, sizeof(out->name)));
    TSR_TRY(get_int(at, "numa", name, -1, t->numa_count - 1, &out->numa));
    TSR_TRY(get_int(at, "package", name, -1, t->package_count - 1, &out->package));
    TSR_TRY(tsri_json_number(at, "pci_gb_s", name, &out->pci_gb_s));
    TSR_TRY(read_path(at, name, t, &out->path));
    return TSR_OK;
}

static tsr_status read_numas(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;

    TSR_TRY(get_list(o, "numa_nodes", name, sizeof(*t->numas), &list, &t->numas, &t->numa_count));
    for (int i = 0; i < t->numa_count; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);

        TSR_TRY(get_int(entry, "os_index", name, -1, INT32_MAX, &t->numas[i].os_index));
        TSR_TRY(get_int(entry, "package", name, -1, t->package_count - 1, &t->numas[i].package));
        TSR_TRY(tsri_json_int(entry, "memory_bytes", name, &t->numas[i].memory_bytes));
        TSR_TRY(get_int(entry, "cores", name, 0, t->core_total, &t->numas[i].core_count));
    }
    return TSR_OK;
}

static tsr_status read_pus(const json_t *entry, const char *name, tsri_topo *t, tsri_topo_core *c)
{
    json_t *list = NULL;

    TSR_TRY(tsri_json_array(entry, "pus", name, &list));
    c->pu_first = t->pu_count;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t pu = json_integer_value(json_array_get(list, i));

        if (t->pu_count == t->pu_total || pu < 0 || pu > INT32_MAX) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: more or other threads than the machine has",
                             name);
        }
        t->pus[t->pu_count++] = (int)pu;
        c->pu_count++;
    }
    return TSR_OK;
}

static tsr_status read_cores(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;

    TSR_TRY(get_list(o, "cores", name, sizeof(*t->cores), &list, &t->cores, &t->core_count));
    TSR_TRY(tsri_alloc((size_t)t->pu_total, sizeof(*t->pus), &t->pus));
    for (int i = 0; i < t->core_count; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);

        TSR_TRY(get_int(entry, "package", name, -1, t->package_count - 1, &t->cores[i].package));
        TSR_TRY(get_int(entry, "numa", name, -1, t->numa_count - 1, &t->cores[i].numa));
        TSR_TRY(read_pus(entry, name, t, &t->cores[i]));
    }
    return TSR_OK;
}

static tsr_status read_gpu(const json_t *entry, const char *name, const tsri_topo *t,
                           tsri_topo_gpu *g)
{
    TSR_TRY(read_device(entry, name, t, &g->at));
    TSR_TRY(get_int(entry, "device", name, -1, INT32_MAX, &g->device));
    TSR_TRY(get_int(entry, "nvml", name, -1, INT32_MAX, &g->nvml));
    TSR_TRY(get_int(entry, "vendor", name, 0, UINT16_MAX, &g->vendor));
    TSR_TRY(tsri_json_int(entry, "memory_bytes", name, &g->memory_bytes));
    TSR_TRY(tsri_json_bool(entry, "visible", name, &g->visible));
    TSR_TRY(tsri_json_bool(entry, "opencl", name, &g->opencl));
    TSR_TRY(tsri_json_bool(entry, "opencl_alone", name, &g->opencl_alone));
    return TSR_OK;
}

static tsr_status read_gpus(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;

    TSR_TRY(get_list(o, "gpus", name, sizeof(*t->gpus), &list, &t->gpus, &t->gpu_count));
    if (t->gpu_count > TSRI_TOPO_MAX_GPUS) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %d GPUs, wants at most %d", name, t->gpu_count,
                         TSRI_TOPO_MAX_GPUS);
    }
    for (int i = 0; i < t->gpu_count; i++) {
        TSR_TRY(read_gpu(json_array_get(list, (size_t)i), name, t, &t->gpus[i]));
    }
    return TSR_OK;
}

static tsr_status read_nics(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;

    TSR_TRY(get_list(o, "nics", name, sizeof(*t->nics), &list, &t->nics, &t->nic_count));
    for (int i = 0; i < t->nic_count; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        int kind = 0;

        TSR_TRY(read_device(entry, name, t, &t->nics[i].at));
        TSR_TRY(get_int(entry, "kind", name, 0, TSRI_TOPO_NIC_OPENFABRICS, &kind));
        t->nics[i].kind = (tsri_topo_nic_kind)kind;
        TSR_TRY(tsri_json_number(entry, "gb_s", name, &t->nics[i].gb_s));
    }
    return TSR_OK;
}

static tsr_status read_bridges(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;

    TSR_TRY(
        get_list(o, "bridges", name, sizeof(*t->bridges), &list, &t->bridges, &t->bridge_count));
    for (int i = 0; i < t->bridge_count; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);

        TSR_TRY(get_text(entry, "busid", name, t->bridges[i].busid, sizeof(t->bridges[i].busid)));
        TSR_TRY(tsri_json_bool(entry, "host", name, &t->bridges[i].host));
    }
    return TSR_OK;
}

static tsr_status unpack_links(const json_t *o, const char *name, tsri_topo *t)
{
    json_t *list = NULL;
    int count = 0;

    if (json_object_get(o, "links_gb_s") == NULL) {
        return TSR_OK;
    }
    TSR_TRY(get_list(o, "links_gb_s", name, sizeof(*t->links), &list, &t->links, &count));
    if (count != t->gpu_count * t->gpu_count) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %d links for %d GPUs", name, count, t->gpu_count);
    }
    for (int i = 0; i < count; i++) {
        t->links[i] = json_number_value(json_array_get(list, (size_t)i));
    }
    return TSR_OK;
}

static tsr_status read_facts(const json_t *o, const char *name, tsri_topo *t)
{
    TSR_TRY(get_text(o, "host", name, t->host, sizeof(t->host)));
    TSR_TRY(get_text(o, "source", name, t->source, sizeof(t->source)));
    TSR_TRY(get_text(o, "link_kind", name, t->link_kind, sizeof(t->link_kind)));
    TSR_TRY(tsri_json_bool(o, "link_switched", name, &t->link_switched));
    TSR_TRY(get_int(o, "packages", name, 0, INT32_MAX, &t->package_count));
    TSR_TRY(get_int(o, "cores_of_machine", name, 0, 1 << 24, &t->core_total));
    TSR_TRY(get_int(o, "threads_of_machine", name, 0, 1 << 24, &t->pu_total));
    return TSR_OK;
}

static tsr_status unpack_all(const json_t *o, const char *name, tsri_topo *t)
{
    TSR_TRY(read_facts(o, name, t));
    TSR_TRY(read_numas(o, name, t));
    TSR_TRY(read_cores(o, name, t));
    TSR_TRY(read_bridges(o, name, t));
    TSR_TRY(read_gpus(o, name, t));
    TSR_TRY(read_nics(o, name, t));
    TSR_TRY(unpack_links(o, name, t));
    return TSR_OK;
}

tsr_status tsri_topo_from_json(const json_t *tree, const char *name, tsri_topo **out)
{
    tsri_topo *topo = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*topo), &topo));
    TSR_TRY_GOTO(status, unpack_all(tree, name, topo), drop);
    *out = topo;
    return TSR_OK;
drop:
    tsri_topo_free(&topo);
    return status;
}

tsr_status tsri_topo_unpack(const char *text, size_t bytes, const char *name, tsri_topo **out)
{
    json_t *tree = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_json_parse(text, bytes, name, &tree));
    status = tsri_topo_from_json(tree, name, out);
    json_decref(tree);
    TSR_TRY(status);
    return TSR_OK;
}
