/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* GPUs and NICs of a loaded topology, and the PCI bridges above them.
 *
 * What counts as a GPU: whatever a GPU library named (cuda0, nvml0, rsmi0, opencl0d0, ...),
 * NVIDIA's display and 3D controllers, and AMD's accelerators. A server's own graphics chip is
 * none. A plain Debian hwloc knows PCI alone, so names by a library are the better knowledge, not a
 * condition. */
#include "topo_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum {
    CLASS_DISPLAY = 0x03,
    CLASS_NETWORK = 0x02,
    CLASS_VGA = 0x0300,
    CLASS_3D = 0x0302,
    CLASS_DISPLAY_OTHER = 0x0380,
    CLASS_ACCELERATOR = 0x1200,
    CLASS_INFINIBAND = 0x0c06
};

/* ---- bridges ---- */

static tsr_status bridge_index(hwloc_obj_t bridge, tsri_topo *topo, int *capacity, int *out)
{
    const struct hwloc_bridge_attr_s *a = &bridge->attr->bridge;
    tsri_topo_bridge b = {.host = a->upstream_type == HWLOC_OBJ_BRIDGE_HOST};

    if (b.host) {
        (void)snprintf(b.busid, sizeof(b.busid), "%04x:%02x", (unsigned)a->downstream.pci.domain,
                       (unsigned)a->downstream.pci.secondary_bus);
    } else {
        (void)snprintf(b.busid, sizeof(b.busid), "%04x:%02x:%02x.%01x",
                       (unsigned)a->upstream.pci.domain & 0xffff, (unsigned)a->upstream.pci.bus,
                       (unsigned)a->upstream.pci.dev & 0x1f, (unsigned)a->upstream.pci.func & 7);
    }
    for (int i = 0; i < topo->bridge_count; i++) {
        if (b.host == topo->bridges[i].host && strcmp(b.busid, topo->bridges[i].busid) == 0) {
            *out = i;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&topo->bridges, capacity, topo->bridge_count + 1, sizeof(b)));
    topo->bridges[topo->bridge_count] = b;
    *out = topo->bridge_count++;
    return TSR_OK;
}

/* The bridges above, host bridge first; of a path that is too long its lower end is left out. */
static tsr_status read_path(hwloc_obj_t object, tsri_topo *topo, int *capacity, tsri_topo_path *out)
{
    int depth = 0;

    for (hwloc_obj_t o = object->parent; o != NULL && o->type == HWLOC_OBJ_BRIDGE; o = o->parent) {
        depth++;
    }
    out->count = depth < TSRI_TOPO_MAX_PATH ? depth : TSRI_TOPO_MAX_PATH;
    for (hwloc_obj_t o = object->parent; depth > 0; o = o->parent) {
        depth--;
        if (depth < TSRI_TOPO_MAX_PATH) {
            TSR_TRY(bridge_index(o, topo, capacity, &out->bridge[depth]));
        }
    }
    return TSR_OK;
}

/* ---- what a device is ---- */

/* What libraries told of a device: its OS devices. */
typedef struct facts {
    int cuda, nvml, rsmi, levelzero;
    bool opencl;
    const char *model, *maker, *interface, *fabric;
    int64_t memory_bytes;
} facts;

static int number_after(const char *name, const char *prefix)
{
    const size_t length = strlen(prefix);

    if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9') {
        return -1;
    }
    return (int)(strtol(name + length, NULL, 10) & 0xffff);
}

static void take_memory(hwloc_obj_t os, facts *f)
{
    static const char *const keys[] = {"CUDAGlobalMemorySize", "OpenCLGlobalMemorySize",
                                       "RSMIVRAMSize", "LevelZeroHBMSize"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && f->memory_bytes == 0; i++) {
        const char *kib = hwloc_obj_get_info_by_name(os, keys[i]);

        if (kib != NULL) {
            f->memory_bytes = (strtoll(kib, NULL, 10) & 0xffffffffffLL) * 1024;
        }
    }
}

