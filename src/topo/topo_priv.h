/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file topo_priv.h
 * Between the files that read a machine with hwloc.
 */
#pragma once

#include <hwloc.h>

#include "topo/topo.h"

/** GPUs, NICs and the bridges above them. */
tsr_status tsri_topo_read_devices(hwloc_topology_t h, tsri_topo *topo);
/** Links between the GPUs, of the matrices that the record has. */
tsr_status tsri_topo_read_links(hwloc_topology_t h, tsri_topo *topo);
/** Which GPUs can ranks have? Of one maker, those with a number of the family that knows most. */
void tsri_topo_find_hidden(tsri_topo *topo);
/** GB/s each way of a network card at most, by its PCI numbers; 0: unknown. */
double tsri_topo_card_gb_s(unsigned vendor, unsigned device);
/** What the system says of this machine's NICs; sysfs is "/sys". */
void tsri_topo_ask_rates(const char *sysfs, tsri_topo *topo);
/** Index of the GPU at a PCI address (of any form of domain), or -1. */
int tsri_topo_gpu_at(const tsri_topo *topo, unsigned domain, unsigned bus, unsigned dev);
/** What NVIDIA's management library knows more about this machine; nothing where it is absent. */
tsr_status tsri_topo_ask_nvml(tsri_topo *topo);
/** NUMA node and package of a normal object: the only one below or above it; else -1. */
void tsri_topo_locate(hwloc_topology_t h, const tsri_topo *topo, hwloc_obj_t object, int *numa_out,
                      int *package_out);
/** Room for the matrix of links, zeroed, if there is none yet. */
tsr_status tsri_topo_need_links(tsri_topo *topo, const char *kind);

/** A name from a record, with what is not printable ASCII replaced: it goes into JSON and SVG. */
void tsri_topo_take_name(const char *text, char *out, size_t size);

/** Load XML in this process; hwloc may end it, if the XML is damaged. */
tsr_status tsri_topo_load_xml(const char *name, const char *xml, tsri_topo **out);
/** Load XML in a process apart. TSR_ERR_FORMAT if it cannot be. */
tsr_status tsri_topo_read_apart(const char *name, const char *xml, tsri_topo **out);
