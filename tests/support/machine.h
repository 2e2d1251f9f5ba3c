/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file machine.h
 * hwloc XML (format 2.0) of a machine described in a few lines.
 *
 * A line is a word and its values; '#' begins a comment. Lines below a package, numa or host line
 * belong to it:
 *
 *     package                       a package; NUMA nodes before any stand on the machine
 *     numa CORES THREADS GIB        a NUMA node with its cores
 *     host BUS                      a host bridge, such as 0000:16; on the NUMA node before it
 *     host BUS machine              the same, but the system does not say on which node
 *     host BUS package              the same, but it says the package alone
 *     switch BUSID                  a PCI switch below the host bridge; ends with the next host
 *     gpu BUSID [cuda=N] [nvml=N] [opencl=N] [ze=N] [gib=N] [model=NAME]
 *     amd BUSID [rsmi=N]            an accelerator of AMD
 *     nic BUSID NAME [net] [gb_s=X] an OpenFabrics device; net: a network interface
 *                                   any of these: [id=VENDOR:DEVICE] [class=NUMBER], in hexadecimal
 *     nvswitch BUSID
 *     nopci NAME                    an OS device such as cuda0 without a PCI device
 *     link A B GB_S                 between two GPUs, by their place among the gpu and amd lines
 *     ports GB_S                    from every GPU to each NVSwitch
 *     allowed A-B[,C-D]             threads that may be used; default: all
 */
#pragma once

#include "tessera/status.h"

#include <stddef.h>

/** Write the machine of text as XML into *out (free with tsri_free). name stands for the file. */
tsr_status tsr_machine_xml(const char *text, const char *name, char **out);
