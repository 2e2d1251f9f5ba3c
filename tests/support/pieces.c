/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file pieces.c
 * Writes and checks pieces element by element, straight from the definition of a layout.
 */
#include "pieces.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

tsr_pieces_job tsr_pieces_open(const int *sizes, int axis_count)
{
    static const char *const names[] = {"a", "b", "c"};
    tsr_mesh_axis axes[3];
    tsr_pieces_job job = {0};

    for (int i = 0; i < axis_count; i++) {
        axes[i] = (tsr_mesh_axis){names[i], sizes[i]};
    }
    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &job.world));
    CHECK_OK(tsr_mesh_create(tsr_test_size(), axes, axis_count, NULL, &job.mesh));
    if (job.world != NULL && job.mesh != NULL) {
        CHECK_OK(tsr_comm_open(job.world, job.mesh,
                               &(tsr_comm_options){.record = true, .race_check = true}, &job.comm));
    }
    return job;
}

void tsr_pieces_close(tsr_pieces_job *job)
{
    tsr_comm_release(&job->comm);
    tsr_mesh_release(&job->mesh);
    tsr_world_close(&job->world);
}

static uint64_t hash_of(int64_t g)
{
    return tsri_hash(&g, sizeof(g), 7);
}

/* The integer of element g, before any sum. Over at most 8 ranks no sum exceeds the 2^8 up to which
 * bf16 holds every integer: 8 * 13 + 3 * (0 + 1 + ... + 7) = 188, see term_of. */
static int64_t base_of(int64_t g, tsr_dtype dtype)
{
    return dtype == TSR_BF16 || dtype == TSR_F16 ? (int64_t)(hash_of(g) % 14)
                                                 : (int64_t)(hash_of(g) % 100000);
}

/* The term that the rank at coord holds under layout of a tensor that lay as from: on axes that are
 * Partial still, its own; summed over those that are no longer. A term is base + sum of
 * (axis + 1) * coordinate over from's Partial axes. */
static int64_t term_of(const tsr_layout *from, const tsr_layout *now, const int *coord,
                       int64_t base)
{
    int64_t ranks = 1;
    int64_t twice = 2 * base;

    for (int axis = 0; axis < tsr_mesh_axis_count(from->mesh); axis++) {
        int size = tsr_mesh_axis_size(from->mesh, axis);
        if (from->place[axis].kind != TSR_PARTIAL) {
            continue;
        }
        if (now->place[axis].kind == TSR_PARTIAL || size == 1) {
            twice += 2 * (int64_t)(axis + 1) * coord[axis];
        } else {
            twice += (int64_t)(axis + 1) * (size - 1);
            ranks *= size;
        }
    }
    return ranks * twice / 2;
}

static bool has_partial(const tsr_layout *layout)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if (layout->place[axis].kind == TSR_PARTIAL) {
            return true;
        }
    }
    return false;
}

/* Write value as the type's element. */
static void put_number(void *element, tsr_dtype dtype, int64_t value)
{
    const float single = (float)value;
    const double wide = (double)value;
    const int32_t integer = (int32_t)value;
    uint32_t bits = 0;

    switch (dtype) {
    case TSR_F32:
        memcpy(element, &single, sizeof(single));
        break;
    case TSR_F64:
        memcpy(element, &wide, sizeof(wide));
        break;
    case TSR_I32:
        memcpy(element, &integer, sizeof(integer));
        break;
    case TSR_BF16: /* exact: the value has at most 8 bits */
        memcpy(&bits, &single, sizeof(bits));
        bits >>= 16;
        memcpy(element, &(uint16_t){(uint16_t)bits}, sizeof(uint16_t));
        break;
    case TSR_DTYPE_DEFAULT:
    case TSR_F16:
    case TSR_I64:
    case TSR_U8:
    default:
        CHECK(dtype == TSR_F32);
        break;
    }
}

/* The bytes that tensor's piece has to have. */
static void *expected(const tsr_dtensor *tensor, const tsr_layout *from)
{
    const tsr_layout *now = &tensor->layout;
    size_t size = tsr_dtype_size(tensor->dtype);
    char *bytes = malloc((size_t)tensor->local_count * size + 1);
    int coord[TSR_MESH_MAX_AXES] = {0};

    if (bytes == NULL) {
        abort();
    }
    CHECK_OK(tsr_mesh_coord(now->mesh, tsr_comm_rank(tensor->comm), coord));
    for (int64_t i = 0; i < tensor->local_count; i++) {
        int64_t rest = i;
        int64_t g = 0;
        int64_t stride = 1;
        uint64_t word = 0;

        for (int d = now->ndim - 1; d >= 0; d--) {
            g += (tensor->local_offset[d] + rest % tensor->local_shape[d]) * stride;
            rest /= tensor->local_shape[d];
            stride *= now->shape[d];
        }
        word = hash_of(g);
        if (has_partial(from)) {
            put_number(bytes + (size_t)i * size, tensor->dtype,
                       term_of(from, now, coord, base_of(g, tensor->dtype)));
        } else {
            memcpy(bytes + (size_t)i * size, &word, size);
        }
    }
    return bytes;
}

tsr_dtensor *tsr_pieces_make(const tsr_pieces_job *job, const tsr_layout *layout, tsr_dtype dtype)
{
    tsr_dtensor *tensor = NULL;
    void *bytes = NULL;

    CHECK_OK(tsr_dtensor_create(job->comm, layout, dtype, "pieces", &tensor));
    if (tensor != NULL) {
        bytes = expected(tensor, layout);
        CHECK_OK(tsr_dtensor_write(tensor, bytes));
        free(bytes);
    }
    return tensor;
}

int64_t tsr_pieces_wrong(tsr_dtensor *tensor, const tsr_layout *from)
{
    size_t size = tsr_dtype_size(tensor->dtype);
    size_t bytes = (size_t)tensor->local_count * size;
    char *want = expected(tensor, from);
    char *got = malloc(bytes + 1);
    int64_t wrong = -1;

    if (got == NULL) {
        abort();
    }
    memset(got, 0xA5, bytes + 1);
    if (tsr_dtensor_read(tensor, got) == TSR_OK) {
        wrong = 0;
        for (int64_t i = 0; i < tensor->local_count; i++) {
            wrong += memcmp(got + (size_t)i * size, want + (size_t)i * size, size) != 0;
        }
    }
    free(want);
    free(got);
    return wrong;
}

int tsr_pieces_collectives(const tsr_pieces_job *job, int kind)
{
    int count = 0;
    int found = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(job->comm), &count);

    for (int i = 0; i < count; i++) {
        found += entries[i].kind == TSRI_ENTRY_COLLECTIVE && (kind < 0 || entries[i].op == kind);
    }
    return found;
}
