/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main_fuzz.c
 * Runs a libFuzzer target as a plain test: over its corpus, and over what can be made from it.
 *
 * Each file is given whole, cut short at every length up to a limit, and with a few bytes changed
 * by a seeded generator. The target may reject anything, but must not crash, hang or leak.
 */
#include "base/base.h"
#include "base/rng.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CUT_LIMIT = 600,
    MUTATIONS = 400,
    FILE_LIMIT = 1 << 20
};

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* An exact copy on the heap, so that a read past the end is seen by the sanitizer. */
static void give(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);

    if (copy == NULL) {
        abort();
    }
    memcpy(copy, data, bytes);
    (void)LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static void give_variants(uint8_t *data, size_t bytes, uint64_t key)
{
    uint64_t index = 0;

    give(data, bytes);
    for (size_t cut = 0; cut < bytes && cut < CUT_LIMIT; cut++) {
        give(data, cut);
    }
    for (int i = 0; i < MUTATIONS && bytes > 0; i++) {
        size_t where[3];
        uint8_t before[3];

        for (int k = 0; k < 3; k++) {
            where[k] = tsri_rng_word(key, index++) % bytes;
            before[k] = data[where[k]];
            data[where[k]] = (uint8_t)tsri_rng_word(key, index++);
        }
        give(data, bytes);
        for (int k = 2; k >= 0; k--) {
            data[where[k]] = before[k];
        }
    }
}

static bool run_file(const char *folder, const char *name)
{
    char path[1024];
    uint8_t *data = malloc(FILE_LIMIT);
    FILE *file = NULL;
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "rb");
    if (data == NULL || file == NULL) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        free(data);
        return false;
    }
    bytes = fread(data, 1, FILE_LIMIT, file);
    (void)fclose(file);
    give_variants(data, bytes, tsri_hash_text(name));
    free(data);
    return true;
}

int main(int argc, char **argv)
{
    int passed = 0;
    int failed = 0;
    DIR *corpus = argc > 1 ? opendir(argv[1]) : NULL;

    if (corpus == NULL) {
        (void)fprintf(stderr, "wants the folder of the corpus\n");
        return 1;
    }
    (void)alarm(300);
    for (const struct dirent *entry = readdir(corpus); entry != NULL; entry = readdir(corpus)) {
        if (entry->d_name[0] != '.') {
            bool ran = run_file(argv[1], entry->d_name);
            passed += ran;
            failed += !ran;
        }
    }
    (void)closedir(corpus);
    if (tsri_alloc_live() != 0) {
        (void)fprintf(stderr, "%lld allocations left\n", (long long)tsri_alloc_live());
        failed++;
    }
    (void)printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0 ? 1 : 0;
}
