/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Which files a folder's weights are. Where model.safetensors is, an index beside it belongs to
 * older weights or to the same, cut up: it is not looked at. */
#include "checkpoint/safetensors_priv.h"

#include "base/base.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    PATH_BYTES = TSRI_SAFETENSORS_PATH_BYTES
};

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static tsr_status join_path(const char *folder, const char *name, char *out)
{
    const int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    if (n < 0 || n >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path %s/%s is longer than %d", folder, name,
                         PATH_BYTES - 1);
    }
    return TSR_OK;
}

/* A link that leads nowhere is there: what it stands for is wanted, and missing. */
static bool exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

/* An index being read: the shards, by the names that its map gives them. */
typedef struct index_state {
    const char *folder, *path;
    json_t *map;   /* tensor -> file, as written */
    json_t *files; /* path in the folder, cleaned -> number of the shard */
} index_state;

/* name without "." and empty parts, so that each file has one name; false: it leaves the folder. */
static bool clean_name(const char *name, char *out)
{
    size_t used = 0;

    if (name[0] == '/' || strlen(name) >= PATH_BYTES) {
        return false;
    }
    while (*name != '\0') {
        const size_t length = strcspn(name, "/");

        if (length == 2 && strncmp(name, "..", 2) == 0) {
            return false;
        }
        if (length > 0 && !(length == 1 && name[0] == '.')) {
            used += (size_t)snprintf(out + used, PATH_BYTES - used, "%s%.*s", used > 0 ? "/" : "",
                                     (int)length, name);
        }
        name += length + (name[length] == '/' ? 1 : 0);
    }
    return used > 0;
}

static tsr_status add_index_file(tsri_safetensors *st, index_state *s, const char *tensor,
                                 const char *file)
{
    char name[PATH_BYTES];
    char path[PATH_BYTES];

    if (file == NULL || !clean_name(file, name)) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s wants the name of a file in the folder",
                         s->path, tensor);
    }
    if (json_object_get(s->files, name) != NULL) {
        return TSR_OK;
    }
    TSR_TRY(join_path(s->folder, name, path));
    if (!exists(path)) {
        return TSR_RAISE(TSR_ERR_IO, "%s names %s, which is not there", s->path, path);
    }
    if (json_object_set_new(s->files, name, json_integer(st->shard_count)) != 0) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the names of shards");
    }
    TSR_TRY(tsri_safetensors_add_file(st, path));
    return TSR_OK;
}

static int chosen_shard(void *context, const char *name)
{
    const index_state *s = context;
    const char *file = json_string_value(json_object_get(s->map, name));
    char clean[PATH_BYTES];

    if (file == NULL || !clean_name(file, clean)) {
        return -1;
    }
    return (int)json_integer_value(json_object_get(s->files, clean));
}

static tsr_status add_index_files(tsri_safetensors *st, index_state *s)
{
    json_t *value = NULL;
    const char *name = NULL;
    int dropped = 0;
    int n = 0;

    json_object_foreach(s->map, name, value)
    {
        TSR_TRY(add_index_file(st, s, name, json_string_value(value)));
    }
    tsri_safetensors_sort(st, chosen_shard, s, &dropped);
    n = snprintf(st->source, sizeof(st->source), "%d file%s of %s", st->shard_count,
                 st->shard_count == 1 ? "" : "s", index_name);
    if (dropped > 0) {
        (void)snprintf(st->source + n, sizeof(st->source) - (size_t)n,
                       ", %d tensor%s in more than one of them", dropped, dropped == 1 ? "" : "s");
    }
    return TSR_OK;
}

static tsr_status add_index(tsri_safetensors *st, const char *folder, const char *path)
{
    index_state s = {.folder = folder, .path = path};
    json_t *index = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_json_load_loose(path, &index, NULL));
    TSR_TRY_GOTO(status, tsri_json_object(index, "weight_map", path, &s.map), free_index);
    s.files = json_object();
    if (s.files == NULL) {
        status = TSR_RAISE(TSR_ERR_NOMEM, "no memory for the names of shards");
        goto free_index;
    }
    TSR_TRY_GOTO(status, add_index_files(st, &s), free_index);
free_index:
    json_decref(s.files);
    json_decref(index);
    return status;
}

static tsr_status raise_nothing(const char *folder)
{
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "consolidated.safetensors", "consolidated.00.pth",
                                         "model-00001-of-00002.safetensors"};
    char path[PATH_BYTES];

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        TSR_TRY(join_path(folder, others[i], path));
        if (exists(path)) {
            return TSR_RAISE(TSR_ERR_IO,
                             "%s: holds neither %s nor %s; what it holds, %s, is not read: save it "
                             "as safetensors with transformers' save_pretrained",
                             folder, single_name, index_name, others[i]);
        }
    }
    return TSR_RAISE(TSR_ERR_IO, "%s: holds neither %s nor %s", folder, single_name, index_name);
}

tsr_status tsri_safetensors_add_folder(tsri_safetensors *st, const char *folder)
{
    char single[PATH_BYTES];
    char index[PATH_BYTES];
    int dropped = 0;

    TSR_TRY(join_path(folder, single_name, single));
    TSR_TRY(join_path(folder, index_name, index));
    if (!exists(single)) {
        if (!exists(index)) {
            return raise_nothing(folder);
        }
        TSR_TRY(add_index(st, folder, index));
        return TSR_OK;
    }
    (void)snprintf(st->source, sizeof(st->source), "%s%s%s%s", single_name,
                   exists(index) ? ", not " : "", exists(index) ? index_name : "",
                   exists(index) ? " beside it" : "");
    TSR_TRY(tsri_safetensors_add_file(st, single));
    tsri_safetensors_sort(st, NULL, NULL, &dropped);
    return TSR_OK;
}
