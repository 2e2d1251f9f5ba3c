/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world.c
 * Joining and leaving the job.
 *
 * A world is real if its backend executes: then it starts MPI through boot. A simulated world is
 * arithmetic and never touches MPI. The job is left when the handle is closed and every comm on it
 * is released, in whatever order, because a comm's groups must close while MPI lives.
 */
#include "comm_priv.h"

#include "tessera/version.h"

#include <math.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#    define BUILD_SANITIZE "sanitized"
#else
#    define BUILD_SANITIZE "plain"
#endif
#if defined(NDEBUG)
#    define BUILD_CHECKS "unchecked"
#else
#    define BUILD_CHECKS "checked"
#endif
#if defined(__OPTIMIZE__)
#    define BUILD_SPEED "optimized"
#else
#    define BUILD_SPEED "unoptimized"
#endif

/* What must be equal for ranks to understand each other: no time and no path is in it. */
static tsr_status check_build(tsr_world *world)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "tessera %s, %s, %s %s %s, abi %d, %zu+%zu+%zu",
                   tsr_version(), __VERSION__, BUILD_SPEED, BUILD_CHECKS, BUILD_SANITIZE,
                   (int)TSR_BACKEND_ABI, sizeof(void *), sizeof(tsri_coll), sizeof(tsri_call));
    TSR_TRY(tsr_world_check_same(world, "the build of Tessera", text, strlen(text)));
    return TSR_OK;
}

static tsr_status check_world_options(const tsr_world_options *opt)
{
    if (opt->threads < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d threads per rank, wants 0 (default) or more",
                         opt->threads);
    }
    if (opt->rank_order != TSR_RANKS_BY_HOST && opt->rank_order != TSR_RANKS_AS_LAUNCHED) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "rank order %d, wants TSR_RANKS_BY_HOST (%d) or "
                         "TSR_RANKS_AS_LAUNCHED (%d)",
                         (int)opt->rank_order, (int)TSR_RANKS_BY_HOST, (int)TSR_RANKS_AS_LAUNCHED);
    }
    if (!(opt->timeout_s >= 0.0) || isinf(opt->timeout_s)) {
        return TSR_RAISE(TSR_ERR_INVALID, "timeout of %g s, wants 0 (default) or more",
                         opt->timeout_s);
    }
    return TSR_OK;
}

static tsr_status check_simulated(const tsr_world_options *opt)
{
    int size = opt->sim_size == 0 ? 1 : opt->sim_size;

    if (opt->mpi_comm != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "a communicator for a simulated world, wants none: its "
                                          "ranks do not exist");
    }
    if (size < 1 || opt->sim_rank < 0 || opt->sim_rank >= size) {
        return TSR_RAISE(TSR_ERR_INVALID, "simulated rank %d of %d, wants 0 <= rank < size",
                         opt->sim_rank, size);
    }
    return TSR_OK;
}

static void destroy_world(tsr_world *world)
{
    tsri_free(&world->nodes);
    tsri_free(&world);
}

/* Everything local: no rank waits for another in here. */
static tsr_status create(int rank, int size, bool simulated, double timeout_s, tsr_world **out)
{
    tsr_status status = TSR_OK;
    tsr_world *world = NULL;

    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*world), &world), out);
    world->owners = 1;
    world->rank = rank;
    world->size = size;
    world->simulated = simulated;
    world->timeout_s = timeout_s > 0.0 ? timeout_s : TSRI_TIMEOUT_S;
    if (!simulated) {
        TSR_TRY_GOTO(status, tsri_alloc((size_t)size, sizeof(*world->nodes), &world->nodes), fail);
    }
    *out = world;
    return TSR_OK;

fail:
    destroy_world(world);
out:
    return status;
}

/* own: a team that the world takes over, on success; NULL: the job's. */
static tsr_status create_real(tsri_team *own, double timeout_s, tsr_world **out)
{
    tsri_team *team = own != NULL ? own : tsri_boot_job();

    TSR_TRY(create(tsri_team_rank(team), tsri_team_size(team), false, timeout_s, out));
    (*out)->team = team;
    (*out)->owns_team = own != NULL;
    return TSR_OK;
}

static tsr_status join_job(tsr_world *world, const char *backend, const tsr_world_options *opt)
{
    tsr_status mine = check_world_options(opt);

    if (mine == TSR_OK) {
        mine = tsri_backend_find(backend, &world->backend);
    }
    TSR_TRY(check_build(world));
    TSR_TRY(tsri_team_agree(world->team, "joining the job", mine));
    TSR_TRY(tsr_world_check_same(world, "the backend", world->backend->name,
                                 strlen(world->backend->name)));
    for (int r = 0; r < world->size; r++) {
        world->nodes[r] = tsri_team_node(world->team, r);
    }
    world->threads = opt->threads;
    return TSR_OK;
}

