/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Questions to a description, and comparing those of a job's hosts. */
#include "topo/topo.h"

#include "base/base.h"

#include <string.h>

void tsri_topo_free(tsri_topo **pointer)
{
    tsri_topo *topo = *pointer;

    *pointer = NULL;
    if (topo == NULL) {
        return;
    }
    tsri_free(&topo->numas);
    tsri_free(&topo->cores);
    tsri_free(&topo->pus);
    tsri_free(&topo->bridges);
    tsri_free(&topo->gpus);
    tsri_free(&topo->nics);
    tsri_free(&topo->links);
    tsri_free(&topo);
}

int tsri_topo_visible(const tsri_topo *topo)
{
    int count = 0;

    for (int i = 0; i < topo->gpu_count; i++) {
        count += topo->gpus[i].visible;
    }
    return count;
}

int tsri_topo_maker(const tsri_topo *topo)
{
    for (int i = 0; i < topo->gpu_count; i++) {
        if (topo->gpus[i].visible) {
            return topo->gpus[i].vendor;
        }
    }
    return 0;
}

double tsri_topo_link(const tsri_topo *topo, int a, int b)
{
    return topo->links != NULL ? topo->links[a * topo->gpu_count + b] : 0.0;
}

int tsri_topo_near(const tsri_topo_device *a, const tsri_topo_device *b)
{
    const int most = a->path.count < b->path.count ? a->path.count : b->path.count;
    int common = 0;

    while (common < most && a->path.bridge[common] == b->path.bridge[common]) {
        common++;
    }
    if (common > 0) {
        return TSRI_TOPO_SAME_ROOT + common - 1;
    }
    if (a->numa >= 0 && a->numa == b->numa) {
        return TSRI_TOPO_SAME_NUMA;
    }
    return a->package >= 0 && a->package == b->package ? TSRI_TOPO_SAME_PACKAGE : TSRI_TOPO_APART;
}

const char *tsri_topo_near_text(int near)
{
    static const char *const texts[] = {"another package, or unknown", "the same package",
                                        "the same NUMA node", "the same PCI host bridge",
                                        "the same PCI switch"};

    return texts[near < TSRI_TOPO_SAME_SWITCH ? near : TSRI_TOPO_SAME_SWITCH];
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

const char *tsri_topo_shape(const tsri_topo *topo, char *text, size_t size)
{
    const int visible = tsri_topo_visible(topo);
    const char *model = "";
    bool first = true;
    char gpus[TSRI_TOPO_NAME_BYTES + 32] = "no GPU";

    for (int i = 0; i < topo->gpu_count; i++) {
        if (!topo->gpus[i].visible) {
            continue;
        }
        if (!first && strcmp(model, topo->gpus[i].at.name) != 0) {
            model = "several models";
            break;
        }
        model = topo->gpus[i].at.name;
        first = false;
    }
    if (visible > 0) {
        (void)snprintf(gpus, sizeof(gpus), "%d GPU%s%s%s%s", visible, plural(visible),
                       model[0] != '\0' ? " (" : "", model, model[0] != '\0' ? ")" : "");
    }
    (void)snprintf(text, size, "%d package%s, %d NUMA node%s, %d core%s, %s, %d NIC%s",
                   topo->package_count, plural(topo->package_count), topo->numa_count,
                   plural(topo->numa_count), topo->core_count, plural(topo->core_count), gpus,
                   topo->nic_count, plural(topo->nic_count));
    return text;
}

tsr_status tsri_topo_check_hosts(const char *const *names, const int *ranks,
                                 const tsri_topo *const *topos, int count)
{
    char found[256];
    char expected[256];

    for (int i = 1; i < count; i++) {
        if (ranks[i] != ranks[0]) {
            return TSR_RAISE(TSR_ERR_INVALID, "host %s has %d rank%s, expected %d as host %s",
                             names[i], ranks[i], plural(ranks[i]), ranks[0], names[0]);
        }
        (void)tsri_topo_shape(topos[i], found, sizeof(found));
        (void)tsri_topo_shape(topos[0], expected, sizeof(expected));
        if (strcmp(found, expected) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "host %s has %s; expected %s as host %s", names[i],
                             found, expected, names[0]);
        }
    }
    return TSR_OK;
}
