/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading a configuration: defaults, then the file, then words of the command line, each through
 * the row of its key. What one key alone cannot tell is checked at the end. */
#include "config/config.h"

#include "base/base.h"

#include <string.h>

enum {
    PATH_BYTES = 256,
    PLACE_BYTES = 512
};

static void *slot_of(tsri_config *config, const tsri_option *option)
{
    return (char *)config + option->offset;
}

/* ---- keys ---- */

static tsr_status read_key(tsri_config *config, int row, const tsri_option_place *place,
                           const tsri_yaml_node *node)
{
    int count = 0;
    const tsri_option *option = &tsri_options(&count)[row];

    TSR_TRY(tsri_option_read(option, place, node, slot_of(config, option)));
    config->place[row] = *place;
    config->is_set[row] = true;
    return TSR_OK;
}

static bool is_section(const char *name)
{
    const size_t length = strlen(name);
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        if (strncmp(table[i].path, name, length) == 0 && table[i].path[length] == '.') {
            return true;
        }
    }
    return false;
}

static tsr_status read_section(tsri_config *config, const char *file, const tsri_yaml_node *section)
{
    const tsri_option_place at = {file, section->line};
    char text[PLACE_BYTES];

    if (section->kind == TSRI_YAML_SCALAR && section->text[0] == '\0') {
        return TSR_OK; /* all its keys are commented out */
    }
    if (section->kind != TSRI_YAML_MAP) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %s, wants keys with values",
                         tsri_option_place_text(&at, text, sizeof(text)), section->key,
                         section->kind == TSRI_YAML_LIST ? "a list" : "a value");
    }
    for (int i = 0; i < section->count; i++) {
        const tsri_yaml_node *node = &section->children[i];
        const tsri_option_place place = {file, node->line};
        char path[PATH_BYTES];
        int row = -1;

        (void)snprintf(path, sizeof(path), "%s.%s", section->key, node->key);
        row = tsri_option_find(path);
        if (row < 0) {
            return tsri_option_raise_unknown(&place, path);
        }
        TSR_TRY(read_key(config, row, &place, node));
    }
    return TSR_OK;
}

static tsr_status read_root(tsri_config *config, const char *file, const tsri_yaml_node *root)
{
    if (root->kind != TSRI_YAML_MAP) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: wants sections such as train: {steps: 100}", file,
                         root->line);
    }
    for (int i = 0; i < root->count; i++) {
        const tsri_yaml_node *node = &root->children[i];
        const tsri_option_place place = {file, node->line};
        const int row = tsri_option_find(node->key);

        if (row >= 0) {
            TSR_TRY(read_key(config, row, &place, node));
        } else if (is_section(node->key)) {
            TSR_TRY(read_section(config, file, node));
        } else {
            return tsri_option_raise_unknown(&place, node->key);
        }
    }
    return TSR_OK;
}

static tsr_status read_file(tsri_config *config, const char *file)
{
    tsri_yaml_node *root = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_strdup(file, &config->file));
    TSR_TRY(tsri_yaml_load_file(file, &root));
    TSR_TRY_GOTO(status, read_root(config, config->file, root), free_root);
free_root:
    tsri_yaml_free(&root);
    return status;
}

/* ---- the command line ---- */

/* "mesh.tp=2" changes one axis, or adds it. */
static tsr_status set_axis(tsri_config *config, const char *name, const tsri_yaml_node *value)
{
    const tsri_option_place place = {0};
    const int row = tsri_option_find("mesh");
    tsri_mesh_text old = config->mesh;
    tsri_yaml_node axes[TSR_MESH_MAX_AXES + 1];
    char numbers[TSR_MESH_MAX_AXES][16];
    char key[PATH_BYTES];
    int count = 0;
    bool found = false;
    tsri_yaml_node map = {.kind = TSRI_YAML_MAP, .children = axes};

    (void)snprintf(key, sizeof(key), "%s", name);
    for (int i = 0; i < old.count; i++) {
        const bool same = strcmp(old.names[i], name) == 0;

        (void)snprintf(numbers[i], sizeof(numbers[i]), "%d", old.axes[i].size);
        axes[count] = (tsri_yaml_node){.kind = TSRI_YAML_SCALAR, .text = numbers[i]};
        if (same) {
            axes[count] = *value;
        }
        axes[count++].key = old.names[i];
        found = found || same;
    }
    if (!found) {
        axes[count] = *value;
        axes[count++].key = key;
    }
    map.count = count;
    TSR_TRY(read_key(config, row, &place, &map));
    return TSR_OK;
}

