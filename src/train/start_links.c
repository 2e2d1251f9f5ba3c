/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Links at the start of a run. */
#include "train/start_links.h"

#include "base/base.h"

#include <string.h>

#include "comm/comm.h"
#include "train/start_groups.h"

static const double probe_seconds = 0.5;
static const double too_far = 2.0; /* factor between measured and declared */

enum {
    PRESET_HSDP = 4, /* of parallel.preset */
    PRESET_HFSDP = 5
};

static tsr_status find_groups(const tsr_world *world, const tsr_mesh *mesh, char *text, size_t size)
{
    const int ranks = tsr_world_size(world);
    const char **hosts = NULL;

    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*hosts), &hosts));
    for (int rank = 0; rank < ranks; rank++) {
        hosts[rank] = tsri_world_host(world, rank);
    }
    const tsr_status status =
        tsri_start_groups_text(mesh, tsri_world_nodes(world), hosts, text, size);
    tsri_free(&hosts);
    return status;
}

tsr_status tsri_start_links_find(tsr_world *world, const tsri_config *config,
                                 const tsri_job_options *options, const tsri_cluster *declared,
                                 tsri_start_links *out)
{
    const double begin = tsri_now_s();
    tsr_mesh *mesh = NULL;
    tsr_status status = TSR_OK;

    *out = (tsri_start_links){.count = 0};
    TSR_TRY(
        tsr_mesh_create(tsr_world_size(world), options->axes, options->axis_count, NULL, &mesh));
    TSR_TRY_GOTO(status,
                 tsri_probe_axes(world, mesh, declared != NULL ? &declared->machine : NULL,
                                 config->run.probe ? probe_seconds : 0.0, out->axes, &out->count),
                 release);
    TSR_TRY_GOTO(status, find_groups(world, mesh, out->groups, sizeof(out->groups)), release);
    out->seconds = config->run.probe && out->count > 0 ? tsri_now_s() - begin : 0.0;
release:
    tsr_mesh_release(&mesh);
    return status;
}

static const char *latency_text(double seconds, char *text, size_t size)
{
    const bool long_one = seconds >= 1e-3;

    (void)snprintf(text, size, "%.3g %s", seconds * (long_one ? 1e3 : 1e6), long_one ? "ms" : "us");
    return text;
}

void tsri_start_links_text(const tsri_start_links *links, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; links->seconds > 0.0 && i < links->count && used < size; i++) {
        const tsri_probe_axis *a = &links->axes[i];
        char hop[32];

        used += (size_t)snprintf(text + used, size - used, "%s%s of %d ranks%s %.3g GB/s, %s a hop",
                                 i > 0 ? "; " : "", a->name, a->ranks,
                                 a->hosts > 1 ? " between hosts" : "", a->bytes_per_s / 1e9,
                                 latency_text(a->hop_s, hop, sizeof(hop)));
    }
}

static bool disagrees(const tsri_start_links *links, const tsri_probe_axis *a)
{
    return links->seconds > 0.0 && a->declared_bytes_per_s > 0.0 &&
           (a->bytes_per_s > too_far * a->declared_bytes_per_s ||
            a->declared_bytes_per_s > too_far * a->bytes_per_s);
}

/* The axis whose gathers presets keep inside a host: "shard", or else the last. */
static bool gathers_along(const tsri_start_links *links, const tsri_probe_axis *a)
{
    bool named = false;

    for (int i = 0; i < links->count; i++) {
        named = named || strcmp(links->axes[i].name, "shard") == 0;
    }
    return named ? strcmp(a->name, "shard") == 0 : a == &links->axes[links->count - 1];
}

static bool crosses_unasked(const tsri_start_links *links, const tsri_config *config,
                            const tsri_probe_axis *a)
{
    const int preset = config->parallel.preset;
    const bool local = preset == PRESET_HSDP || preset == PRESET_HFSDP;

    return a->hosts > 1 && gathers_along(links, a) && (local || config->mesh_reason[0] != '\0');
}

static void say_disagreement(const tsri_probe_axis *a, char *text, size_t size)
{
    const double ratio = a->bytes_per_s > a->declared_bytes_per_s
                             ? a->bytes_per_s / a->declared_bytes_per_s
                             : a->declared_bytes_per_s / a->bytes_per_s;

    (void)snprintf(text, size,
                   "warning: axis \"%s\" sends %.3g GB/s a rank, run.cluster says %.3g: a factor "
                   "%.1f; plans made with it are as far off",
                   a->name, a->bytes_per_s / 1e9, a->declared_bytes_per_s / 1e9, ratio);
}

static void say_crossing(const tsri_probe_axis *a, char *text, size_t size)
{
    (void)snprintf(
        text, size,
        "warning: axis \"%s\" lies on %d hosts, so every gather of parameters crosses the "
        "network; a mesh whose last axis has the ranks of one host, such as replicate=%d,"
        "%s=%d, keeps them inside",
        a->name, a->hosts, a->hosts, a->name, a->ranks / a->hosts);
}

bool tsri_start_links_warning(const tsri_start_links *links, const tsri_config *config, int index,
                              char *text, size_t size)
{
    for (int i = 0; i < links->count; i++) {
        const tsri_probe_axis *a = &links->axes[i];

        if (disagrees(links, a) && index-- == 0) {
            say_disagreement(a, text, size);
            return true;
        }
        if (crosses_unasked(links, config, a) && index-- == 0) {
            say_crossing(a, text, size);
            return true;
        }
    }
    return false;
}