/* OpenCL also names processors and other devices that compute. */
static bool is_opencl_gpu(hwloc_obj_t os)
{
    const char *type = hwloc_obj_get_info_by_name(os, "OpenCLDeviceType");

    return number_after(os->name != NULL ? os->name : "", "opencl") >= 0 &&
           (type == NULL || strcmp(type, "GPU") == 0);
}

static void take_fact(hwloc_obj_t os, facts *f)
{
    const char *name = os->name != NULL ? os->name : "";
    const char *model = hwloc_obj_get_info_by_name(os, "GPUModel");
    const char *maker = hwloc_obj_get_info_by_name(os, "GPUVendor");
    const int cuda = number_after(name, "cuda");
    const int nvml = number_after(name, "nvml");
    const int rsmi = number_after(name, "rsmi");
    const int levelzero = number_after(name, "ze");

    f->cuda = cuda >= 0 ? cuda : f->cuda;
    f->nvml = nvml >= 0 ? nvml : f->nvml;
    f->rsmi = rsmi >= 0 ? rsmi : f->rsmi;
    f->levelzero = levelzero >= 0 ? levelzero : f->levelzero;
    f->opencl = f->opencl || is_opencl_gpu(os);
    f->model = f->model != NULL ? f->model : model;
    f->maker = f->maker != NULL ? f->maker : maker;
    take_memory(os, f);
    if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && f->fabric == NULL) {
        f->fabric = name;
    }
    if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && f->interface == NULL) {
        f->interface = name;
    }
}

static facts no_facts(void)
{
    return (facts){.cuda = -1, .nvml = -1, .rsmi = -1, .levelzero = -1};
}

static facts facts_below(hwloc_obj_t pci)
{
    facts f = no_facts();

    for (hwloc_obj_t o = pci->io_first_child; o != NULL; o = o->next_sibling) {
        if (o->type == HWLOC_OBJ_OS_DEVICE) {
            take_fact(o, &f);
        }
    }
    return f;
}

static bool has_library(const facts *f)
{
    return f->cuda >= 0 || f->nvml >= 0 || f->rsmi >= 0 || f->levelzero >= 0;
}

/* Does its PCI class say that it computes? AMD's class of graphics cards is also that of small
 * chips on mainboards. */
static bool is_gpu_class(hwloc_obj_t pci)
{
    const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;

    if (a->vendor_id == TSRI_TOPO_NVIDIA) {
        return a->class_id == CLASS_VGA || a->class_id == CLASS_3D;
    }
    return a->vendor_id == TSRI_TOPO_AMD &&
           (a->class_id == CLASS_DISPLAY_OTHER || a->class_id == CLASS_ACCELERATOR);
}

static bool is_gpu(hwloc_obj_t pci, const facts *f)
{
    return has_library(f) || is_gpu_class(pci) || f->opencl;
}

static int vendor_of(hwloc_obj_t pci, const facts *f)
{
    const char *maker = f->maker != NULL ? f->maker : "";

    if (pci != NULL) {
        return pci->attr->pcidev.vendor_id;
    }
    return f->cuda >= 0 || f->nvml >= 0 || strstr(maker, "NVIDIA") != NULL ? TSRI_TOPO_NVIDIA
           : f->rsmi >= 0 || strstr(maker, "AMD") != NULL ||
                   strstr(maker, "Advanced Micro Devices") != NULL
               ? TSRI_TOPO_AMD
           : f->levelzero >= 0 || strstr(maker, "Intel") != NULL ? TSRI_TOPO_INTEL
                                                                 : 0;
}

static bool is_nic(hwloc_obj_t pci, const facts *f)
{
    const unsigned class_id = pci->attr->pcidev.class_id;

    if (f->fabric != NULL) {
        return true;
    }
    if (f->interface != NULL && strncmp(f->interface, "wl", 2) == 0) {
        return false; /* wireless */
    }
    return f->interface != NULL || class_id >> 8 == CLASS_NETWORK || class_id == CLASS_INFINIBAND;
}

