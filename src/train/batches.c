/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* This rank's rows of the text of a run, batch by batch. */
#include "train_priv.h"

#include "base/base.h"

tsr_status tsri_batches_open(const tsri_config *config, train_batches *batches)
{
    const int64_t vocab = config->spec.vocab;

    if (vocab < 256) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "data.kind text has 256 tokens, the bytes, but the model's vocabulary has "
                         "%lld",
                         (long long)vocab);
    }
    TSR_TRY(tsri_data_open(config->data.path, config->train.seq, (uint64_t)config->train.seed,
                           &batches->data));
    batches->batch = config->train.batch;
    batches->seq = config->train.seq;
    return TSR_OK;
}

tsr_status tsri_batches_prepare(train_batches *batches, const tsri_job *job)
{
    const size_t tokens = (size_t)(job->row_count * batches->seq);

    TSR_TRY(tsri_alloc(tokens, sizeof(*batches->ids), &batches->ids));
    TSR_TRY(tsri_alloc(tokens, sizeof(*batches->labels), &batches->labels));
    return TSR_OK;
}

tsr_status tsri_batches_write(train_batches *batches, tsri_job *job, int64_t step)
{
    const int64_t part = batches->batch / job->options.micro_batches;

    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        const int64_t first = step * batches->batch + micro * part + job->row_begin;

        TSR_TRY(
            tsri_data_read(batches->data, first, job->row_count, batches->ids, batches->labels));
        TSR_TRY(tsri_job_write_batch(job, micro, batches->ids, batches->labels));
    }
    return TSR_OK;
}

void tsri_batches_close(train_batches *batches)
{
    tsri_data_close(&batches->data);
    tsri_free(&batches->ids);
    tsri_free(&batches->labels);
}
