/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_topo.c
 * `tessera topo`: this machine, or a recorded one, and the groups that ranks would form on it.
 *
 * As ranks of a job, one rank of each host describes it; all descriptions are gathered, compared,
 * and shown by one rank.
 */
#include "backend/boot/boot.h"
#include "base/base.h"
#include "base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "comm/comm.h"
#include "config/mesh_text.h"
#include "topo/draw.h"
#include "topo/json.h"

static const tsri_cli_option options[] = {
    {"--xml", "FILE", "a machine recorded by lstopo, in place of this one"},
    {"--synthetic", "STRING", "a machine by description: \"package:2 numa:1 core:8 pu:2\""},
    {"--mesh", "SPEC", "what each axis would get: replicate=2,shard=4,tp=2"},
    {"--nodes", "N", "machines like this one; default: as many as the mesh needs"},
    {"--tp", "N", "without --mesh: size of tensor parallel groups; default: 1"},
    {"--shard", "SPEC", "without --mesh: node (default), 2 (nodes) or 1/2 (of a node)"},
    {"--islands", "RULE",
     "what is an island: auto (default), links, switch, numa, package or node"},
    {"--cpu", NULL, "ranks compute on cores, whatever GPUs there are"},
    {"--json", NULL, "print machine, places and axes as JSON"},
    {"--svg", "FILE", "draw them into FILE, too"},
    {NULL, NULL, NULL},
};

typedef struct topo_options {
    tsri_topo_source source;
    const char *text; /* path or string */
    const char *svg;
    bool json;
    bool has_mesh;
    tsri_mesh_text mesh;
    int nodes; /* 0: not given */
    int tp;
    tsri_topo_shard shard;
    tsri_topo_ask ask;
} topo_options;

/** What there is to show. */
typedef struct view {
    const topo_options *o;
    const tsri_topo *topo;
    const char *const *hosts; /* NULL: no job */
    int host_count;
    tsri_topo_mapping *plan;
    tsri_topo_mesh *mesh;
} view;

/* ---- the command line ---- */

static tsr_status read_rank_count(const tsri_cli *cli, const char *name, int *out)
{
    const char *text = tsri_cli_value(cli, name);
    char *end = NULL;

    if (text == NULL) {
        return TSR_OK;
    }
    errno = 0;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > TSRI_TOPO_MAX_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s %s: wants a number from 1 to %d", name, text,
                         TSRI_TOPO_MAX_RANKS);
    }
    *out = (int)value;
    return TSR_OK;
}

static tsr_status read_source(const tsri_cli *cli, topo_options *out)
{
    const char *xml = tsri_cli_value(cli, "--xml");
    const char *synthetic = tsri_cli_value(cli, "--synthetic");

    if (xml != NULL && synthetic != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "--xml and --synthetic both name a machine");
    }
    out->source = xml != NULL         ? TSRI_TOPO_XML
                  : synthetic != NULL ? TSRI_TOPO_SYNTHETIC
                                      : TSRI_TOPO_LIVE;
    out->text = xml != NULL ? xml : synthetic;
    return TSR_OK;
}

static tsr_status read_topo_options(const tsri_cli *cli, topo_options *out)
{
    const char *mesh = tsri_cli_value(cli, "--mesh");
    const char *shard = tsri_cli_value(cli, "--shard");
    const char *islands = tsri_cli_value(cli, "--islands");

    *out = (topo_options){.svg = tsri_cli_value(cli, "--svg"),
                          .json = tsri_cli_has(cli, "--json"),
                          .has_mesh = mesh != NULL,
                          .ask = {.cores_only = tsri_cli_has(cli, "--cpu")}};
    TSR_TRY(read_source(cli, out));
    TSR_TRY(read_rank_count(cli, "--nodes", &out->nodes));
    TSR_TRY(read_rank_count(cli, "--tp", &out->tp));
    if (mesh != NULL && (out->tp > 0 || shard != NULL)) {
        return TSR_RAISE(TSR_ERR_INVALID, "--tp and --shard choose a mesh, but --mesh says it");
    }
    if (mesh != NULL) {
        TSR_TRY(tsri_mesh_parse(mesh, &out->mesh));
    }
    if (shard != NULL) {
        TSR_TRY(tsri_topo_shard_parse(shard, &out->shard));
    }
    if (islands != NULL) {
        TSR_TRY(tsri_topo_rule_parse(islands, &out->ask.islands));
    }
    return TSR_OK;
}

/* ---- hosts and ranks ---- */

