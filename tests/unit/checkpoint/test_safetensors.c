/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_safetensors.c
 * Every rule of the format, broken once: status and message; and reading of every type.
 */
#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "support/golden.h"
#include "support/tsr_test.h"

/* One of the few files that a case needs: prefix, header, data_bytes of data. */
static const char *write_raw(const char *name, uint64_t header_bytes, const char *header,
                             const void *data, size_t data_bytes)
{
    const char *path = tsr_test_scratch_path(name);
    unsigned char prefix[8];
    FILE *file = fopen(path, "wb");

    CHECK(file != NULL);
    if (file == NULL) {
        return path;
    }
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)(header_bytes >> 8 * i);
    }
    CHECK_EQ(fwrite(prefix, 1, 8, file), 8);
    CHECK_EQ(fwrite(header, 1, strlen(header), file), strlen(header));
    CHECK_EQ(fwrite(data, 1, data_bytes, file), data_bytes);
    CHECK_EQ(fclose(file), 0);
    return path;
}

static const char *write_file(const char *name, const char *header, const void *data,
                              size_t data_bytes)
{
    return write_raw(name, strlen(header), header, data, data_bytes);
}

static void check_refused(const char *path, tsr_status status, const char *words)
{
    const int64_t live = tsri_alloc_live();
    tsri_safetensors *st = NULL;

    CHECK_EQ(tsri_safetensors_open(path, &st), status);
    CHECK(st == NULL);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
    CHECK_EQ(tsri_alloc_live(), live);
}

static const char zeros[64];

static void check_header(const char *header, size_t data_bytes, const char *words)
{
    check_refused(write_file("bad.safetensors", header, zeros, data_bytes), TSR_ERR_FORMAT, words);
}

static void size_and_header(void)
{
    FILE *file = NULL;

    check_refused(tsr_test_scratch_path("none"), TSR_ERR_IO, "No such file");
    check_refused(write_raw("header.safetensors", 3, "", zeros, 0), TSR_ERR_FORMAT,
                  "header of 3 bytes in a file of 8");
    check_refused(write_raw("header.safetensors", 100000001, "{}", zeros, 8), TSR_ERR_FORMAT,
                  "header of 100000001 bytes");
    check_refused(write_raw("header.safetensors", 0x206e6f6973726576, "https://git-lfs", zeros, 0),
                  TSR_ERR_FORMAT, "a pointer of Git LFS");
    check_refused(write_raw("header.safetensors", UINT64_MAX, "{}", zeros, 8), TSR_ERR_FORMAT,
                  "truncated, or no safetensors");
    check_header("{\"a\"", 0, "bad.safetensors:1:");
    check_header("[]", 0, "header is not a JSON object");
    check_header("{\"a\": 1}", 0, "dtype");
    file = fopen(tsr_test_scratch_path("short.safetensors"), "wb");
    REQUIRE(file != NULL);
    CHECK_EQ(fwrite(zeros, 1, 7, file), 7);
    (void)fclose(file);
    check_refused(tsr_test_scratch_path("short.safetensors"), TSR_ERR_FORMAT,
                  "7 bytes are no safetensors file");
}

static void entries(void)
{
    check_header("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype");
    check_header("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype");
    check_header("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                 "tensor a: extent 0");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4,
                 "tensor a: extent 0");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                 "\"data_offsets\":[0,4]}}",
                 4, "tensor a: extent 1");
    check_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],"
                 "\"data_offsets\":[0,4]}}",
                 4, "tensor a of shape [4611686018427387904]");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
                 "data_offsets wants two integers");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4,
                 "data_offsets wants two integers");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
                 "tensor a lies at bytes -4..0 of 4");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
                 "tensor a lies at bytes 4..0 of 4");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
                 "tensor a of shape [2] in F32 does not fill its 4 bytes");
    check_header("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
                 "tensor a of shape [3] in F4 does not fill its 1 bytes");
}

