/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A stand-in for libnvidia-ml.so.1: three GPUs at 0000:12, 13 and 14, numbered against PCI order.
 *
 * TSR_FAKE_NVML=direct: two links of Ampere between neighbours; switch: nine links of Blackwell
 * from each GPU to a switch; old: no links; broken: nothing can be opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    GPUS = 3
};

typedef struct pci_info {
    char busid_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char busid[32];
} pci_info;

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

/* NOLINTBEGIN(readability-identifier-naming): the names are the library's */
NVML int nvmlInit_v2(void);
NVML int nvmlShutdown(void);
NVML int nvmlDeviceGetCount_v2(unsigned *count);
NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
NVML int nvmlDeviceGetPciInfo_v3(void *device, pci_info *pci);
NVML int nvmlDeviceGetName(void *device, char *name, unsigned bytes);
NVML int nvmlDeviceGetMemoryInfo(void *device, memory_info *memory);
NVML int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *state);
NVML int nvmlDeviceGetArchitecture(void *device, unsigned *architecture);
NVML int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *pci);
NVML int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type);

static int buses[GPUS] = {0x14, 0x13, 0x12}; /* by number */

static int is(const char *mode)
{
    const char *asked = getenv("TSR_FAKE_NVML");

    return asked != NULL && strcmp(asked, mode) == 0;
}

static int bus_of(const void *device)
{
    return *(const int *)device;
}

int nvmlInit_v2(void)
{
    return is("broken") ? 9 : SUCCESS;
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &buses[index];
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_info *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = (unsigned)bus_of(device);
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
    (void)device;
    (void)snprintf(name, bytes, "Test GPU");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_info *memory)
{
    (void)device;
    memory->total = 80ULL << 30;
    return SUCCESS;
}

/* direct: links 0 and 1 go to the bus before, 2 and 3 to the one after. */
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *state)
{
    const int bus = bus_of(device);

    if (is("old") || (is("direct") && link >= 4) || link >= 9) {
        return NOT_SUPPORTED;
    }
    *state = is("switch") || (link < 2 ? bus > 0x12 : bus < 0x14);
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(void *device, unsigned *architecture)
{
    (void)device;
    *architecture = is("switch") ? 10 : 7; /* Blackwell, Ampere */
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *pci)
{
    memset(pci, 0, sizeof(*pci));
    pci->bus = is("switch") ? 0xf0 : (unsigned)(bus_of(device) + (link < 2 ? -1 : 1));
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type)
{
    (void)device;
    (void)link;
    *type = is("switch") ? 2 : 0;
    return SUCCESS;
}
/* NOLINTEND(readability-identifier-naming) */