static tsr_status set_word(tsri_config *config, const char *path, const tsri_yaml_node *value,
                           bool *seen)
{
    const tsri_option_place place = {0};
    const int row = tsri_option_find(path);

    if (row >= 0 && seen[row]) {
        return TSR_RAISE(TSR_ERR_INVALID, "command line: %s is given twice", path);
    }
    if (row >= 0) {
        seen[row] = true;
        TSR_TRY(read_key(config, row, &place, value));
        return TSR_OK;
    }
    if (strncmp(path, "mesh.", 5) == 0) {
        TSR_TRY(set_axis(config, path + 5, value));
        return TSR_OK;
    }
    if (is_section(path) && value->kind == TSRI_YAML_MAP) {
        tsri_yaml_node section = *value;
        char key[PATH_BYTES];

        (void)snprintf(key, sizeof(key), "%s", path);
        section.key = key;
        TSR_TRY(read_section(config, NULL, &section));
        return TSR_OK;
    }
    if (is_section(path)) {
        return TSR_RAISE(TSR_ERR_INVALID, "command line: %s is a section, wants %s.KEY=value", path,
                         path);
    }
    return tsri_option_raise_unknown(&place, path);
}

static tsr_status read_word(tsri_config *config, const char *word, bool *seen)
{
    const char *equals = strchr(word, '=');
    char path[PATH_BYTES];
    tsri_yaml_node *root = NULL;
    tsr_status status = TSR_OK;

    if (equals == NULL || equals == word || equals - word >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "command line: \"%.80s\" is not key=value, such as train.steps=100", word);
    }
    (void)snprintf(path, sizeof(path), "%.*s", (int)(equals - word), word);
    if (equals[1] == '\0') {
        const tsri_yaml_node empty = {.kind = TSRI_YAML_SCALAR, .text = path + strlen(path)};

        TSR_TRY(set_word(config, path, &empty, seen));
        return TSR_OK;
    }
    TSR_TRY(tsri_yaml_parse(equals + 1, strlen(equals + 1), "command line", &root));
    TSR_TRY_GOTO(status, set_word(config, path, root, seen), free_root);
free_root:
    tsri_yaml_free(&root);
    return status;
}

/* ---- load ---- */

static tsr_status set_defaults(tsri_config *config)
{
    static const tsri_option_place place = {"defaults", 0};
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        const char *text = table[i].fallback;
        char nothing[1] = "";
        tsri_yaml_node empty = {.kind = TSRI_YAML_SCALAR, .text = nothing};
        tsri_yaml_node *root = NULL;
        tsr_status status = TSR_OK;

        if (*text != '\0') {
            TSR_TRY(tsri_yaml_parse(text, strlen(text), table[i].path, &root));
        }
        status = tsri_option_read(&table[i], &place, root != NULL ? root : &empty,
                                  slot_of(config, &table[i]));
        tsri_yaml_free(&root);
        TSR_TRY(status);
        config->place[i] = place;
    }
    return TSR_OK;
}

