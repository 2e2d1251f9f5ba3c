/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Data of safetensors: exact ranges, widened. */
#include "checkpoint/safetensors_priv.h"

#include "base/base.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

tsr_status tsri_safetensors_read_exact(const tsri_safetensors_shard *s, int64_t offset, void *out,
                                       size_t bytes)
{
    char *to = out;

    while (bytes > 0) {
        const ssize_t n = pread(s->fd, to, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return TSR_RAISE(TSR_ERR_IO, "%s: %s", s->path, strerror(errno));
        }
        if (n == 0) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: ends %zu bytes early at byte %lld", s->path,
                             bytes, (long long)offset);
        }
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return TSR_OK;
}

static tsr_status check_range(const tsri_safetensors *st, const tsri_safetensors_tensor *t,
                              int64_t first, int64_t count)
{
    if (first < 0 || count < 0 || first > t->count - count) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: elements %lld..%lld of tensor %s, which has %lld",
                         st->shards[t->file].path, (long long)first, (long long)(first + count),
                         t->name, (long long)t->count);
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_check_float(const tsri_safetensors *st,
                                        const tsri_safetensors_tensor *t)
{
    if (t->dtype != TSR_F32 && t->dtype != TSR_BF16 && t->dtype != TSR_F16 && t->dtype != TSR_F64) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s is %s, wants F32, BF16, F16 or F64",
                         st->shards[t->file].path, t->name, t->type);
    }
    if (t->twin >= 0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "tensor %s is in %s and in %s, and the index does not say which counts",
                         t->name, st->shards[t->file].path, st->shards[t->twin].path);
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_read_f32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, float *out)
{
    const int64_t size = (int64_t)tsr_dtype_size(t->dtype);

    TSR_TRY(check_range(st, t, first, count));
    TSR_TRY(tsri_safetensors_check_float(st, t));
    while (count > 0) {
        const int64_t n = tsri_min64(count, TSRI_SAFETENSORS_CHUNK_BYTES / size);

        TSR_TRY(tsri_safetensors_read_exact(&st->shards[t->file], t->begin + first * size,
                                            st->chunk, (size_t)(n * size)));
        tsri_widen(st->chunk, t->dtype, n, out);
        out += n;
        first += n;
        count -= n;
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_read_i32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, int32_t *out)
{
    const int64_t size = (int64_t)tsr_dtype_size(t->dtype);

    TSR_TRY(check_range(st, t, first, count));
    if (t->dtype != TSR_I32 && t->dtype != TSR_I64) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s is %s, wants I32 or I64",
                         st->shards[t->file].path, t->name, t->type);
    }
    while (count > 0) {
        const int64_t n = tsri_min64(count, TSRI_SAFETENSORS_CHUNK_BYTES / size);
        const int64_t *wide = st->chunk;

        TSR_TRY(tsri_safetensors_read_exact(&st->shards[t->file], t->begin + first * size,
                                            st->chunk, (size_t)(n * size)));
        if (t->dtype == TSR_I32) {
            memcpy(out, st->chunk, (size_t)n * sizeof(int32_t));
        }
        for (int64_t i = 0; t->dtype == TSR_I64 && i < n; i++) {
            if (wide[i] < INT32_MIN || wide[i] > INT32_MAX) {
                return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s holds %lld, beyond 32 bits",
                                 st->shards[t->file].path, t->name, (long long)wide[i]);
            }
            out[i] = (int32_t)wide[i];
        }
        out += n;
        first += n;
        count -= n;
    }
    return TSR_OK;
}