static tsr_status open_real(int *argc, char ***argv, const char *backend,
                            const tsr_world_options *opt, tsr_world **out)
{
    const bool first = tsri_boot_job() == NULL;
    tsr_status status = TSR_OK;
    tsri_boot_info info = {0};
    tsri_team *own = NULL;
    tsr_world *world = NULL;

    TSR_TRY(tsri_boot_init(
        argc, argv,
        &(tsri_boot_options){.mpi_comm = opt->mpi_comm,
                             .launcher_order = opt->rank_order == TSR_RANKS_AS_LAUNCHED,
                             .limit_s = opt->timeout_s},
        &info));
    if (opt->mpi_comm != NULL && !first) {
        TSR_TRY_GOTO(status, tsri_team_adopt(opt->mpi_comm, &own), leave);
    }
    TSR_TRY_GOTO(status, create_real(own, opt->timeout_s, &world), close_team);
    TSR_TRY_GOTO(status, join_job(world, backend, opt), free_world);
    *out = world;
    return TSR_OK;

free_world:
    destroy_world(world);
close_team:
    tsri_team_close(&own);
leave:
    tsri_error_hold();
    tsri_boot_finalize();
    tsri_error_release();
    return status;
}

static tsr_status open_simulated(const tsr_backend *backend, const tsr_world_options *opt,
                                 tsr_world **out)
{
    int size = opt->sim_size == 0 ? 1 : opt->sim_size;
    tsr_world *world = NULL;

    TSR_TRY(check_world_options(opt));
    TSR_TRY(check_simulated(opt));
    TSR_TRY(create(opt->sim_rank, size, true, opt->timeout_s, &world));
    (void)snprintf(world->host, sizeof(world->host), "simulated");
    world->threads = opt->threads;
    world->backend = backend;
    *out = world;
    return TSR_OK;
}

tsr_status tsr_world_open(int *argc, char ***argv, const tsr_world_options *options,
                          tsr_world **out)
{
    TSRI_WANT(out);

    static const tsr_world_options defaults = {0};
    const tsr_world_options *opt = options != NULL ? options : &defaults;
    const char *name = opt->backend != NULL ? opt->backend : "auto";
    const tsr_backend *backend = NULL;

    /* A bad name is told after joining, so that ranks with a good one do not wait for us. */
    if (tsri_backend_find(name, &backend) != TSR_OK) {
        tsr_error_clear();
    } else if ((backend->caps & TSR_CAP_EXECUTES) == 0) {
        TSR_TRY(open_simulated(backend, opt, out));
        return TSR_OK;
    }
    TSR_TRY(open_real(argc, argv, name, opt, out));
    return TSR_OK;
}

tsr_status tsri_world_open_alone(const tsr_world *of, int threads, tsr_world **out)
{
    tsr_world *world = NULL;

    if (threads < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "a rank alone with %d threads, wants at least 1",
                         threads);
    }
    TSR_TRY(create(0, 1, of->simulated, of->timeout_s, &world));
    (void)snprintf(world->host, sizeof(world->host), "%s", tsr_world_host(of, of->rank));
    world->alone = true;
    world->threads = threads;
    world->backend = of->backend;
    *out = world;
    return TSR_OK;
}

/* ---- some ranks of a world ---- */

static int index_of(int rank, const int *ranks, int count)
{
    int at = count - 1;

    while (at >= 0 && ranks[at] != rank) {
        at--;
    }
    return at;
}

static tsr_status check_part(const tsr_world *of, const int *ranks, int count)
{
    if (count < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "a world of %d ranks, wants at least 1", count);
    }
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= of->size) {
            return TSR_RAISE(TSR_ERR_INVALID, "rank %d of a world of %d ranks", ranks[i], of->size);
        }
        if (index_of(ranks[i], ranks, count) != i) {
            return TSR_RAISE(TSR_ERR_INVALID, "rank %d is named twice", ranks[i]);
        }
    }
    if (index_of(of->rank, ranks, count) < 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "rank %d is none of the %d ranks that it names: these alone make the call",
                         of->rank, count);
    }
    return TSR_OK;
}

