/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 3 4 8 */
/**
 * @file test_cpu_ring.c
 * Collectives of groups without memory in common: the order of their sums, the same bits on every
 * rank and in every run, agreement with MPI's own calls, and the bytes that they send.
 *
 * That they are right for every kind, type and list is test_cpu_collectives.c's.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"

#include <mpi.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "support/tsr_test.h"

#define MAX_RANKS 8
#define COUNT     70001 /* per piece: several chunks, the last one short */

/* ---- what is sent: this program's MPI_Isend stands before the library's ---- */

static _Atomic size_t sent_large, sent_small;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (tag == 0) { /* a letter */
        sent_small += (size_t)count;
    } else {
        sent_large += (size_t)count;
    }
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

/* ---- rig ---- */

typedef struct rig {
    tsr_device *device;
    tsr_stream *compute, *reduce;
    tsr_group *on_compute, *on_reduce;
    tsr_buffer *in, *out;
} rig;

static bool rig_open(rig *out)
{
    tsri_boot_info info = {0};
    int ranks[MAX_RANKS];
    const tsr_backend *backend = NULL;

    *out = (rig){0};
    for (int r = 0; r < MAX_RANKS; r++) {
        ranks[r] = r;
    }
    CHECK_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    CHECK_OK(tsri_backend_find("cpu", &backend));
    CHECK_OK(tsri_device_open(
        backend,
        &(tsri_device_options){
            .world_rank = info.rank, .world_size = info.size, .timeout_s = 60, .transport = "mpi"},
        &out->device));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_COMPUTE, &out->compute));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_REDUCE, &out->reduce));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1, "all", out->compute,
                             &out->on_compute));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1, "all", out->reduce,
                             &out->on_reduce));
    size_t bytes = (size_t)info.size * COUNT * sizeof(double);
    CHECK_OK(tsri_buffer_alloc(out->device, bytes, TSRI_MEM_OTHER, "in", &out->in));
    CHECK_OK(tsri_buffer_alloc(out->device, bytes, TSRI_MEM_OTHER, "out", &out->out));
    return out->out != NULL;
}

static void rig_close(rig *it)
{
    tsri_buffer_release(&it->in);
    tsri_buffer_release(&it->out);
    tsri_group_close(&it->on_compute);
    tsri_group_close(&it->on_reduce);
    tsri_stream_close(&it->compute);
    tsri_stream_close(&it->reduce);
    tsri_device_close(&it->device);
}

static void call(rig *it, tsri_coll_kind kind, tsr_dtype dtype, tsri_reduce_op op, bool queued)
{
    tsri_coll_item item = {it->in, 0, it->out, 0, COUNT};
    tsri_coll coll = {.kind = kind,
                      .dtype = dtype,
                      .op = op,
                      .items = &item,
                      .item_count = 1,
                      .label = "layers.0"};
    tsr_stream *stream = queued ? it->reduce : it->compute;

    memset(it->out->address, 0x5A, it->out->bytes);
    CHECK_OK(tsri_collective(queued ? it->on_reduce : it->on_compute, &coll, stream));
    CHECK_OK(tsri_stream_sync(stream));
}

/* ---- values: none is exact, and their sums depend on the order ---- */

static float rough(int rank, int64_t i)
{
    return 1.0F / (float)(1 + ((i * 31 + rank * 17) % 1009)) * (rank % 2 == 0 ? 1.0F : -0.37F);
}

static float rounded(tsr_dtype dtype, float value)
{
    uint16_t half = 0;

    if (dtype == TSR_F32) {
        return value;
    }
    tsri_cpu_narrow(dtype, &value, &half, 1);
    tsri_cpu_widen(dtype, &half, &value, 1);
    return value;
}

static float get(tsr_dtype dtype, const void *at, int64_t i)
{
    float value = 0;

    if (dtype == TSR_F32) {
        return ((const float *)at)[i];
    }
    tsri_cpu_widen(dtype, (const uint16_t *)at + i, &value, 1);
    return value;
}

static void fill(rig *it, tsr_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float value = rough(tsr_test_rank(), i);
        if (dtype == TSR_F32) {
            ((float *)it->in->address)[i] = value;
        } else {
            tsri_cpu_narrow(dtype, &value, (uint16_t *)it->in->address + i, 1);
        }
    }
}