/* Cells of the mesh; 0: one size is open. */
static int64_t cells(const tsri_mesh_text *mesh)
{
    int64_t product = 1;

    for (int i = 0; i < mesh->count; i++) {
        if (mesh->axes[i].size < 0 ||
            __builtin_mul_overflow(product, (int64_t)mesh->axes[i].size, &product)) {
            return 0;
        }
    }
    return product;
}

/* How many hosts, and how many ranks on each? Without a job the mesh may say it. */
static tsr_status fit_mesh(const topo_options *o, const tsri_topo *topo, int *nodes, int *ranks)
{
    const int gpus = o->ask.cores_only ? 0 : tsri_topo_visible(topo);
    const int64_t size = o->has_mesh ? cells(&o->mesh) : 0;

    *nodes = o->nodes > 0 ? o->nodes : 1;
    if (size == 0) {
        return TSR_OK; /* all GPUs, or one rank for each NUMA node */
    }
    if (o->nodes == 0 && gpus > 0 && size > gpus) {
        if (size % gpus != 0 || size / gpus > TSRI_TOPO_MAX_RANKS) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "the mesh has %lld ranks, which is no number of machines with %d "
                             "GPU%s each; --nodes says how many there are",
                             (long long)size, gpus, gpus == 1 ? "" : "s");
        }
        *nodes = (int)(size / gpus);
    }
    if (size % *nodes != 0 || size > TSRI_TOPO_MAX_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "the mesh has %lld ranks, which %d node%s cannot share equally (at most "
                         "%d ranks are looked at)",
                         (long long)size, *nodes, *nodes == 1 ? "" : "s", TSRI_TOPO_MAX_RANKS);
    }
    *ranks = (int)(size / *nodes);
    if (gpus > 0 && *ranks > gpus) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "the mesh has %d ranks on each of %d node%s, but a node has %d GPU%s; "
                         "--cpu places ranks on cores",
                         *ranks, *nodes, *nodes == 1 ? "" : "s", gpus, gpus == 1 ? "" : "s");
    }
    return TSR_OK;
}

static tsr_status make_mesh(view *v, int nodes)
{
    tsr_mesh_axis axes[TSR_MESH_MAX_AXES];
    tsri_mesh_text mesh = v->o->mesh;
    int count = 0;

    if (v->o->has_mesh) {
        TSR_TRY(tsri_mesh_fit(&mesh, nodes * v->plan->place_count));
        count = mesh.count;
        for (int i = 0; i < count; i++) { /* its own names point into what it was copied from */
            axes[i] = (tsr_mesh_axis){mesh.names[i], mesh.axes[i].size};
        }
    } else {
        TSR_TRY(tsri_topo_propose(v->plan, nodes, v->o->tp, v->o->shard, axes, &count,
                                  &v->plan->notes));
    }
    TSR_TRY(tsri_topo_mesh_create(v->topo, v->plan, nodes, axes, count, &v->mesh));
    return TSR_OK;
}

static void drop(view *v)
{
    tsri_topo_mesh_free(&v->mesh);
    tsri_topo_mapping_free(&v->plan);
}

/* Plan and mesh; ranks on each of nodes hosts, or 0: as the options say. */
static tsr_status find_view(view *v, int nodes, int ranks)
{
    tsri_topo_ask ask = v->o->ask;

    if (ranks == 0) {
        TSR_TRY(fit_mesh(v->o, v->topo, &nodes, &ranks));
    }
    ask.ranks = ranks;
    TSR_TRY(tsri_topo_mapping_create(v->topo, &ask, &v->plan));
    TSR_TRY(make_mesh(v, nodes));
    return TSR_OK;
}

/* ---- showing ---- */

static tsr_status print_topo_json(const view *v)
{
    json_t *all = json_object();
    json_t *hosts = json_array();
    json_t *part = NULL;
    tsr_status status = TSR_OK;

    for (int i = 0; i < v->host_count; i++) {
        (void)json_array_append_new(hosts, json_string(v->hosts[i]));
    }
    (void)json_object_set_new(all, "hosts", hosts);
    TSR_TRY_GOTO(status, tsri_topo_to_json(v->topo, &part), out);
    (void)json_object_set_new(all, "machine", part);
    TSR_TRY_GOTO(status, tsri_topo_mapping_to_json(v->topo, v->plan, &part), out);
    (void)json_object_set_new(all, "plan", part);
    TSR_TRY_GOTO(status, tsri_topo_mesh_to_json(v->mesh, &part), out);
    (void)json_object_set_new(all, "mesh", part);
    (void)json_dumpf(all, stdout, JSON_INDENT(2));
    (void)printf("\n");
out:
    json_decref(all);
    return status;
}