/* Listed, and refused by who reads them. */
static void foreign_types(void)
{
    static const char header[] =
        "{\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]},"
        "\"f4\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[2,4]},"
        "\"c64\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[4,12]},"
        "\"new\":{\"dtype\":\"Q3\",\"shape\":[5],\"data_offsets\":[12,15]},"
        "\"deep\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[15,19]},"
        "\"low\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[19,23]}}";
    static const char *const names[] = {"f8", "f4", "c64", "new"};
    tsri_safetensors *st = NULL;
    float value = 1.0F;
    char shape[96];

    REQUIRE_OK(tsri_safetensors_open(write_file("foreign.safetensors", header, zeros, 23), &st));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const tsri_safetensors_tensor *t = tsri_safetensors_find(st, names[i]);

        CHECK_EQ(tsri_safetensors_read_f32(st, t, 0, 1, &value), TSR_ERR_FORMAT);
        CHECK(strstr(tsr_error_message(), t->type) != NULL);
        tsr_error_clear();
    }
    CHECK_STR(tsri_safetensors_shape(tsri_safetensors_find(st, "deep"), shape, sizeof(shape)),
              "of 9 dims");
    CHECK_OK(tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "low"), 0, 1, &value));
    CHECK(value == 0.0F);
    tsri_safetensors_close(&st);
}

/* What is no file ends at once; a symbolic link to one is one. */
static void odd_files(void)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const char *path = tsr_test_scratch_path("odd");
    tsri_safetensors *st = NULL;

    (void)unlink(path);
    REQUIRE_EQ(mkfifo(path, 0600), 0);
    check_refused(path, TSR_ERR_IO, "no plain file");
    (void)unlink(path);
    CHECK_EQ(symlink("blob", path), 0);
    check_refused(path, TSR_ERR_IO, "No such file");
    (void)write_file("blob", header, zeros, 4);
    CHECK_OK(tsri_safetensors_open(tsr_test_scratch_path("odd"), &st));
    tsri_safetensors_close(&st);
    (void)unlink(tsr_test_scratch_path("odd"));
    (void)mkdir(tsr_test_scratch_path("folder_of_folder"), 0777);
    (void)mkdir(tsr_test_scratch_path("folder_of_folder/model.safetensors"), 0777);
    check_refused(tsr_test_scratch_path("folder_of_folder"), TSR_ERR_IO, "is a folder");
}

static void truncated_data(void)
{
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
                 "tensor a lies at bytes 0..8 of 7: the file is truncated or inconsistent");
}

static void tiling(void)
{
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
                 "a hole at byte 0: next tensor begins at 4");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
                 12, "a hole at byte 4: next tensor begins at 8");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
                 12, "an overlap at byte 8: next tensor begins at 4");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                 4, "an overlap at byte 4");
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
                 "tensors cover 4 of 8 bytes");
    check_header("{}", 4, "tensors cover 0 of 4 bytes");
}

static void duplicate_keys(void)
{
    static const char same[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    tsri_safetensors *st = NULL;

    REQUIRE_OK(tsri_safetensors_open(write_file("same.safetensors", same, zeros, 4), &st));
    CHECK_EQ(tsri_safetensors_count(st), 1);
    tsri_safetensors_close(&st);
    check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                 "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                 8, "a hole at byte 0");
}

static void odd_but_legal(void)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[4,4]}}   ";
    static const float one = 1.5F;
    char data[7] = {0};
    tsri_safetensors *st = NULL;
    float value = 0.0F;

    memcpy(data, &one, sizeof(one));
    REQUIRE_OK(tsri_safetensors_open(write_file("odd.safetensors", header, data, 7), &st));
    CHECK_EQ(tsri_safetensors_count(st), 3);
    CHECK_STR(tsri_safetensors_at(st, 0)->name, "a");
    CHECK_EQ(tsri_safetensors_find(st, "none")->count, 0);
    CHECK_EQ(tsri_safetensors_find(st, "b")->ndim, 0);
    CHECK_OK(tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "b"), 0, 1, &value));
    CHECK(value == one);
    CHECK(tsri_safetensors_find(st, "c") == NULL);
    CHECK_STATUS(TSR_ERR_FORMAT,
                 tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "a"), 0, 1, &value));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "b"), 0, 2, &value));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "b"), -1, 1, &value));
    tsri_safetensors_close(&st);
    CHECK(st == NULL);
    tsri_safetensors_close(&st);
}