/* Element i summed from member first on, round the ring. */
static float ring_sum(tsr_dtype dtype, int64_t i, int first)
{
    float sum = 0;

    for (int k = 0; k < tsr_test_size(); k++) {
        float term = rounded(dtype, rough((first + k) % tsr_test_size(), i));
        sum = k == 0 ? term : sum + term;
    }
    return rounded(dtype, sum);
}

static void test_piece_ends_its_own_sum(void)
{
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    rig it;
    int rank = tsr_test_rank();

    REQUIRE(rig_open(&it));
    for (int d = 0; d < 3; d++) {
        int64_t wrong = 0;
        fill(&it, dtypes[d], (int64_t)COUNT * tsr_test_size());
        call(&it, TSRI_REDUCE_SCATTER, dtypes[d], TSRI_SUM, d % 2 == 0);
        for (int64_t i = 0; i < COUNT; i++) {
            float want = ring_sum(dtypes[d], (int64_t)rank * COUNT + i, rank + 1);
            wrong += get(dtypes[d], it.out->address, i) == want ? 0 : 1;
        }
        CHECK_EQ(wrong, 0);
    }
    rig_close(&it);
}

static void test_same_bits(void)
{
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    rig it;
    uint64_t hashes[MAX_RANKS];

    REQUIRE(rig_open(&it));
    for (int d = 0; d < 2; d++) {
        uint64_t first = 0;
        fill(&it, dtypes[d], COUNT);
        for (int run = 0; run < 4; run++) {
            call(&it, TSRI_ALL_REDUCE, dtypes[d], TSRI_SUM, run % 2 == 0);
            uint64_t hash = tsri_hash(it.out->address, COUNT * tsr_dtype_size(dtypes[d]), 0);
            CHECK_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &hash, sizeof hash,
                                          hashes));
            first = run == 0 ? hashes[0] : first;
            for (int r = 0; r < tsr_test_size(); r++) {
                CHECK(hashes[r] == first);
            }
        }
    }
    rig_close(&it);
}

/* ---- MPI's calls as reference ---- */

/* Two orders of a sum of W f32 terms differ by 2 (W - 1) roundings of the sum of magnitudes. */
static int64_t count_far(const float *ours, const float *theirs, int64_t count, int64_t begin)
{
    int64_t far = 0;

    for (int64_t i = 0; i < count; i++) {
        double magnitude = 0;
        for (int r = 0; r < tsr_test_size(); r++) {
            magnitude += fabs((double)rough(r, begin + i));
        }
        double bound = 2 * (tsr_test_size() - 1) * (double)FLT_EPSILON / 2 * magnitude;
        far += fabs((double)ours[i] - (double)theirs[i]) <= bound ? 0 : 1;
    }
    return far;
}