/* Membership of the job is counted: the new world may outlive the old one. */
static tsr_status split_real(const tsr_world *of, const int *ranks, int count, tsr_world **out)
{
    tsri_boot_info info = {0};
    tsri_team *team = NULL;
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_boot_init(NULL, NULL, &(tsri_boot_options){.limit_s = of->timeout_s}, &info));
    TSR_TRY_GOTO(status, tsri_team_open(of->team, ranks, count, &team), leave);
    TSR_TRY_GOTO(status, create_real(team, of->timeout_s, &world), close_team);
    world->backend = of->backend;
    world->threads = of->threads;
    for (int r = 0; r < count; r++) {
        world->nodes[r] = tsri_team_node(team, r);
    }
    TSR_TRY_GOTO(
        status,
        tsr_world_check_same(world, "the list of ranks", ranks, (size_t)count * sizeof(*ranks)),
        free_world);
    *out = world;
    return TSR_OK;

free_world:
    destroy_world(world);
close_team:
    tsri_team_close(&team);
leave:
    tsri_error_hold();
    tsri_boot_finalize();
    tsri_error_release();
    return status;
}

tsr_status tsr_world_split(tsr_world *world, const int *ranks, int count, tsr_world **out)
{
    TSRI_WANT(world, ranks, out);

    tsr_world *part = NULL;

    TSR_TRY(check_part(world, ranks, count));
    if (!world->simulated && !world->alone) {
        TSR_TRY(split_real(world, ranks, count, out));
        return TSR_OK;
    }
    TSR_TRY(create(index_of(world->rank, ranks, count), count, world->simulated, world->timeout_s,
                   &part));
    (void)snprintf(part->host, sizeof(part->host), "%s", world->host);
    part->alone = world->alone;
    part->threads = world->threads;
    part->backend = world->backend;
    *out = part;
    return TSR_OK;
}

/* ---- leaving ---- */

/* The last owner leaves the job. */
static void drop(tsr_world *world)
{
    bool joined = !world->simulated && !world->alone;

    world->owners--;
    if (world->owners > 0) {
        return;
    }
    if (world->owns_team) {
        tsri_team_close(&world->team);
    }
    if (joined) {
        tsri_boot_finalize();
    }
    destroy_world(world);
}

static void report_alive(const tsr_world *world)
{
    char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12)];
    int count = 0;

    for (const tsr_comm *c = world->comms; c != NULL; c = c->next) {
        count++;
        tsri_log(TSRI_LOG_ERROR, "a comm is open while its world closes: %s",
                 tsr_mesh_format(c->mesh, text, sizeof(text)));
    }
    if (count == 0 || tsr_error_message()[0] != '\0') {
        return; /* a failure that is still to be told matters more */
    }
    (void)TSR_RAISE(TSR_ERR_STATE,
                    "%d comm(s) still open while the world closes, one on mesh %s; the job is left "
                    "when they are released",
                    count, tsr_mesh_format(world->comms->mesh, text, sizeof(text)));
    tsr_error_print(stderr); /* the call returns nothing, and mpirun would end without a word */
}

void tsr_world_close(tsr_world **world)
{
    TSRI_WANT_VOID(world);

    tsr_world *old = *world;

    *world = NULL;
    if (old != NULL) {
        report_alive(old);
        drop(old);
    }
}

void tsri_world_attach(tsr_world *world, tsr_comm *comm)
{
    world->owners++;
    comm->next = world->comms;
    world->comms = comm;
}

void tsri_world_detach(tsr_world *world, tsr_comm *comm)
{
    tsr_comm **at = &world->comms;

    while (*at != comm) {
        at = &(*at)->next;
    }
    *at = comm->next;
    drop(world);
}

void tsr_world_abort(tsr_world *world, int code)
{
    (void)world;
    (void)fflush(NULL);
    tsri_boot_abort(code);
}

int tsr_world_rank(const tsr_world *world)
{
    TSRI_WANT_OR(world, 0);
    return world->rank;
}

int tsr_world_size(const tsr_world *world)
{
    TSRI_WANT_OR(world, 0);
    return world->size;
}

const char *tsr_world_host(const tsr_world *world, int rank)
{
    TSRI_WANT_OR(world, "");
    if (rank < 0 || rank >= world->size) {
        return "?";
    }
    return world->simulated || world->alone ? world->host : tsri_team_host(world->team, rank);
}

bool tsr_world_is_speaker(const tsr_world *world)
{
    TSRI_WANT_OR(world, false);
    return world->rank == 0 && !world->simulated && !world->alone;
}

const tsr_backend *tsri_world_backend(const tsr_world *world)
{
    return world->backend;
}

const int *tsri_world_nodes(const tsr_world *world)
{
    return world->nodes;
}

const char *tsri_world_host(const tsr_world *world, int rank)
{
    return tsri_team_host(world->team, rank);
}

bool tsri_world_is_simulated(const tsr_world *world)
{
    return world->simulated;
}