static tsr_status write_svg(const view *v)
{
    FILE *file = fopen(v->o->svg, "we");
    tsr_status status = TSR_OK;

    if (file == NULL) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write %s: %s", v->o->svg, strerror(errno));
    }
    status = tsri_topo_draw_svg(v->topo, v->plan, v->mesh, file);
    const bool bad = ferror(file) != 0;

    if ((fclose(file) != 0 || bad) && status == TSR_OK) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write %s: the disk may be full", v->o->svg);
    }
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status show(const view *v)
{
    if (v->o->svg != NULL) {
        TSR_TRY(write_svg(v));
    }
    if (v->o->json) {
        TSR_TRY(print_topo_json(v));
        return TSR_OK;
    }
    for (int i = 0; i < v->host_count; i++) {
        (void)printf("host %d: %s, ranks %d to %d\n", i, v->hosts[i], i * v->plan->place_count,
                     (i + 1) * v->plan->place_count - 1);
    }
    if (v->host_count > 1) {
        (void)printf("each host: ");
    }
    TSR_TRY(tsri_topo_draw_text(v->topo, v->plan, stdout));
    tsri_topo_draw_mesh(v->mesh, stdout);
    return TSR_OK;
}

/* ---- one machine ---- */

static tsr_status look_alone(const tsri_cli *cli, bool shows)
{
    topo_options o;
    tsri_topo *topo = NULL;
    view v = {.o = &o};
    tsr_status status = TSR_OK;

    TSR_TRY(read_topo_options(cli, &o));
    if (cli->ranks > 0 && o.nodes > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "--nodes imagines machines, but -n and --hosts start "
                                          "ranks on real ones");
    }
    TSR_TRY(tsri_topo_read(o.source, o.text, &topo));
    v.topo = topo;
    if (cli->ranks > 1 || cli->hosts != NULL) { /* its hosts are not known before it runs */
        tsri_mesh_text mesh = o.mesh;

        if (o.has_mesh) {
            TSR_TRY_GOTO(status, tsri_mesh_fit(&mesh, cli->ranks), out);
        }
    } else {
        TSR_TRY_GOTO(status, find_view(&v, 1, cli->ranks), out);
    }
    if (shows) {
        TSR_TRY_GOTO(status, show(&v), out);
    }
out:
    drop(&v);
    tsri_topo_free(&topo);
    return status;
}

static tsr_status check_topo(const tsri_cli *cli)
{
    TSR_TRY(look_alone(cli, false));
    return TSR_OK;
}

/* ---- a job ---- */

/* What a rank tells the others. */
typedef struct rank_facts {
    int node, local_rank, local_size;
    int64_t bytes; /* of its host's description; 0: another rank describes it */
    char host[64];
} rank_facts;

typedef struct job {
    tsr_world *world;
    int size;
    char *text; /* this host's description, or NULL */
    rank_facts *facts;
    char *texts; /* [size, most] */
    int64_t most;
    const char **names;
    int *ranks;
    tsri_topo **topos; /* by host */
    int host_count;
} job;

static tsr_status describe_rank(const topo_options *o, job *j)
{
    tsri_topo *topo = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)j->size, sizeof(rank_facts), &j->facts));
    TSR_TRY(tsri_alloc((size_t)j->size, sizeof(char *), &j->names));
    TSR_TRY(tsri_alloc((size_t)j->size, sizeof(int), &j->ranks));
    TSR_TRY(tsri_alloc((size_t)j->size, sizeof(tsri_topo *), &j->topos));
    if (tsri_boot_get_info()->local_rank != 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_topo_read(o->source, o->text, &topo));
    status = tsri_topo_pack(topo, &j->text);
    tsri_topo_free(&topo);
    TSR_TRY(status);
    return TSR_OK;
}

/* Collective over the world. */
static tsr_status gather_facts(job *j)
{
    const tsri_boot_info *info = tsri_boot_get_info();
    rank_facts mine = {.node = info->node,
                       .local_rank = info->local_rank,
                       .local_size = info->local_size,
                       .bytes = j->text != NULL ? (int64_t)strlen(j->text) : 0};
    char *padded = NULL;
    tsr_status status = TSR_OK;

    (void)snprintf(mine.host, sizeof(mine.host), "%s", info->host);
    TSR_TRY(tsri_team_all_gather(tsri_boot_job(), "counting hosts", TSR_OK, &mine, sizeof(mine),
                                 j->facts));
    for (int i = 0; i < j->size; i++) {
        j->most = j->facts[i].bytes > j->most ? j->facts[i].bytes : j->most;
    }
    status = tsri_alloc((size_t)j->most, 1, &padded);
    if (status == TSR_OK) {
        status = tsri_alloc((size_t)j->size * (size_t)j->most, 1, &j->texts);
    }
    if (status == TSR_OK && j->text != NULL) {
        memcpy(padded, j->text, (size_t)mine.bytes);
    }
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(tsri_boot_job(), "comparing hosts", status, padded,
                                      (size_t)j->most, j->texts),
                 out);