static void test_as_mpi(void)
{
    rig it;
    float *theirs = NULL;
    int64_t wrong = 0;
    size_t all = (size_t)COUNT * (size_t)tsr_test_size();

    REQUIRE(rig_open(&it));
    REQUIRE_OK(tsri_alloc(all, sizeof *theirs, &theirs));
    fill(&it, TSR_F32, (int64_t)all);

    call(&it, TSRI_ALL_GATHER, TSR_F32, TSRI_SUM, true);
    CHECK(MPI_Allgather(it.in->address, COUNT, MPI_FLOAT, theirs, COUNT, MPI_FLOAT,
                        MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK(tsri_hash(it.out->address, all * sizeof *theirs, 0) ==
          tsri_hash(theirs, all * sizeof *theirs, 0));

    call(&it, TSRI_REDUCE_SCATTER, TSR_F32, TSRI_SUM, true);
    CHECK(MPI_Reduce_scatter_block(it.in->address, theirs, COUNT, MPI_FLOAT, MPI_SUM,
                                   MPI_COMM_WORLD) == MPI_SUCCESS);
    CHECK_EQ(count_far(it.out->address, theirs, COUNT, (int64_t)tsr_test_rank() * COUNT), 0);

    call(&it, TSRI_ALL_REDUCE, TSR_F32, TSRI_SUM, true);
    CHECK(MPI_Allreduce(it.in->address, theirs, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) ==
          MPI_SUCCESS);
    CHECK_EQ(count_far(it.out->address, theirs, COUNT, 0), 0);

    call(&it, TSRI_ALL_REDUCE, TSR_F32, TSRI_MAX, true);
    CHECK(MPI_Allreduce(it.in->address, theirs, COUNT, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD) ==
          MPI_SUCCESS);
    const float *ours = it.out->address;
    for (int64_t i = 0; i < COUNT; i++) {
        wrong += ours[i] == theirs[i] ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
    tsri_free(&theirs);
    rig_close(&it);
}

/* A NaN in one rank's term reaches every rank, from wherever it enters the ring. */
static void test_max_keeps_nan(void)
{
    rig it;
    int64_t wrong = 0;

    REQUIRE(rig_open(&it));
    float *in = it.in->address;
    for (int64_t i = 0; i < COUNT; i++) {
        in[i] = i % (tsr_test_size() + 1) == tsr_test_rank() ? (float)NAN : 1.0F;
    }
    call(&it, TSRI_ALL_REDUCE, TSR_F32, TSRI_MAX, false);
    const float *out = it.out->address;
    for (int64_t i = 0; i < COUNT; i++) {
        bool clean = i % (tsr_test_size() + 1) == tsr_test_size();
        wrong += (clean ? out[i] == 1.0F : isnan(out[i])) ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
    rig_close(&it);
}

/* ---- bytes ---- */

/* Bytes beyond letters that all ranks send per call, against the ledger's. */
static void check_bytes(rig *it, tsri_coll_kind kind, tsr_dtype dtype, bool exact)
{
    size_t each[MAX_RANKS];
    size_t total = 0;
    size_t size = (size_t)tsr_test_size();

    fill(it, TSR_F32, COUNT);
    tsri_recorder_clear(it->device);
    sent_large = 0;
    sent_small = 0;
    call(it, kind, dtype, TSRI_MAX, false);
    size_t mine = sent_large;
    size_t letters = sent_small;
    size_t ledger = tsri_recorder_sent_bytes(it->device, 1);
    CHECK_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &mine, sizeof mine, each));
    for (size_t r = 0; r < size; r++) {
        total += each[r];
    }
    /* Slices of an all-reduce are whole elements: of each chunk the last ones may be shorter. */
    size_t chunks = 1 + (COUNT * tsr_dtype_size(dtype) / ((size_t)64 << 10));
    size_t slack = kind == TSRI_ALL_REDUCE ? 2 * size * chunks * tsr_dtype_size(dtype) : 0;
    if (exact) {
        CHECK(mine + slack >= ledger && mine <= ledger + slack);
        CHECK(total + size >= size * ledger && total <= size * (ledger + 1));
    }
    CHECK(letters <= (size - 1) * 256);
}

static void test_bytes_sent(void)
{
    rig it;

    REQUIRE(rig_open(&it));
    REQUIRE_OK(tsri_recorder_attach(it.device, &(tsri_recorder_options){.ledger = true}));
    check_bytes(&it, TSRI_ALL_GATHER, TSR_F32, true);
    check_bytes(&it, TSRI_ALL_GATHER, TSR_BF16, true);
    check_bytes(&it, TSRI_REDUCE_SCATTER, TSR_F32, true);
    check_bytes(&it, TSRI_ALL_REDUCE, TSR_F32, true);
    check_bytes(&it, TSRI_ALL_REDUCE, TSR_F64, true);
    /* Partial sums of halves are f32, but between two ranks there are none. */
    check_bytes(&it, TSRI_REDUCE_SCATTER, TSR_BF16, tsr_test_size() == 2);
    check_bytes(&it, TSRI_ALL_REDUCE, TSR_BF16, tsr_test_size() == 2);
    tsri_recorder_detach(it.device);
    rig_close(&it);
}

const tsr_test_case tsr_test_cases[] = {
    {"piece_ends_its_own_sum", test_piece_ends_its_own_sum},
    {"same_bits", test_same_bits},
    {"as_mpi", test_as_mpi},
    {"max_keeps_nan", test_max_keeps_nan},
    {"bytes_sent", test_bytes_sent},
    {NULL, NULL},
};
