/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file topo.h
 * One machine as Tessera sees it: cores, NUMA nodes, GPUs, NICs, and what lies between them.
 *
 * A description is plain data, read from this machine, from an hwloc XML file or from a synthetic
 * string, and passed between hosts as text. What follows from it is in topo/mapping.h. Every
 * "index" is one into an array of the same description; -1 stands for unknown. What the process may
 * not use (other cgroups' cores) is counted but not listed.
 *
 * Threads: a description does not change once read; any number of threads may look at it.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TSRI_TOPO_NAME_BYTES = 64,
    TSRI_TOPO_BUSID_BYTES = 16, /* "0000:3b:00.0" */
    TSRI_TOPO_MAX_PATH = 12,    /* bridges above one device */
    TSRI_TOPO_MAX_GPUS = 256    /* more are refused */
};

typedef struct tsri_topo_numa {
    int os_index; /* the system's number */
    int package;  /* index; -1: above or beside packages */
    int64_t memory_bytes;
    int core_count; /* allowed cores */
} tsri_topo_numa;

typedef struct tsri_topo_core {
    int package, numa;      /* indices */
    int pu_first, pu_count; /* in pus: hardware threads that may be used */
} tsri_topo_core;

enum {
    TSRI_TOPO_NVIDIA = 0x10de,
    TSRI_TOPO_AMD = 0x1002,
    TSRI_TOPO_INTEL = 0x8086
};

typedef struct tsri_topo_bridge {
    char busid[TSRI_TOPO_BUSID_BYTES]; /* of the bridge itself; a host bridge: its first bus */
    bool host;                         /* from the processor to PCI */
} tsri_topo_bridge;

/** Bridges from the host bridge down to a device; indices. Empty: the record has none. */
typedef struct tsri_topo_path {
    int count;
    int bridge[TSRI_TOPO_MAX_PATH];
} tsri_topo_path;

/** What GPUs and NICs have in common. */
typedef struct tsri_topo_device {
    char busid[TSRI_TOPO_BUSID_BYTES]; /* "": no PCI address is known */
    char name[TSRI_TOPO_NAME_BYTES];   /* model of a GPU, interface of a NIC; may be "" */
    int numa, package;                 /* indices */
    tsri_topo_path path;
    double pci_gb_s; /* GB/s of its PCI link; 0: unknown */
} tsri_topo_device;

typedef struct tsri_topo_gpu {
    tsri_topo_device at;
    int device;        /* number to open it by (CUDA's, HIP's); -1: unknown */
    int nvml;          /* NVIDIA's management library's number; -1: unknown */
    int vendor;        /* PCI's number of its maker; 0: unknown */
    bool opencl;       /* OpenCL knows it */
    bool opencl_alone; /* and neither its maker's library nor its PCI class says that it computes */
    int64_t memory_bytes; /* 0: unknown */
    bool visible;         /* false: on the bus, but not for the ranks of this process */
} tsri_topo_gpu;

typedef enum tsri_topo_nic_kind {
    TSRI_TOPO_NIC_PCI = 0, /* a network controller without a known interface */
    TSRI_TOPO_NIC_NETWORK,
    TSRI_TOPO_NIC_OPENFABRICS
} tsri_topo_nic_kind;

typedef struct tsri_topo_nic {
    tsri_topo_device at;
    tsri_topo_nic_kind kind;
    double gb_s; /* GB/s each way of the card itself; 0: unknown */
} tsri_topo_nic;

typedef struct tsri_topo {
    char host[TSRI_TOPO_NAME_BYTES];      /* may be "" */
    char source[TSRI_TOPO_NAME_BYTES];    /* "this machine", "XML", "synthetic" */
    char link_kind[TSRI_TOPO_NAME_BYTES]; /* "NVLink"; "" without links */
    tsri_topo_numa *numas;                /* [numa_count] and so on */
    tsri_topo_core *cores;                /* by package, then NUMA node */
    int *pus;                             /* the system's numbers */
    tsri_topo_bridge *bridges;
    tsri_topo_gpu *gpus; /* in PCI order */
    tsri_topo_nic *nics; /* in PCI order */
    double *links;       /* [gpu_count, gpu_count] GB/s; 0: none; NULL: unknown */
    int numa_count, core_count, pu_count, bridge_count, gpu_count, nic_count;
    int package_count;
    int pu_total, core_total; /* of the whole machine */
    bool link_switched;       /* every GPU reaches the others through switches */
} tsri_topo;

typedef enum tsri_topo_source {
    TSRI_TOPO_LIVE = 0,   /* text is not used */
    TSRI_TOPO_LIVE_CORES, /* the same without devices, which is faster */
    TSRI_TOPO_XML,        /* text is a path */
    TSRI_TOPO_XML_TEXT,   /* text is the XML itself */
    TSRI_TOPO_SYNTHETIC,  /* text is a string such as "package:2 core:4 pu:2" */
} tsri_topo_source;

/**
 * Local. Read a machine. Free with tsri_topo_free.
 *
 * TSR_ERR_IO: no such file; TSR_ERR_FORMAT: not a topology, or of hwloc 3; TSR_ERR_INVALID: a wrong
 * synthetic string; TSR_ERR_UNSUPPORTED: more GPUs than TSRI_TOPO_MAX_GPUS.
 */
tsr_status tsri_topo_read(tsri_topo_source source, const char *text, tsri_topo **out);
void tsri_topo_free(tsri_topo **pointer);

/** Local. The description as one line of JSON, for other hosts; free with tsri_free. */
tsr_status tsri_topo_pack(const tsri_topo *topo, char **out);
/** Local. Read it again; name stands for the sender in messages. TSR_ERR_FORMAT. */
tsr_status tsri_topo_unpack(const char *text, size_t bytes, const char *name, tsri_topo **out);

/** GPUs that ranks can have: those that this process can open, of one maker. */
int tsri_topo_visible(const tsri_topo *topo);
/** Their maker; 0: unknown, or there are none. */
int tsri_topo_maker(const tsri_topo *topo);

/** GB/s of the link between two GPUs; 0: none, or unknown. */
double tsri_topo_link(const tsri_topo *topo, int a, int b);

/** How near two devices are: the more the nearer. */
typedef enum tsri_topo_nearness {
    TSRI_TOPO_APART = 0,    /* through the processors' link, or unknown */
    TSRI_TOPO_SAME_PACKAGE, /* one package, several NUMA nodes */
    TSRI_TOPO_SAME_NUMA,
    TSRI_TOPO_SAME_ROOT,  /* one host bridge */
    TSRI_TOPO_SAME_SWITCH /* one PCI bridge; plus one for each further one in common */
} tsri_topo_nearness;
int tsri_topo_near(const tsri_topo_device *a, const tsri_topo_device *b);
/** "the same PCI switch", ... */
const char *tsri_topo_near_text(int near);

/** "2 packages, 2 NUMA nodes, 48 cores, 8 GPUs (NVIDIA H200), 8 NICs" into text; returns text.
 *  Hosts of equal shape have equal texts. */
const char *tsri_topo_shape(const tsri_topo *topo, char *text, size_t size);

/**
 * Local. Are the hosts of a job alike? names, ranks and topos have count entries, in the launcher's
 * order. TSR_ERR_INVALID names the first host that differs from the first one, what it has and what
 * was expected.
 */
tsr_status tsri_topo_check_hosts(const char *const *names, const int *ranks,
                                 const tsri_topo *const *topos, int count);
