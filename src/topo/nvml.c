/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What NVIDIA's management library tells of this machine: which GPUs this process may see, their
 * models and memory, and their links.
 *
 * The library comes with the driver, so it is opened by name and may be absent; a call that it
 * lacks or that fails leaves its fact unknown. Declarations are ours: nvml.h is not everywhere. */
#include "topo_priv.h"

#include "base/base.h"

#include <dlfcn.h>

typedef struct nvml_pci {
    char busid_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char busid[32];
} nvml_pci;

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef void *nvml_device; /* the library's handle */

enum {
    MAX_LINKS = 18,
    LINK_ENABLED = 1,
    REMOTE_SWITCH = 2,
    VOLTA = 5, /* architectures */
    BLACKWELL = 10
};

/* Results are 0 for success. */
typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*handle)(unsigned index, nvml_device *device);
    int (*pci)(nvml_device device, nvml_pci *pci);
    int (*name)(nvml_device device, char *name, unsigned bytes);
    int (*memory)(nvml_device device, nvml_memory *memory);
    int (*architecture)(nvml_device device, unsigned *architecture);
    int (*link_state)(nvml_device device, unsigned link, int *state);
    int (*link_remote)(nvml_device device, unsigned link, nvml_pci *pci);
    int (*link_remote_type)(nvml_device device, unsigned link, int *type);
} nvml;

/* POSIX gives functions as object pointers; ISO C has no cast between the two. */
static bool find_symbol(const nvml *n, const char *name, void *function_out)
{
    void *symbol = dlsym(n->library, name);

    *(void **)function_out = symbol;
    return symbol != NULL;
}

static bool open_library(nvml *n)
{
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL) {
        return false;
    }
    /* Without links the rest is of use. */
    bool links = find_symbol(n, "nvmlDeviceGetNvLinkState", &n->link_state);
    links = find_symbol(n, "nvmlDeviceGetNvLinkRemotePciInfo_v2", &n->link_remote) && links;
    if (!links) {
        n->link_state = NULL;
    }
    (void)find_symbol(n, "nvmlDeviceGetNvLinkRemoteDeviceType", &n->link_remote_type);
    (void)find_symbol(n, "nvmlDeviceGetArchitecture", &n->architecture);
    (void)find_symbol(n, "nvmlDeviceGetName", &n->name);
    (void)find_symbol(n, "nvmlDeviceGetMemoryInfo", &n->memory);
    return find_symbol(n, "nvmlInit_v2", &n->init) &&
           find_symbol(n, "nvmlShutdown", &n->shutdown) &&
           find_symbol(n, "nvmlDeviceGetCount_v2", &n->count) &&
           find_symbol(n, "nvmlDeviceGetHandleByIndex_v2", &n->handle) &&
           find_symbol(n, "nvmlDeviceGetPciInfo_v3", &n->pci) && n->init() == 0;
}

/* Of one link in one direction. By architecture: drivers disagree on the numbers of link versions.
 */
static double link_gb_s(const nvml *n, nvml_device device)
{
    unsigned architecture = VOLTA;

    if (n->architecture == NULL || n->architecture(device, &architecture) != 0) {
        architecture = VOLTA;
    }
    return architecture < VOLTA ? 20.0 : architecture < BLACKWELL ? 25.0 : 50.0;
}

/* One GPU's links: those to another GPU go into the matrix, those to switches are summed up. */
static void read_gpu_links(const nvml *n, nvml_device device, int gpu, tsri_topo *topo,
                           double *to_switch)
{
    const double gb_s = link_gb_s(n, device);

    for (unsigned link = 0; link < MAX_LINKS; link++) {
        nvml_pci remote = {.bus = 0};
        int state = 0;
        int type = -1;

        if (n->link_state(device, link, &state) != 0 || state != LINK_ENABLED) {
            continue;
        }
        const int peer = n->link_remote(device, link, &remote) == 0
                             ? tsri_topo_gpu_at(topo, remote.domain, remote.bus, remote.device)
                             : -1;

        if (peer >= 0 && peer != gpu) {
            topo->links[gpu * topo->gpu_count + peer] += gb_s;
        } else if (n->link_remote_type != NULL && n->link_remote_type(device, link, &type) == 0 &&
                   type == REMOTE_SWITCH) {
            to_switch[gpu] += gb_s;
        }
    }
}

static void join_switched(tsri_topo *topo, const double *to_switch)
{
    for (int a = 0; a < topo->gpu_count; a++) {
        for (int b = 0; b < topo->gpu_count; b++) {
            const double least = to_switch[a] < to_switch[b] ? to_switch[a] : to_switch[b];

            if (a != b && least > 0.0) {
                topo->links[a * topo->gpu_count + b] = least;
                topo->link_switched = true;
            }
        }
    }
}

static void read_gpu(const nvml *n, nvml_device device, unsigned number, tsri_topo_gpu *gpu)
{
    nvml_memory memory = {0};
    char name[TSRI_TOPO_NAME_BYTES + 1] = "";

    gpu->nvml = (int)number;
    if (n->name != NULL && n->name(device, name, TSRI_TOPO_NAME_BYTES) == 0) {
        tsri_topo_take_name(name, gpu->at.name, sizeof(gpu->at.name));
    }
    if (n->memory != NULL && n->memory(device, &memory) == 0 && memory.total < INT64_MAX) {
        gpu->memory_bytes = (int64_t)memory.total;
    }
}

static tsr_status read_gpus(const nvml *n, tsri_topo *topo)
{
    const bool wants_links = topo->links == NULL && n->link_state != NULL;
    double to_switch[TSRI_TOPO_MAX_GPUS] = {0.0};
    unsigned count = 0;

    if (n->count(&count) != 0 || count == 0) {
        return TSR_OK;
    }
    if (wants_links) {
        TSR_TRY(tsri_topo_need_links(topo, "NVLink"));
    }
    for (unsigned i = 0; i < count; i++) {
        nvml_device device = NULL;
        nvml_pci pci = {.bus = 0};

        if (n->handle(i, &device) != 0 || n->pci(device, &pci) != 0) {
            continue;
        }
        const int gpu = tsri_topo_gpu_at(topo, pci.domain, pci.bus, pci.device);

        if (gpu >= 0) {
            read_gpu(n, device, i, &topo->gpus[gpu]);
        }
        if (gpu >= 0 && wants_links) {
            read_gpu_links(n, device, gpu, topo, to_switch);
        }
    }
    if (wants_links) {
        join_switched(topo, to_switch);
    }
    return TSR_OK;
}

tsr_status tsri_topo_ask_nvml(tsri_topo *topo)
{
    nvml n = {0};
    tsr_status status = TSR_OK;

    if (topo->gpu_count == 0) {
        return TSR_OK;
    }
    if (open_library(&n)) {
        status = read_gpus(&n, topo);
        (void)n.shutdown();
    }
    if (n.library != NULL) {
        (void)dlclose(n.library);
    }
    TSR_TRY(status);
    return TSR_OK;
}
