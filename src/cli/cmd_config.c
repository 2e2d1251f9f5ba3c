/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_config.c
 * `tessera config`: the keys of a configuration, explained from the table that reads them.
 */
#include "base/base.h"
#include "base/json.h"

#include <string.h>

#include "cli/commands.h"
#include "config/options.h"

enum {
    TEXT_BYTES = 256
};

static const tsri_cli_option options[] = {
    {"--json", NULL, "print the keys as JSON"},
    {NULL, NULL, NULL},
};

/* Is path the key or section called name (NULL: every key is)? */
static bool is_asked(const char *path, const char *name)
{
    const size_t length = name != NULL ? strlen(name) : 0;

    return name == NULL ||
           (strncmp(path, name, length) == 0 && (path[length] == '\0' || path[length] == '.'));
}

static tsr_status check_config(const tsri_cli *cli)
{
    const tsri_option_place place = {0};
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    for (int i = 0; i < count; i++) {
        if (cli->word_count == 0 || is_asked(table[i].path, cli->words[0])) {
            return TSR_OK;
        }
    }
    return tsri_option_raise_unknown(&place, cli->words[0]);
}

static void print_help(const char *help)
{
    for (const char *at = help; *at != '\0';) {
        const size_t length = strcspn(at, "\n");

        (void)printf("    %.*s\n", (int)length, at);
        at += length + (at[length] == '\n' ? 1 : 0);
    }
}

static void print_option(const tsri_option *o)
{
    char type[TEXT_BYTES];

    (void)printf("%s: %s\n", o->path, o->fallback[0] != '\0' ? o->fallback : "\"\"");
    print_help(o->help);
    (void)printf("    takes %s\n\n", tsri_option_type_text(o, type, sizeof(type)));
}

static json_t *option_json(const tsri_option *o)
{
    char type[TEXT_BYTES];

    return json_pack("{s:s, s:s, s:s, s:s, s:s?}", "key", o->path, "default", o->fallback, "takes",
                     tsri_option_type_text(o, type, sizeof(type)), "help", o->help, "available",
                     o->works);
}

static int run_config(const tsri_cli *cli)
{
    const char *name = cli->word_count > 0 ? cli->words[0] : NULL;
    const bool as_json = tsri_cli_has(cli, "--json");
    json_t *all = json_array();
    int count = 0;
    const tsri_option *table = tsri_options(&count);

    if (name == NULL && !as_json) {
        (void)printf(
            "Every key of a configuration file, with its default. A key is written in its\n"
            "section, train: {lr: 3e-4}, or given as a word, train.lr=3e-4.\n\n");
    }
    for (int i = 0; i < count; i++) {
        if (!is_asked(table[i].path, name)) {
            continue;
        }
        if (as_json) {
            (void)json_array_append_new(all, option_json(&table[i]));
        } else {
            print_option(&table[i]);
        }
    }
    if (as_json) {
        (void)json_dumpf(all, stdout, JSON_INDENT(2));
        (void)printf("\n");
    }
    json_decref(all);
    return tsri_cli_finish(TSR_OK);
}

const tsri_cli_command tsri_command_config = {
    .name = "config",
    .summary = "explain the keys of a configuration",
    .usage = "[KEY] [--json]",
    .help = "Prints every key with its default and what it does; with KEY, such as train.lr or\n"
            "train, that key or section.\n",
    .options = options,
    .words_min = 0,
    .words_max = 1,
    .launches = false,
    .check = check_config,
    .run = run_config,
};
