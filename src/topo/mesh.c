/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Axes of a mesh on machines: where their groups lie and what the traffic of each goes over. */
#include "topo/mesh.h"

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct view {
    const tsri_topo *topo;
    const tsri_topo_mapping *mapping;
    const tsr_mesh *mesh;
    int local, size;
    int *rank;   /* [size] of the group that is looked at */
    int *leaves; /* [size] does the ring go to another host behind this rank? */
    int *enters; /* [size] and does it come from one before it? */
    int *load;   /* [nic_count] */
} view;

/* The worst hop of the rings that an axis's groups make in their own order. */
typedef struct hops {
    int hosts; /* the most that a group spans */
    int near;
    bool linked;  /* every hop inside a host has a link */
    bool links;   /* some hop has one */
    bool unknown; /* of some hop inside a host the bandwidth is unknown */
    bool islands; /* some hop goes to another island */
    double gb_s;  /* of hops inside a host */
} hops;

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* From one rank to another of its host. */
static void see_inside(const view *v, int a, int b, hops *seen)
{
    const tsri_topo_place *p = &v->mapping->places[a % v->local];
    const tsri_topo_place *q = &v->mapping->places[b % v->local];
    double gb_s = 0.0;

    seen->islands = seen->islands || p->island != q->island;
    if (p->gpu < 0) {
        const bool home = v->topo->numa_count < 2 || (p->numa >= 0 && p->numa == q->numa);

        seen->near = home && seen->near > TSRI_TOPO_SAME_NUMA ? TSRI_TOPO_SAME_NUMA
                     : home                                   ? seen->near
                                                              : TSRI_TOPO_APART;
        seen->linked = false;
        seen->unknown = true;
        return;
    }
    const tsri_topo_device *x = &v->topo->gpus[p->gpu].at;
    const tsri_topo_device *y = &v->topo->gpus[q->gpu].at;
    const int near = tsri_topo_near(x, y);

    gb_s = tsri_topo_link(v->topo, p->gpu, q->gpu);
    seen->linked = seen->linked && gb_s > 0.0;
    seen->links = seen->links || gb_s > 0.0;
    gb_s = gb_s > 0.0 ? gb_s : least(x->pci_gb_s, y->pci_gb_s);
    seen->near = near < seen->near ? near : seen->near;
    seen->unknown = seen->unknown || gb_s <= 0.0;
    seen->gb_s = gb_s > 0.0 ? least(gb_s, seen->gb_s) : seen->gb_s;
}

/* The ring of one group. */
static void see_group(const view *v, int count, hops *seen)
{
    int hosts = 1;

    for (int i = 0; i < count && count > 1; i++) {
        const int from = v->rank[i];
        const int to = v->rank[(i + 1) % count];
        const bool crosses = from / v->local != to / v->local;

        v->leaves[from] = crosses;
        v->enters[to] = crosses;
        hosts += crosses && i + 1 < count; /* ranks ascend along an axis */
        if (!crosses) {
            see_inside(v, from, to, seen);
        }
    }
    seen->hosts = hosts > seen->hosts ? hosts : seen->hosts;
}

/* ---- the network ---- */

/* One port may be a function of a card whose PCI link another one shares. */
static bool same_card(const tsri_topo_device *a, const tsri_topo_device *b)
{
    const char *dot = strrchr(a->busid, '.');
    const size_t length = dot != NULL ? (size_t)(dot - a->busid) + 1 : 0;

    return a == b || (length > 0 && strncmp(a->busid, b->busid, length) == 0);
}

/* What one of the ranks that load a NIC gets of it; 0: unknown. */
static double share_of(const view *v, int nic)
{
    const tsri_topo_nic *n = &v->topo->nics[nic];
    int on_card = 0;

    for (int i = 0; i < v->topo->nic_count; i++) {
        on_card += same_card(&n->at, &v->topo->nics[i].at) ? v->load[i] : 0;
    }
    const double port = n->gb_s / v->load[nic];
    const double card = n->at.pci_gb_s / on_card;

    return port <= 0.0 ? card : card <= 0.0 ? port : least(port, card);
}