static tsr_status check_together(const tsri_config *config)
{
    const tsri_config_train *t = &config->train;
    const int row = tsri_option_find("train.micro_batches");
    char text[PLACE_BYTES];

    if (t->batch % t->micro_batches != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s: train.batch is %lld, which %lld micro-batches do not divide",
                         tsri_option_place_text(&config->place[row], text, sizeof(text)),
                         (long long)t->batch, (long long)t->micro_batches);
    }
    if (t->min_lr > t->lr) {
        return TSR_RAISE(TSR_ERR_INVALID, "train.min_lr is %g, above train.lr, which is %g",
                         t->min_lr, t->lr);
    }
    if (tsri_config_offloads(&config->parallel, "activations") &&
        config->parallel.activation_checkpointing == 0) {
        return TSR_RAISE(
            TSR_ERR_INVALID,
            "%s: parallel.offload names activations, but parallel.activation_checkpointing is "
            "none; wants block or selective",
            tsri_option_place_text(&config->place[tsri_option_find("parallel.offload")], text,
                                   sizeof(text)));
    }
    if (config->parallel.activation_keep.count > 0 &&
        config->parallel.activation_checkpointing == 0) {
        return TSR_RAISE(
            TSR_ERR_INVALID,
            "%s: parallel.activation_keep names operations, but parallel.activation_checkpointing "
            "is none; wants block or selective",
            tsri_option_place_text(&config->place[tsri_option_find("parallel.activation_keep")],
                                   text, sizeof(text)));
    }
    if (config->run.dir[0] == '\0') {
        return TSR_RAISE(TSR_ERR_INVALID, "run.dir is empty, wants a folder");
    }
    if (config->optim.kind == 0 && config->optim.momentum > 0.0) {
        return TSR_RAISE(TSR_ERR_INVALID, "optim.momentum is %g, but adamw has none; see betas",
                         config->optim.momentum);
    }
    if (config->optim.nesterov && config->optim.momentum <= 0.0) {
        return TSR_RAISE(TSR_ERR_INVALID, "optim.nesterov wants optim.momentum above 0");
    }
    return TSR_OK;
}

static void fill_groups(tsri_config *config)
{
    for (int i = 0; i < config->optim.groups.count; i++) {
        const tsri_option_group *group = &config->optim.groups.at[i];

        config->groups[i] = (tsr_optimizer_group){.match = group->match,
                                                  .lr_scale = group->lr_scale,
                                                  .weight_decay = group->weight_decay,
                                                  .set_weight_decay = group->has_weight_decay};
    }
}

static tsr_status read_all(tsri_config *config, const char *file, const char *const *words,
                           int count)
{
    bool seen[TSRI_CONFIG_MAX_OPTIONS] = {false};

    TSR_TRY(set_defaults(config));
    if (file != NULL) {
        TSR_TRY(read_file(config, file));
    }
    for (int i = 0; i < count; i++) {
        TSR_TRY(read_word(config, words[i], seen));
    }
    TSR_TRY(check_together(config));
    TSR_TRY(tsri_config_read_model(config));
    fill_groups(config);
    return TSR_OK;
}

tsr_status tsri_config_load(const char *file, const char *const *words, int count,
                            tsri_config **out)
{
    tsri_config *config = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*config), &config));
    TSR_TRY_GOTO(status, read_all(config, file, words, count), free_config);
    *out = config;
    return TSR_OK;
free_config:
    tsri_config_free(&config);
    return status;
}

void tsri_config_free(tsri_config **pointer)
{
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; *pointer != NULL && i < count; i++) {
        tsri_option_drop(&table[i], slot_of(*pointer, &table[i]));
    }
    if (*pointer != NULL) {
        tsri_free(&(*pointer)->file);
    }
    tsri_free(pointer);
}

/* ---- back ---- */

void tsri_config_print(const tsri_config *config, tsri_text *text)
{
    const char *section = "";
    size_t length = 0;
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        const tsri_option *option = &table[i];
        const char *dot = strchr(option->path, '.');

        if (dot == NULL) {
            tsri_text_add(text, "%s: ", option->path);
        } else if ((size_t)(dot - option->path) != length ||
                   strncmp(option->path, section, length) != 0) {
            section = option->path;
            length = (size_t)(dot - option->path);
            tsri_text_add(text, "%.*s:\n", (int)length, section);
        }
        if (option->quiet && !config->is_set[i]) {
            continue;
        }
        if (dot != NULL) {
            tsri_text_add(text, "  %s: ", dot + 1);
        }
        tsri_option_print(option, (const char *)config + option->offset, text);
        tsri_text_add(text, "\n");
    }
}

bool tsri_config_offloads(const tsri_config_parallel *p, const char *what)
{
    for (int i = 0; i < p->offload.count; i++) {
        if (strcmp(p->offload.at[i], what) == 0) {
            return true;
        }
    }
    return false;
}