static void types(void)
{
    static const char header[] =
        "{\"f64\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[16,32]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[32,40]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[8],\"data_offsets\":[40,56]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[56,62]}}";
    static const double f64[2] = {0.1, -1e300};
    static const int64_t i64[2] = {-7, 1LL << 31};
    static const int32_t i32[2] = {INT32_MIN, 5};
    /* 1, -2, largest, smallest normal, smallest, -0, infinity, a NaN */
    static const uint16_t f16[8] = {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x8000, 0x7c00, 0x7e01};
    static const float f16_want[7] = {1.0F,     -2.0F, 65504.0F,       0x1p-14F,
                                      0x1p-24F, -0.0F, (float)INFINITY};
    static const uint16_t bf16[3] = {0x3f80, 0xc049, 0x7f80};
    char data[62];
    float out[8];
    int32_t ints[2];
    tsri_safetensors *st = NULL;

    memcpy(data, f64, 16);
    memcpy(data + 16, i64, 16);
    memcpy(data + 32, i32, 8);
    memcpy(data + 40, f16, 16);
    memcpy(data + 56, bf16, 6);
    REQUIRE_OK(tsri_safetensors_open(write_file("types.safetensors", header, data, 62), &st));
    CHECK_OK(tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "f64"), 0, 2, out));
    CHECK(out[0] == 0.1F);
    CHECK(isinf(out[1]) && out[1] < 0.0F);
    CHECK_OK(tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "f16"), 0, 8, out));
    for (int i = 0; i < 7; i++) {
        CHECK(out[i] == f16_want[i] && signbit(out[i]) == signbit(f16_want[i]));
    }
    CHECK(isnan(out[7]));
    CHECK_OK(tsri_safetensors_read_f32(st, tsri_safetensors_find(st, "bf16"), 1, 2, out));
    CHECK(out[0] == -3.140625F && isinf(out[1]));
    CHECK_OK(tsri_safetensors_read_i32(st, tsri_safetensors_find(st, "i32"), 0, 2, ints));
    CHECK_EQ(ints[0], INT32_MIN);
    CHECK_OK(tsri_safetensors_read_i32(st, tsri_safetensors_find(st, "i64"), 0, 1, ints));
    CHECK_EQ(ints[0], -7);
    CHECK_EQ(tsri_safetensors_read_i32(st, tsri_safetensors_find(st, "i64"), 0, 2, ints),
             TSR_ERR_FORMAT);
    CHECK(strstr(tsr_error_message(), "holds 2147483648, beyond 32 bits") != NULL);
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_FORMAT,
                 tsri_safetensors_read_i32(st, tsri_safetensors_find(st, "f64"), 0, 1, ints));
    tsri_safetensors_close(&st);
}

/* ---- folders ---- */