/* The least that a rank gets, of those of a host which cross; *shared_out: the most that share. */
static double least_share(const view *v, int host, const int *crosses, int *shared_out)
{
    double result = 1e30;

    memset(v->load, 0, (size_t)v->topo->nic_count * sizeof(*v->load));
    for (int i = 0; i < v->local; i++) {
        const tsri_topo_place *p = &v->mapping->places[i];

        for (int k = 0; k < p->nic_count; k++) {
            v->load[v->mapping->nics[p->nic_first + k]] += crosses[host * v->local + i];
        }
    }
    for (int i = 0; i < v->local; i++) {
        const tsri_topo_place *p = &v->mapping->places[i];
        double sum = 0.0;

        if (!crosses[host * v->local + i]) {
            continue;
        }
        for (int k = 0; k < p->nic_count; k++) {
            const int nic = v->mapping->nics[p->nic_first + k];

            sum += share_of(v, nic);
            *shared_out = v->load[nic] > *shared_out ? v->load[nic] : *shared_out;
        }
        /* It also has to come off its GPU. */
        const double gpu = p->gpu >= 0 ? v->topo->gpus[p->gpu].at.pci_gb_s : 0.0;

        result = least(gpu > 0.0 ? least(sum, gpu) : sum, result);
    }
    return result;
}

static int used_nics(const view *v)
{
    int count = 0;

    for (int nic = 0; nic < v->topo->nic_count; nic++) {
        bool used = false;

        for (int i = 0; i < v->local; i++) {
            const tsri_topo_place *p = &v->mapping->places[i];

            for (int k = 0; k < p->nic_count; k++) {
                used = used || v->mapping->nics[p->nic_first + k] == nic;
            }
        }
        count += used;
    }
    return count;
}

/* ---- words ---- */

static void say_network(const view *v, const hops *seen, tsri_topo_axis *axis)
{
    const int nics = used_nics(v);
    double network = 1e30;
    int shared = 0;
    char sharing[48] = "";

    for (int host = 0; host < v->size / v->local; host++) {
        network = least(least_share(v, host, v->leaves, &shared), network);
        network = least(least_share(v, host, v->enters, &shared), network);
    }
    if (nics > 0) {
        (void)snprintf(axis->over, sizeof(axis->over), "network, %d NIC%s a host", nics,
                       nics == 1 ? "" : "s");
    } else {
        (void)snprintf(axis->over, sizeof(axis->over), "network");
    }
    if (shared > 1) {
        (void)snprintf(sharing, sizeof(sharing), ", shared by %d groups", shared);
    }
    axis->gb_s = least(network, seen->gb_s);
    (void)snprintf(axis->reason, sizeof(axis->reason), "groups span %d hosts%s%s", seen->hosts,
                   network <= 0.0         ? ""
                   : seen->gb_s < network ? "; inside a host some hop has less than the NICs"
                                          : "; at most what a rank's NICs carry",
                   network > 0.0 && network <= seen->gb_s ? sharing : "");
}

static void say_inside(const view *v, const hops *seen, tsri_topo_axis *axis)
{
    const bool gpus = v->mapping->places[0].gpu >= 0;

    axis->gb_s = seen->unknown ? 0.0 : seen->gb_s;
    if (!gpus) {
        (void)snprintf(axis->over, sizeof(axis->over), "shared memory, %s",
                       seen->near >= TSRI_TOPO_SAME_NUMA ? "one NUMA node" : "across NUMA nodes");
    } else if (seen->linked) {
        (void)snprintf(axis->over, sizeof(axis->over), "%s%s", v->topo->link_kind,
                       v->topo->link_switched ? " through switches" : "");
    } else if (seen->links) {
        (void)snprintf(axis->over, sizeof(axis->over), "%s between some, else PCI",
                       v->topo->link_kind);
    } else {
        (void)snprintf(axis->over, sizeof(axis->over), "PCI, %s", tsri_topo_near_text(seen->near));
    }
    (void)snprintf(axis->reason, sizeof(axis->reason), "inside a host, %s",
                   seen->islands ? "across islands" : "inside an island");
}

static void say(const view *v, const hops *seen, tsri_topo_axis *axis)
{
    axis->hosts = seen->hosts;
    if (axis->size == 1) {
        (void)snprintf(axis->over, sizeof(axis->over), "nothing");
        (void)snprintf(axis->reason, sizeof(axis->reason), "an axis of one rank has no traffic");
    } else if (seen->hosts > 1) {
        say_network(v, seen, axis);
    } else {
        say_inside(v, seen, axis);
    }
}

/* ---- an axis ---- */