out:
    tsri_free(&padded);
    return status;
}

/* The hosts in the launcher's order, from what all ranks told. */
static tsr_status order_hosts(job *j)
{
    for (int i = 0; i < j->size; i++) {
        const rank_facts *f = &j->facts[i];

        if (f->bytes == 0) {
            continue;
        }
        TSR_TRY(tsri_topo_unpack(j->texts + (size_t)i * (size_t)j->most, (size_t)f->bytes, f->host,
                                 &j->topos[j->host_count]));
        j->names[j->host_count] = f->host;
        j->ranks[j->host_count] = f->local_size;
        j->host_count++;
    }
    TSR_TRY(tsri_topo_check_hosts(j->names, j->ranks, (const tsri_topo *const *)j->topos,
                                  j->host_count));
    for (int i = 0; i < j->size; i++) {
        const rank_facts *f = &j->facts[i];

        if (f->node * f->local_size + f->local_rank != i) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "rank %d is rank %d of host %s: ranks are not numbered host by host, "
                             "as a mesh wants them; start them with --map-by slot",
                             i, f->local_rank, f->host);
        }
    }
    return TSR_OK;
}

static tsr_status show_job(const topo_options *o, job *j)
{
    tsr_status status = TSR_OK;

    TSR_TRY(order_hosts(j));
    view v = {.o = o, .topo = j->topos[0], .hosts = j->names, .host_count = j->host_count};

    TSR_TRY_GOTO(status, find_view(&v, j->host_count, j->ranks[0]), out);
    TSR_TRY_GOTO(status, show(&v), out);
out:
    drop(&v);
    return status;
}

static void free_job(job *j)
{
    for (int i = 0; i < j->host_count; i++) {
        tsri_topo_free(&j->topos[i]);
    }
    tsri_free(&j->text);
    tsri_free(&j->facts);
    tsri_free(&j->texts);
    tsri_free(&j->names);
    tsri_free(&j->ranks);
    tsri_free(&j->topos);
}

/* Collective over the world. */
static tsr_status look_together(const topo_options *o, job *j)
{
    TSR_TRY(tsr_world_agree(j->world, describe_rank(o, j)));
    TSR_TRY(gather_facts(j));
    if (tsr_world_is_speaker(j->world)) {
        TSR_TRY(show_job(o, j));
    }
    return TSR_OK;
}

static tsr_status run_job(const tsri_cli *cli)
{
    topo_options o;
    job j = {.size = 1};
    tsr_status status = TSR_OK;

    TSR_TRY(read_topo_options(cli, &o));
    TSR_TRY(tsr_world_open(NULL, NULL, NULL, &j.world));
    j.size = tsr_world_size(j.world);
    status = tsri_world_settle(j.world, look_together(&o, &j));
    free_job(&j);
    tsr_world_close(&j.world);
    TSR_TRY(status);
    return TSR_OK;
}

static int run_topo(const tsri_cli *cli)
{
    return tsri_cli_finish(tsri_boot_launched() ? run_job(cli) : look_alone(cli, true));
}

const tsri_cli_command tsri_command_topo = {
    .name = "topo",
    .summary = "the machine, the groups of ranks, and why",
    .usage = "[--xml FILE | --synthetic STRING] [--mesh SPEC] [-n N]",
    .help = "Shows processors, GPUs, NICs and links of this machine or of a recorded one;\n"
            "which GPUs form islands, which rank gets which GPU, NIC and cores, what each\n"
            "axis of a mesh goes over, and the reason for each choice. With -n, or as ranks\n"
            "of a job, it compares and shows all hosts.\n"
            "\n"
            "  tessera topo\n"
            "  tessera topo --xml dgx.xml --mesh replicate=2,shard=4,tp=2 --svg dgx.svg\n"
            "  tessera topo --synthetic \"package:2 numa:1 core:8 pu:2\" --nodes 4 --shard 2\n"
            "  tessera topo --hosts a:8,b:8 --tp 4\n",
    .options = options,
    .launches = true,
    .check = check_topo,
    .run = run_topo,
};
