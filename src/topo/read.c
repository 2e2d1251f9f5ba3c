/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading a machine with hwloc: where it comes from, packages, NUMA nodes, cores.
 *
 * The whole machine is loaded, disallowed processors included, so that devices keep their NUMA node
 * where a cgroup gives us other cores; only what is allowed is listed. I/O objects are kept by a
 * filter set before loading: hwloc drops them by default. */
#include "topo_priv.h"

#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ---- sources ---- */

/* What is no hwloc XML of a version that can be read, in words that help. */
static tsr_status check_xml(const char *name, const char *text)
{
    const char *root = strstr(text, "<topology");
    const char *end = root != NULL ? strchr(root, '>') : NULL;
    const char *version = end != NULL ? strstr(root, "version=\"") : NULL;

    if (root == NULL && strstr(text, "<system") != NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: a topology of NCCL, not of hwloc; `lstopo FILE.xml` writes one",
                         name);
    }
    if (root == NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: no hwloc XML: it has no <topology>; `lstopo FILE.xml` writes one",
                         name);
    }
    if (version != NULL && version < end && version[9] >= '3' && version[9] <= '9') {
        return TSR_RAISE(
            TSR_ERR_FORMAT,
            "%s: hwloc XML of version %.3s, which hwloc %d cannot read; export it with "
            "`lstopo --export-xml-flags v2`",
            name, version + 9, HWLOC_API_VERSION >> 16);
    }
    return TSR_OK;
}

static tsr_status configure(hwloc_topology_t h, bool devices)
{
    const unsigned long flags = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED;

    if (hwloc_topology_set_flags(h, flags) != 0 ||
        hwloc_topology_set_io_types_filter(h, devices ? HWLOC_TYPE_FILTER_KEEP_ALL
                                                      : HWLOC_TYPE_FILTER_KEEP_NONE) != 0) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "hwloc refuses its flags: %s", strerror(errno));
    }
    return TSR_OK;
}

/* text is a synthetic string or, by name, XML. */
static tsr_status load_topology(hwloc_topology_t h, tsri_topo_source source, const char *text,
                                const char *name)
{
    const size_t bytes = text != NULL ? strlen(text) + 1 : 0;

    TSR_TRY(configure(h, source != TSRI_TOPO_LIVE_CORES));
    if (source == TSRI_TOPO_XML_TEXT) {
        if (bytes > INT32_MAX || hwloc_topology_set_xmlbuffer(h, text, (int)bytes) != 0 ||
            hwloc_topology_load(h) != 0) {
            return TSR_RAISE(TSR_ERR_FORMAT,
                             "%s: hwloc XML that hwloc cannot load: it is damaged or cut", name);
        }
    } else if (source == TSRI_TOPO_SYNTHETIC) {
        if (hwloc_topology_set_synthetic(h, text) != 0 || hwloc_topology_load(h) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "synthetic machine \"%s\" is none that hwloc knows; wants for example "
                             "\"package:2 numa:1 core:8 pu:2\"",
                             text);
        }
    } else if (hwloc_topology_load(h) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "hwloc cannot read this machine: %s", strerror(errno));
    }
    return TSR_OK;
}

/* ---- packages, NUMA nodes, cores ---- */

/* A node without processors (memory of a GPU, an expander) and one with those of an earlier node
 * (a second kind of memory) are not places where ranks could run. */
static bool is_place(hwloc_topology_t h, hwloc_obj_t node)
{
    if (node->cpuset == NULL || hwloc_bitmap_iszero(node->cpuset)) {
        return false;
    }
    for (hwloc_obj_t n = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, NULL);
         n != NULL && n != node; n = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, n)) {
        if (n->cpuset != NULL && hwloc_bitmap_isequal(n->cpuset, node->cpuset)) {
            return false;
        }
    }
    return true;
}

static int package_of(hwloc_topology_t h, hwloc_obj_t object)
{
    hwloc_obj_t package = object->type == HWLOC_OBJ_PACKAGE
                              ? object
                              : hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_PACKAGE, object);

    return package != NULL ? (int)package->logical_index : -1;
}

static int numa_of_os(const tsri_topo *topo, unsigned os_index)
{
    for (int i = 0; i < topo->numa_count; i++) {
        if (topo->numas[i].os_index == (int)os_index) {
            return i;
        }
    }
    return -1;
}

void tsri_topo_locate(hwloc_topology_t h, const tsri_topo *topo, hwloc_obj_t object, int *numa_out,
                      int *package_out)
{
    int found = -1;

    *numa_out = -1;
    *package_out = topo->package_count == 1 ? 0 : object != NULL ? package_of(h, object) : -1;
    for (hwloc_obj_t n = NULL;
         object != NULL && object->cpuset != NULL &&
         (n = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, n)) != NULL;) {
        const int index = numa_of_os(topo, n->os_index);

        if (index < 0 || !hwloc_bitmap_intersects(n->cpuset, object->cpuset)) {
            continue;
        }
        if (found >= 0) {
            return; /* several nodes: which one is unknown */
        }
        found = index;
    }
    *numa_out = found;
    if (found >= 0 && *package_out < 0) {
        *package_out = topo->numas[found].package;
    }
}

static tsr_status read_numas(hwloc_topology_t h, tsri_topo *topo)
{
    const int count = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_NUMANODE);

    TSR_TRY(tsri_alloc((size_t)(count > 0 ? count : 0), sizeof(*topo->numas), &topo->numas));
    for (hwloc_obj_t n = NULL;
         (n = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, n)) != NULL;) {
        if (is_place(h, n) && topo->numa_count < count) {
            topo->numas[topo->numa_count++] =
                (tsri_topo_numa){.os_index = (int)n->os_index,
                                 .package = package_of(h, n),
                                 .memory_bytes = (int64_t)n->attr->numanode.local_memory};
        }
    }
    return TSR_OK;
}