static tsr_status raise_tp(const view *v, const tsri_topo_axis *axis, const hops *seen)
{
    const int divisor = tsri_topo_island_divisor(v->mapping);
    char legal[128];
    char sizes[128];
    size_t used = 0;

    sizes[0] = '\0';
    for (int i = 0; i < v->mapping->island_count && used + 12 < sizeof(sizes); i++) {
        used += (size_t)snprintf(sizes + used, sizeof(sizes) - used, "%s%d", i > 0 ? ", " : "",
                                 tsri_topo_island_size(v->mapping, i));
    }
    return TSR_RAISE(
        TSR_ERR_INVALID,
        "tp=%d: a group of it spans %s, but tp must lie in one island; islands have %s rank%s, so "
        "legal sizes are %s%s%s",
        axis->size, seen->hosts > 1 ? "hosts" : "islands", sizes,
        v->mapping->island_count == 1 && v->mapping->place_count == 1 ? "" : "s",
        tsri_topo_divisors(divisor, legal, sizeof(legal)),
        divisor % axis->size == 0 ? ", with tp as the last axis" : "",
        v->mapping->rule != TSRI_TOPO_RULE_LINKS && v->mapping->places[0].gpu >= 0
            ? "; the record knows no links between these GPUs, --islands node says that all are "
              "near"
            : "");
}

/* Look at each group of the axis once: at its first rank. */
static tsr_status see_axis(const view *v, int index, tsri_topo_axis *axis)
{
    hops seen = {.hosts = 1, .near = TSRI_TOPO_SAME_SWITCH, .linked = true, .gb_s = 1e30};

    axis->size = tsr_mesh_axis_size(v->mesh, index);
    axis->group_count = v->size / axis->size;
    (void)snprintf(axis->name, sizeof(axis->name), "%s", tsr_mesh_axis_name(v->mesh, index));
    TSR_TRY(tsri_alloc((size_t)axis->size, sizeof(int), &axis->ranks));
    memset(v->leaves, 0, (size_t)v->size * sizeof(int));
    memset(v->enters, 0, (size_t)v->size * sizeof(int));
    for (int rank = 0; rank < v->size; rank++) {
        TSR_TRY(tsr_mesh_axis_ranks(v->mesh, index, rank, v->rank));
        if (v->rank[0] != rank) {
            continue;
        }
        see_group(v, axis->size, &seen);
        if (rank == 0) {
            memcpy(axis->ranks, v->rank, (size_t)axis->size * sizeof(int));
        }
    }
    if (strcmp(axis->name, "tp") == 0 && axis->size > 1 && (seen.hosts > 1 || seen.islands)) {
        TSR_TRY(raise_tp(v, axis, &seen));
    }
    say(v, &seen, axis);
    return TSR_OK;
}

static tsr_status fill_mesh(view *v, tsri_topo_mesh *out)
{
    const size_t size = (size_t)v->size;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, tsri_alloc(size, sizeof(int), &v->rank), out);
    TSR_TRY_GOTO(status, tsri_alloc(size, sizeof(int), &v->leaves), out);
    TSR_TRY_GOTO(status, tsri_alloc(size, sizeof(int), &v->enters), out);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)v->topo->nic_count, sizeof(int), &v->load), out);
    for (int i = 0; i < tsr_mesh_axis_count(v->mesh); i++) {
        out->axis_count = i + 1;
        TSR_TRY_GOTO(status, see_axis(v, i, &out->axes[i]), out);
    }
out:
    tsri_free(&v->rank);
    tsri_free(&v->leaves);
    tsri_free(&v->enters);
    tsri_free(&v->load);
    return status;
}

tsr_status tsri_topo_mesh_create(const tsri_topo *topo, const tsri_topo_mapping *mapping, int nodes,
                                 const tsr_mesh_axis *axes, int axis_count, tsri_topo_mesh **out)
{
    view v = {.topo = topo, .mapping = mapping, .local = mapping->place_count};
    tsr_mesh *mesh = NULL;
    tsri_topo_mesh *result = NULL;
    tsr_status status = TSR_OK;

    if (nodes < 1 || nodes > TSRI_TOPO_MAX_RANKS / v.local) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d hosts of %d ranks, wants at most %d ranks", nodes,
                         v.local, TSRI_TOPO_MAX_RANKS);
    }
    v.size = nodes * v.local;
    TSR_TRY(tsr_mesh_create(v.size, axes, axis_count, NULL, &mesh));
    v.mesh = mesh;
    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*result), &result), release);
    result->nodes = nodes;
    result->local = v.local;
    TSR_TRY_GOTO(status, fill_mesh(&v, result), release);
    *out = result;
    result = NULL;
release:
    tsri_topo_mesh_free(&result);
    tsr_mesh_release(&mesh);
    return status;
}

void tsri_topo_mesh_free(tsri_topo_mesh **pointer)
{
    tsri_topo_mesh *mesh = *pointer;

    *pointer = NULL;
    for (int i = 0; mesh != NULL && i < mesh->axis_count; i++) {
        tsri_free(&mesh->axes[i].ranks);
    }
    tsri_free(&mesh);
}