/* ---- the lists ---- */

typedef struct lists {
    int gpus, nics, bridges; /* capacities */
} lists;

static const char *model_of(hwloc_obj_t pci, const facts *f)
{
    const char *model = f->model;

    if (model == NULL && pci != NULL) {
        model = hwloc_obj_get_info_by_name(pci, "PCIDevice");
    }
    if (model == NULL && pci != NULL && pci->name != NULL) {
        model = pci->name;
    }
    return model != NULL ? model : "";
}

static tsr_status read_device(hwloc_topology_t h, hwloc_obj_t object, tsri_topo *topo, lists *room,
                              tsri_topo_device *out)
{
    *out = (tsri_topo_device){.numa = -1, .package = -1};
    if (object->type == HWLOC_OBJ_PCI_DEVICE) {
        const struct hwloc_pcidev_attr_s *a = &object->attr->pcidev;

        (void)snprintf(out->busid, sizeof(out->busid), "%04x:%02x:%02x.%01x",
                       (unsigned)a->domain & 0xffff, (unsigned)a->bus, (unsigned)a->dev & 0x1f,
                       (unsigned)a->func & 7);
        out->pci_gb_s = a->linkspeed > 0.0F && a->linkspeed < 1e6F ? (double)a->linkspeed : 0.0;
        TSR_TRY(read_path(object, topo, &room->bridges, &out->path));
    }
    tsri_topo_locate(h, topo, hwloc_get_non_io_ancestor_obj(h, object), &out->numa, &out->package);
    return TSR_OK;
}

static tsr_status add_gpu(hwloc_topology_t h, hwloc_obj_t object, const facts *f, tsri_topo *topo,
                          lists *room)
{
    tsri_topo_gpu gpu = {.nvml = f->nvml,
                         .memory_bytes = f->memory_bytes,
                         .opencl = f->opencl,
                         .device = f->cuda >= 0   ? f->cuda
                                   : f->rsmi >= 0 ? f->rsmi
                                                  : f->levelzero};
    hwloc_obj_t pci = object->type == HWLOC_OBJ_PCI_DEVICE ? object : NULL;

    gpu.vendor = vendor_of(pci, f);
    gpu.opencl_alone = f->opencl && !has_library(f) && (pci == NULL || !is_gpu_class(pci));
    if (topo->gpu_count == TSRI_TOPO_MAX_GPUS) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "the machine has more than %d GPUs",
                         TSRI_TOPO_MAX_GPUS);
    }
    TSR_TRY(read_device(h, object, topo, room, &gpu.at));
    tsri_topo_take_name(model_of(pci, f), gpu.at.name, sizeof(gpu.at.name));
    TSR_TRY(tsri_grow(&topo->gpus, &room->gpus, topo->gpu_count + 1, sizeof(gpu)));
    topo->gpus[topo->gpu_count++] = gpu;
    return TSR_OK;
}

static tsr_status add_nic(hwloc_topology_t h, hwloc_obj_t object, const facts *f, tsri_topo *topo,
                          lists *room)
{
    tsri_topo_nic nic = {.kind = f->fabric != NULL      ? TSRI_TOPO_NIC_OPENFABRICS
                                 : f->interface != NULL ? TSRI_TOPO_NIC_NETWORK
                                                        : TSRI_TOPO_NIC_PCI,
                         .gb_s = tsri_topo_card_gb_s(object->attr->pcidev.vendor_id,
                                                     object->attr->pcidev.device_id)};

    TSR_TRY(read_device(h, object, topo, room, &nic.at));
    tsri_topo_take_name(f->fabric != NULL      ? f->fabric
                        : f->interface != NULL ? f->interface
                                               : model_of(object, f),
                        nic.at.name, sizeof(nic.at.name));
    TSR_TRY(tsri_grow(&topo->nics, &room->nics, topo->nic_count + 1, sizeof(nic)));
    topo->nics[topo->nic_count++] = nic;
    return TSR_OK;
}

