/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The probe, twice: how far two of them are apart says how far one can be trusted. */
#include "bench_priv.h"

#include "base/base.h"
#include "base/file.h"

#include <string.h>

static tsr_status keep_text(const tsri_text *text, tsri_bench_probe_report *out)
{
    TSR_TRY(tsri_text_status(text));
    if (text->length >= TSRI_BENCH_CLUSTER_BYTES) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "a cluster file of %d bytes, at most %d", text->length,
                         TSRI_BENCH_CLUSTER_BYTES - 1);
    }
    memcpy(out->text, text->data, (size_t)text->length + 1);
    out->hash = tsri_hash(out->text, (size_t)text->length, 0);
    return TSR_OK;
}

static tsr_status probe_twice(tsr_world *world, const tsri_job_options *job, double seconds,
                              const char *path, tsri_bench_probe_report *out)
{
    tsri_text text = {0};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_probe(world, job, seconds / 2.0, &out->first));
    TSR_TRY(tsri_probe(world, job, seconds / 2.0, &out->second));
    out->factor = tsri_probe_factor(&out->first, &out->second, &out->apart);
    tsri_probe_text(&out->first, tsr_world_host(world, 0), &text);
    status = keep_text(&text, out);
    tsri_text_free(&text);
    TSR_TRY(status);
    if (path != NULL && tsr_world_is_speaker(world)) {
        TSR_TRY(tsri_file_write(path, out->text, strlen(out->text)));
    }
    return TSR_OK;
}

tsr_status tsri_bench_probe(tsr_world *world, const tsri_bench_step_options *options, int threads,
                            double seconds, const char *path, tsri_bench_probe_report *out)
{
    tsri_mesh_text mesh;
    tsri_job_options job;
    tsr_status status = tsri_bench_step_job(options, tsr_world_size(world), &mesh, &job);

    if (status == TSR_OK) {
        job.dry_threads = threads;
        status = probe_twice(world, &job, seconds, path, out);
    }
    return tsri_world_settle(world, status);
}