/* ---- choosing ---- */

tsr_status tsri_topo_shard_parse(const char *text, tsri_topo_shard *out)
{
    const char *number = strncmp(text, "1/", 2) == 0 ? text + 2 : text;
    char *end = NULL;
    long value = 0;

    *out = (tsri_topo_shard){.nodes = 1, .part = 1};
    if (strcmp(text, "node") == 0) {
        return TSR_OK;
    }
    errno = 0;
    value = strtol(number, &end, 10);
    if (number[0] < '0' || number[0] > '9' || *end != '\0' || errno != 0 || value < 1 ||
        value > TSRI_TOPO_MAX_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "shard \"%s\": wants node, a number of nodes such as 2, or a part such as "
                         "1/2",
                         text);
    }
    *(number == text ? &out->nodes : &out->part) = (int)value;
    return TSR_OK;
}

static tsr_status check_tp(const tsri_topo_mapping *mapping, int tp)
{
    const int divisor = tsri_topo_island_divisor(mapping);
    char legal[128];

    if (tp < 1 || divisor % tp != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "tp=%d does not divide every island; %d island%s with common divisor %d: "
                         "legal sizes are %s",
                         tp, mapping->island_count, mapping->island_count == 1 ? "" : "s", divisor,
                         tsri_topo_divisors(divisor, legal, sizeof(legal)));
    }
    return TSR_OK;
}

static tsr_status check_shard(const tsri_topo_mapping *mapping, int nodes, int tp,
                              tsri_topo_shard shard)
{
    const int columns = mapping->place_count / tp; /* ranks of a node for each tp index */
    char legal[128];

    if (nodes % shard.nodes != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "shard groups of %d nodes do not divide %d nodes: legal are %s",
                         shard.nodes, nodes, tsri_topo_divisors(nodes, legal, sizeof(legal)));
    }
    if (columns % shard.part != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "shard groups of 1/%d node: a node has %d ranks and tp is %d, so legal "
                         "parts are 1 over %s",
                         shard.part, mapping->place_count, tp,
                         tsri_topo_divisors(columns, legal, sizeof(legal)));
    }
    return TSR_OK;
}

static tsr_status note_choice(const tsri_topo_mapping *mapping, int nodes, int tp,
                              tsri_topo_shard shard, tsri_topo_notes *notes)
{
    char legal[128];

    TSR_TRY(tsri_topo_note_add(
        notes, false, "tp", "%d; legal sizes are %s: tp must divide every island", tp,
        tsri_topo_divisors(tsri_topo_island_divisor(mapping), legal, sizeof(legal))));
    if (shard.part > 1) {
        TSR_TRY(tsri_topo_note_add(notes, false, "shard",
                                   "1/%d of a node, as asked: gathers stay among neighbours",
                                   shard.part));
    } else if (shard.nodes > 1) {
        TSR_TRY(tsri_topo_note_add(notes, false, "shard",
                                   "%d nodes, as asked: less memory per rank, but every gather "
                                   "crosses the network",
                                   shard.nodes));
    } else {
        TSR_TRY(tsri_topo_note_add(notes, false, "shard",
                                   "the node: gathers and reduce-scatters stay inside%s",
                                   nodes > 1 ? "; one all-reduce a step between nodes" : ""));
    }
    return TSR_OK;
}

tsr_status tsri_topo_propose(const tsri_topo_mapping *mapping, int nodes, int tp,
                             tsri_topo_shard shard, tsr_mesh_axis axes[3], int *count_out,
                             tsri_topo_notes *notes)
{
    int count = 0;

    shard.nodes = shard.nodes > 0 ? shard.nodes : 1;
    shard.part = shard.part > 0 ? shard.part : 1;
    tp = tp > 0 ? tp : 1;
    TSR_TRY(check_tp(mapping, tp));
    TSR_TRY(check_shard(mapping, nodes, tp, shard));
    const int replicate = nodes / shard.nodes * shard.part;

    if (replicate > 1) {
        axes[count++] = (tsr_mesh_axis){"replicate", replicate};
    }
    axes[count++] = (tsr_mesh_axis){"shard", mapping->place_count / tp * shard.nodes / shard.part};
    if (tp > 1) {
        axes[count++] = (tsr_mesh_axis){"tp", tp};
    }
    TSR_TRY(note_choice(mapping, nodes, tp, shard, notes));
    *count_out = count;
    return TSR_OK;
}
