/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What a network card carries, which is often less than its PCI link: of this machine the system
 * says it, of a record the card's PCI numbers. */
#include "topo_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* Gbit/s of a port of the fastest card that has these numbers. */
static const struct {
    unsigned vendor, device;
    double gbit_s;
} cards[] = {
    {0x15b3, 0x1003, 56.0},  /* ConnectX-3 */
    {0x15b3, 0x1007, 56.0},  /* ConnectX-3 Pro */
    {0x15b3, 0x1011, 56.0},  /* Connect-IB */
    {0x15b3, 0x1013, 100.0}, /* ConnectX-4 */
    {0x15b3, 0x1015, 50.0},  /* ConnectX-4 Lx */
    {0x15b3, 0x1017, 100.0}, /* ConnectX-5 */
    {0x15b3, 0x1019, 100.0}, /* ConnectX-5 Ex */
    {0x15b3, 0x101b, 200.0}, /* ConnectX-6 */
    {0x15b3, 0x101d, 200.0}, /* ConnectX-6 Dx */
    {0x15b3, 0x101f, 50.0},  /* ConnectX-6 Lx */
    {0x15b3, 0x1021, 400.0}, /* ConnectX-7 */
    {0x15b3, 0xa2d6, 200.0}, /* BlueField-2 */
    {0x15b3, 0xa2dc, 400.0}, /* BlueField-3 */
    {0x8086, 0x24f0, 100.0}, /* Omni-Path */
    {0x17db, 0x0501, 200.0}, /* Slingshot 11 */
};

double tsri_topo_card_gb_s(unsigned vendor, unsigned device)
{
    for (size_t i = 0; i < sizeof(cards) / sizeof(cards[0]); i++) {
        if (cards[i].vendor == vendor && cards[i].device == device) {
            return cards[i].gbit_s / 8.0;
        }
    }
    return 0.0;
}

/* The number that a file of one line begins with; 0: none. */
static double number_in(const char *path)
{
    FILE *file = fopen(path, "re");
    char line[64] = "";

    if (file == NULL) {
        return 0.0;
    }
    if (fgets(line, sizeof(line), file) == NULL) {
        line[0] = '\0';
    }
    (void)fclose(file);
    return strtod(line, NULL);
}

void tsri_topo_ask_rates(const char *sysfs, tsri_topo *topo)
{
    for (int i = 0; i < topo->nic_count; i++) {
        tsri_topo_nic *nic = &topo->nics[i];
        char path[256];
        double gbit_s = 0.0;

        if (nic->kind == TSRI_TOPO_NIC_OPENFABRICS) { /* "100 Gb/sec (4X EDR)" */
            (void)snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/1/rate", sysfs,
                           nic->at.name);
            gbit_s = number_in(path);
        } else if (nic->kind == TSRI_TOPO_NIC_NETWORK) { /* Mbit/s; -1 where nobody knows */
            (void)snprintf(path, sizeof(path), "%s/class/net/%s/speed", sysfs, nic->at.name);
            gbit_s = number_in(path) / 1000.0;
        }
        nic->gb_s = gbit_s > 0.0 && gbit_s < 1e6 ? gbit_s / 8.0 : nic->gb_s;
    }
}