/* One core: its allowed hardware threads, if it has any. */
static void add_core(hwloc_topology_t h, hwloc_obj_t object, hwloc_const_bitmap_t allowed,
                     tsri_topo *topo)
{
    tsri_topo_core core = {.pu_first = topo->pu_count};

    tsri_topo_locate(h, topo, object, &core.numa, &core.package);
    for (int pu = hwloc_bitmap_first(object->cpuset); pu >= 0;
         pu = hwloc_bitmap_next(object->cpuset, pu)) {
        if (hwloc_bitmap_isset(allowed, (unsigned)pu) && topo->pu_count < topo->pu_total) {
            topo->pus[topo->pu_count++] = pu;
            core.pu_count++;
        }
    }
    if (core.pu_count > 0) {
        topo->cores[topo->core_count++] = core;
        if (core.numa >= 0) {
            topo->numas[core.numa].core_count++;
        }
    }
}

static tsr_status read_cores(hwloc_topology_t h, tsri_topo *topo)
{
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(h);
    hwloc_obj_type_t type = HWLOC_OBJ_CORE;

    topo->pu_total = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_PU);
    topo->core_total = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_CORE);
    if (topo->core_total <= 0) { /* some systems tell of threads alone */
        type = HWLOC_OBJ_PU;
        topo->core_total = topo->pu_total;
    }
    if (topo->pu_total <= 0 || allowed == NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT, "the machine has no processors");
    }
    TSR_TRY(tsri_alloc((size_t)topo->core_total, sizeof(*topo->cores), &topo->cores));
    TSR_TRY(tsri_alloc((size_t)topo->pu_total, sizeof(*topo->pus), &topo->pus));
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(h, type, o)) != NULL;) {
        if (o->cpuset != NULL) {
            add_core(h, o, allowed, topo);
        }
    }
    return TSR_OK;
}

void tsri_topo_take_name(const char *text, char *out, size_t size)
{
    size_t i = 0;

    for (; text[i] != '\0' && i + 1 < size; i++) {
        out[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    }
    out[i] = '\0';
}

static void read_host(hwloc_topology_t h, tsri_topo_source source, tsri_topo *topo)
{
    static const char *const names[] = {"this machine", "this machine", "XML", "XML", "synthetic"};
    const char *host = hwloc_obj_get_info_by_name(hwloc_get_root_obj(h), "HostName");

    (void)snprintf(topo->source, sizeof(topo->source), "%s", names[source]);
    if (source <= TSRI_TOPO_LIVE_CORES) {
        (void)gethostname(topo->host, sizeof(topo->host) - 1);
    } else if (host != NULL) {
        tsri_topo_take_name(host, topo->host, sizeof(topo->host));
    }
}

static tsr_status read_machine(hwloc_topology_t h, tsri_topo_source source, tsri_topo *topo)
{
    const int packages = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_PACKAGE);

    topo->package_count = packages > 0 ? packages : 0;
    read_host(h, source, topo);
    TSR_TRY(read_numas(h, topo));
    TSR_TRY(read_cores(h, topo));
    TSR_TRY(tsri_topo_read_devices(h, topo));
    TSR_TRY(tsri_topo_read_links(h, topo));
    if (source == TSRI_TOPO_LIVE) {
        TSR_TRY(tsri_topo_ask_nvml(topo));
        tsri_topo_ask_rates("/sys", topo);
    }
    tsri_topo_find_hidden(topo);
    return TSR_OK;
}

static tsr_status read_here(tsri_topo_source source, const char *text, const char *name,
                            tsri_topo **out)
{
    hwloc_topology_t h = NULL;
    tsri_topo *topo = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*topo), &topo));
    if (hwloc_topology_init(&h) != 0) {
        tsri_free(&topo);
        return TSR_RAISE(TSR_ERR_NOMEM, "hwloc has no memory");
    }
    TSR_TRY_GOTO(status, load_topology(h, source, text, name), destroy);
    TSR_TRY_GOTO(status, read_machine(h, source, topo), destroy);
    *out = topo;
    topo = NULL;
destroy:
    hwloc_topology_destroy(h);
    tsri_topo_free(&topo);
    return status;
}

tsr_status tsri_topo_load_xml(const char *name, const char *xml, tsri_topo **out)
{
    TSR_TRY(read_here(TSRI_TOPO_XML_TEXT, xml, name, out));
    return TSR_OK;
}

static tsr_status read_xml(const char *name, const char *xml, tsri_topo **out)
{
    TSR_TRY(check_xml(name, xml));
    TSR_TRY(tsri_topo_read_apart(name, xml, out));
    return TSR_OK;
}

static tsr_status read_file(const char *path, tsri_topo **out)
{
    char *xml = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_file_read(path, &xml, &bytes));
    status = read_xml(path, xml, out);
    tsri_free(&xml);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_topo_read(tsri_topo_source source, const char *text, tsri_topo **out)
{
    if (source == TSRI_TOPO_XML) {
        TSR_TRY(read_file(text, out));
    } else if (source == TSRI_TOPO_XML_TEXT) {
        TSR_TRY(read_xml("XML", text, out));
    } else {
        TSR_TRY(read_here(source, text, "", out));
    }
    return TSR_OK;
}