/* Does an OS device of a family stand on no PCI device, nor on another of itself? */
static bool stands_alone(hwloc_obj_t o, const char *family)
{
    return o->name != NULL && number_after(o->name, family) >= 0 &&
           o->parent->type != HWLOC_OBJ_PCI_DEVICE && o->parent->type != HWLOC_OBJ_OS_DEVICE;
}

static tsr_status add_family(hwloc_topology_t h, const char *family, tsri_topo *topo, lists *room)
{
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(h, o)) != NULL;) {
        facts f = no_facts();

        if (!stands_alone(o, family)) {
            continue;
        }
        take_fact(o, &f);
        if (f.opencl || has_library(&f)) {
            TSR_TRY(add_gpu(h, o, &f, topo, room));
        }
    }
    return TSR_OK;
}

/* PCI is hidden, as in some containers. CUDA and NVML then cannot be matched with each other, so
 * the first family that is there counts; OpenCL names the GPUs of all makers once more, so it
 * counts where nothing else does. */
static tsr_status add_without_pci(hwloc_topology_t h, tsri_topo *topo, lists *room)
{
    static const char *const families[] = {"cuda", "rsmi", "ze", "nvml"};
    const int before = topo->gpu_count;

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && topo->gpu_count == before;
         i++) {
        TSR_TRY(add_family(h, families[i], topo, room));
    }
    if (topo->gpu_count == 0) {
        TSR_TRY(add_family(h, "opencl", topo, room));
    }
    return TSR_OK;
}

/* PCI order: domain, bus, device; what has no address stays in the order of its numbers. */
static int compare_devices(const tsri_topo_device *a, const tsri_topo_device *b)
{
    return strcmp(a->busid, b->busid);
}

static int compare_gpus(const void *a, const void *b)
{
    const tsri_topo_gpu *x = a;
    const tsri_topo_gpu *y = b;
    const int order = compare_devices(&x->at, &y->at);

    if (order != 0) {
        return order;
    }
    return x->device != y->device ? x->device - y->device : x->nvml - y->nvml;
}

static int compare_nics(const void *a, const void *b)
{
    const tsri_topo_nic *x = a;
    const tsri_topo_nic *y = b;
    const int order = compare_devices(&x->at, &y->at);

    return order != 0 ? order : strcmp(x->at.name, y->at.name);
}

tsr_status tsri_topo_read_devices(hwloc_topology_t h, tsri_topo *topo)
{
    lists room = {0};

    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(h, pci)) != NULL;) {
        const facts f = facts_below(pci);

        if (is_gpu(pci, &f)) {
            TSR_TRY(add_gpu(h, pci, &f, topo, &room));
        } else if (is_nic(pci, &f)) {
            TSR_TRY(add_nic(h, pci, &f, topo, &room));
        }
    }
    TSR_TRY(add_without_pci(h, topo, &room));
    if (topo->gpu_count > 0) {
        qsort(topo->gpus, (size_t)topo->gpu_count, sizeof(*topo->gpus), compare_gpus);
    }
    if (topo->nic_count > 0) {
        qsort(topo->nics, (size_t)topo->nic_count, sizeof(*topo->nics), compare_nics);
    }
    return TSR_OK;
}

int tsri_topo_gpu_at(const tsri_topo *topo, unsigned domain, unsigned bus, unsigned dev)
{
    char busid[TSRI_TOPO_BUSID_BYTES + 8];

    (void)snprintf(busid, sizeof(busid), "%04x:%02x:%02x.", domain & 0xffff, bus & 0xff,
                   dev & 0x1f);
    for (int i = 0; i < topo->gpu_count; i++) {
        if (strncmp(topo->gpus[i].at.busid, busid, strlen(busid)) == 0) {
            return i;
        }
    }
    return -1;
}