static const char one_a[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
static const char one_b[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";

static void write_index(const char *text)
{
    FILE *file = fopen(tsr_test_scratch_path("folder/model.safetensors.index.json"), "wb");

    REQUIRE(file != NULL);
    CHECK_EQ(fwrite(text, 1, strlen(text), file), strlen(text));
    (void)fclose(file);
}

static void check_index(const char *text, tsr_status status, const char *words)
{
    write_index(text);
    check_refused(tsr_test_scratch_path("folder"), status, words);
}

static void open_index(const char *text, tsri_safetensors **out)
{
    write_index(text);
    CHECK_OK(tsri_safetensors_open(tsr_test_scratch_path("folder"), out));
}

static void folders(void)
{
    tsri_safetensors *st = NULL;

    (void)mkdir(tsr_test_scratch_path("folder"), 0777);
    check_refused(tsr_test_scratch_path("folder"), TSR_ERR_IO,
                  "holds neither model.safetensors nor model.safetensors.index.json");
    (void)write_file("folder/1.safetensors", one_a, zeros, 4);
    (void)write_file("folder/2.safetensors", one_b, zeros, 4);
    (void)mkdir(tsr_test_scratch_path("folder/sub"), 0777);
    (void)write_file("folder/sub/2.safetensors", one_b, zeros, 4);
    check_index("{}", TSR_ERR_FORMAT, "weight_map");
    check_index("{\"weight_map\":{\"a\":1}}", TSR_ERR_FORMAT,
                "tensor a wants the name of a file in the folder");
    check_index("{\"weight_map\":{\"a\":\"../1.safetensors\"}}", TSR_ERR_FORMAT,
                "tensor a wants the name of a file in the folder");
    check_index("{\"weight_map\":{\"a\":\"/1.safetensors\"}}", TSR_ERR_FORMAT,
                "tensor a wants the name of a file in the folder");
    check_index("{\"weight_map\":{\"a\":\"none.safetensors\"}}", TSR_ERR_IO, "none.safetensors");
    /* The files count; where each tensor is they say themselves. */
    open_index("{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"1.safetensors\"}}", &st);
    REQUIRE(st != NULL);
    CHECK_EQ(tsri_safetensors_count(st), 2);
    tsri_safetensors_close(&st);
    open_index("{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"1.safetensors\","
               "\"b\":\"./sub//./2.safetensors\"}}",
               &st);
    REQUIRE(st != NULL);
    CHECK_EQ(tsri_safetensors_count(st), 2);
    CHECK_STR(tsri_safetensors_source(st), "2 files of model.safetensors.index.json");
    CHECK(tsri_safetensors_find(st, "a")->file != tsri_safetensors_find(st, "b")->file);
    tsri_safetensors_close(&st);
}

/* Two files hold a: 1.0 is in the first, 3.0 in the last. */
static void twins(void)
{
    static const char *const texts[] = {
        "{\"weight_map\":{\"x\":\"1.safetensors\",\"a\":\"3.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"./1.safetensors\",\"x\":\"3.safetensors\"}}",
        "{\"weight_map\":{\"y\":\"1.safetensors\",\"x\":\"3.safetensors\"}}",
    };
    const float values[] = {1.0F, 3.0F};

    (void)mkdir(tsr_test_scratch_path("folder"), 0777);
    (void)write_file("folder/1.safetensors", one_a, &values[0], 4);
    (void)write_file("folder/3.safetensors", one_a, &values[1], 4);
    for (int i = 0; i < 3; i++) {
        tsri_safetensors *st = NULL;
        const tsri_safetensors_tensor *t = NULL;
        float value = 0.0F;

        open_index(texts[i], &st);
        REQUIRE(st != NULL);
        t = tsri_safetensors_find(st, "a");
        REQUIRE(t != NULL);
        if (i < 2) {
            CHECK_OK(tsri_safetensors_read_f32(st, t, 0, 1, &value));
            CHECK(value == values[1 - i]);
        } else {
            CHECK_EQ(tsri_safetensors_read_f32(st, t, 0, 1, &value), TSR_ERR_FORMAT);
            CHECK(strstr(tsr_error_message(), "the index does not say which") != NULL);
            tsr_error_clear();
        }
        CHECK(strstr(tsri_safetensors_source(st), "1 tensor") != NULL);
        tsri_safetensors_close(&st);
    }
}

/* model.safetensors counts, and an index whose files are gone is not looked at. */
static void single_file(void)
{
    tsri_safetensors *st = NULL;

    (void)mkdir(tsr_test_scratch_path("folder"), 0777);
    write_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    (void)write_file("folder/model.safetensors", one_b, zeros, 4);
    CHECK_OK(tsri_safetensors_open(tsr_test_scratch_path("folder"), &st));
    REQUIRE(st != NULL);
    CHECK(tsri_safetensors_find(st, "b") != NULL);
    CHECK_STR(tsri_safetensors_source(st),
              "model.safetensors, not model.safetensors.index.json beside it");
    tsri_safetensors_close(&st);
    (void)unlink(tsr_test_scratch_path("folder/model.safetensors"));
    CHECK_EQ(symlink("nowhere", tsr_test_scratch_path("folder/model.safetensors")), 0);
    check_refused(tsr_test_scratch_path("folder"), TSR_ERR_IO, "it is a link");
    (void)unlink(tsr_test_scratch_path("folder/model.safetensors"));
}

/* ---- the golden files, against another reader ---- */

static void check_same(const char *name)
{
    const char *path = tsr_test_golden_path(name);
    tsr_golden *golden = tsr_golden_open(path);
    tsri_safetensors *st = NULL;
    float value[257];

    REQUIRE(golden != NULL);
    REQUIRE_OK(tsri_safetensors_open(path, &st));
    CHECK(tsri_safetensors_count(st) > 0);
    for (int i = 0; i < tsri_safetensors_count(st); i++) {
        const tsri_safetensors_tensor *t = tsri_safetensors_at(st, i);
        const void *want = tsr_golden_tensor(golden, t->name, NULL, NULL, NULL);
        const int64_t n = tsri_min64(t->count, 257);

        REQUIRE_EQ(tsr_golden_count(golden, t->name), t->count);
        if (t->dtype == TSR_F32) {
            REQUIRE_OK(tsri_safetensors_read_f32(st, t, t->count - n, n, value));
            CHECK_EQ(memcmp(value, (const float *)want + (t->count - n), (size_t)n * 4), 0);
        }
    }
    tsri_safetensors_close(&st);
    tsr_golden_close(golden);
}

static void goldens(void)
{
    static const char *const names[] = {
        "attention/attention.safetensors",
        "rope/rope.safetensors",
        "loss/cross_entropy.safetensors",
        "train/gpt2-tiny/model.safetensors",
        "train/gpt2-tiny/expect.safetensors",
        "train/gpt2-tiny/tokens.safetensors",
        "train/llama-accum3/model.safetensors",
        "train/llama-accum3/expect.safetensors",
        "train/llama-accum3/tokens.safetensors",
        "train/llama-tied/model.safetensors",
        "train/llama-tied/expect.safetensors",
        "train/llama-tied/tokens.safetensors",
        "train/llama-sharded-file/model-00001-of-00003.safetensors",
        "train/llama-sharded-file/model-00002-of-00003.safetensors",
        "train/llama-sharded-file/model-00003-of-00003.safetensors",
    };
    tsri_safetensors *st = NULL;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_same(names[i]);
    }
    REQUIRE_OK(tsri_safetensors_open(tsr_test_golden_path("train/llama-sharded-file"), &st));
    CHECK_EQ(tsri_safetensors_count(st), 21); /* 2 blocks of 9, embedding, norm, head */
    tsri_safetensors_close(&st);
}

/* Each allocation fails once. */
static void out_of_memory(void)
{
    const char *path = tsr_test_golden_path("train/llama-sharded-file");
    const int64_t live = tsri_alloc_live();
    tsri_safetensors *st = NULL;
    tsr_status status = TSR_ERR_NOMEM;

    for (int n = 1; status != TSR_OK && n < 1000; n++) {
        tsri_alloc_fail_at(n);
        status = tsri_safetensors_open(path, &st);
        tsri_alloc_fail_at(0);
        if (status != TSR_OK) {
            CHECK_EQ(status, TSR_ERR_NOMEM);
            CHECK_EQ(tsri_alloc_live(), live);
            tsr_error_clear();
        }
    }
    CHECK_OK(status);
    tsri_safetensors_close(&st);
    CHECK_EQ(tsri_alloc_live(), live);
}

const tsr_test_case tsr_test_cases[] = {
    {"size_and_header", size_and_header},
    {"entries", entries},
    {"foreign_types", foreign_types},
    {"odd_files", odd_files},
    {"truncated_data", truncated_data},
    {"tiling", tiling},
    {"duplicate_keys", duplicate_keys},
    {"odd_but_legal", odd_but_legal},
    {"types", types},
    {"folders", folders},
    {"twins", twins},
    {"single_file", single_file},
    {"goldens", goldens},
    {"out_of_memory", out_of_memory},
    {NULL, NULL},
};
