/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file options.c
 * A command line against a command's option table.
 *
 * Options may stand anywhere among the words; "--" ends them; "--name=value" is "--name value".
 * Nothing is copied: values point into argv.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_RANKS = 1 << 20,
    NAME_LIMIT = 64
};

static const tsri_cli_option option_help = {"--help", NULL, "show this text"};
static const tsri_cli_option option_ranks = {"-n", "N", "number of ranks to start"};
static const tsri_cli_option option_hosts = {"--hosts", "A:4,B:4", "start them on these hosts"};

static bool is_named(const tsri_cli_option *option, const char *name, size_t length)
{
    return strncmp(option->name, name, length) == 0 && option->name[length] == '\0';
}

static const tsri_cli_option *find_option(const tsri_cli_command *command, const char *name,
                                          size_t length)
{
    static const tsri_cli_option *const common[] = {&option_help, &option_ranks, &option_hosts};
    size_t count = command->launches ? 3 : 1;

    for (const tsri_cli_option *o = command->options; o != NULL && o->name != NULL; o++) {
        if (is_named(o, name, length)) {
            return o;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (is_named(common[i], name, length)) {
            return common[i];
        }
    }
    return NULL;
}

static tsr_status raise_unknown_option(const tsri_cli_command *command, const char *name)
{
    const char *names[NAME_LIMIT] = {"--help"};
    const char *near = NULL;
    int count = 1;

    if (command->launches) {
        names[count++] = "-n";
        names[count++] = "--hosts";
    }
    for (const tsri_cli_option *o = command->options;
         o != NULL && o->name != NULL && count < NAME_LIMIT; o++) {
        names[count++] = o->name;
    }
    near = tsri_nearest(name, names, count);
    return TSR_RAISE(TSR_ERR_INVALID, "%s has no option %s%s%s; see `tessera help %s`",
                     command->name, name, near != NULL ? "; nearest: " : "",
                     near != NULL ? near : "", command->name);
}

static tsr_status parse_ranks(const char *text, int *out)
{
    char *end = NULL;
    long value = 0;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > MAX_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID, "-n %s: wants a number of ranks, 1..%d", text, MAX_RANKS);
    }
    *out = (int)value;
    return TSR_OK;
}

static tsr_status raise_host(const char *entry, size_t length)
{
    return TSR_RAISE(TSR_ERR_INVALID, "--hosts: \"%.*s\" is not HOST or HOST:RANKS", (int)length,
                     entry);
}

/* "a:4,b:4" has 8 ranks; a host without a number has one. */
static tsr_status count_listed_ranks(const char *text, int *out)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    const char *entry = text;
    long sum = 0;

    for (;;) {
        size_t length = strcspn(entry, ",");
        size_t name = strspn(entry, allowed);
        char *end = NULL;
        long ranks = 1;

        if (name == 0 || (name < length && entry[name] != ':')) {
            return raise_host(entry, length);
        }
        if (name < length) {
            ranks = strtol(entry + name + 1, &end, 10);
            if (end != entry + length || ranks < 1 || ranks > MAX_RANKS) {
                return raise_host(entry, length);
            }
        }
        sum += ranks;
        if (sum > MAX_RANKS) {
            return TSR_RAISE(TSR_ERR_INVALID, "--hosts: more than %d ranks", MAX_RANKS);
        }
        if (entry[length] == '\0') {
            *out = (int)sum;
            return TSR_OK;
        }
        entry += length + 1;
    }
}

static tsr_status take(tsri_cli *cli, const tsri_cli_option *option, const char *value)
{
    if (option == &option_help) {
        cli->help = true;
    } else if (option == &option_ranks && value != NULL) {
        TSR_TRY(parse_ranks(value, &cli->ranks));
    } else if (option == &option_hosts) {
        cli->hosts = value;
    }
    cli->options[cli->option_count] = option;
    cli->values[cli->option_count] = value;
    cli->option_count++;
    return TSR_OK;
}

/* The option at argv[*at]; *at moves on to its value if that is a word of its own. */
static tsr_status parse_option(tsri_cli *cli, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    size_t length = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const tsri_cli_option *option = find_option(cli->command, word, length);
    const char *value = equals != NULL ? equals + 1 : NULL;

    if (option == NULL && strncmp(word, "-n", 2) == 0 && cli->command->launches) {
        option = &option_ranks; /* -n4 */
        value = word + 2;
    }
    if (option == NULL && strcmp(word, "-h") == 0) {
        option = &option_help;
    }
    if (option == NULL) {
        return raise_unknown_option(cli->command, word);
    }
    if (option->value == NULL && value != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s takes no value: %s", option->name, word);
    }
    if (option->value != NULL && value == NULL) {
        if (*at + 1 >= argc) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s wants a value: %s", option->name, option->value);
        }
        *at += 1;
        value = argv[*at];
    }
    TSR_TRY(take(cli, option, value));
    return TSR_OK;
}

static tsr_status check_counts(tsri_cli *cli)
{
    const tsri_cli_command *command = cli->command;
    int on_hosts = 0;

    if (cli->help) {
        return TSR_OK;
    }
    if (cli->word_count < command->words_min ||
        (command->words_max >= 0 && cli->word_count > command->words_max)) {
        return TSR_RAISE(TSR_ERR_INVALID, "usage: tessera %s %s", command->name, command->usage);
    }
    if (cli->hosts != NULL) {
        TSR_TRY(count_listed_ranks(cli->hosts, &on_hosts));
        if (cli->ranks > on_hosts) {
            return TSR_RAISE(TSR_ERR_INVALID, "-n %d, but --hosts %s has room for %d", cli->ranks,
                             cli->hosts, on_hosts);
        }
        cli->ranks = cli->ranks > 0 ? cli->ranks : on_hosts;
    }
    return TSR_OK;
}

tsr_status tsri_cli_parse(const tsri_cli_command *command, int argc, char **argv, tsri_cli *out)
{
    bool ended = false;

    *out = (tsri_cli){.command = command};
    TSR_TRY(tsri_alloc((size_t)argc, sizeof(const char *), &out->words));
    TSR_TRY(tsri_alloc((size_t)argc, sizeof(const char *), &out->values));
    TSR_TRY(tsri_alloc((size_t)argc, sizeof(const tsri_cli_option *), &out->options));
    for (int i = 1; i < argc; i++) {
        if (ended || argv[i][0] != '-' || argv[i][1] == '\0') {
            out->words[out->word_count++] = argv[i];
            continue;
        }
        ended = strcmp(argv[i], "--") == 0;
        if (ended) {
            continue;
        }
        TSR_TRY(parse_option(out, argc, argv, &i));
    }
    TSR_TRY(check_counts(out));
    return TSR_OK;
}

void tsri_cli_free(tsri_cli *cli)
{
    tsri_free(&cli->words);
    tsri_free(&cli->values);
    tsri_free(&cli->options);
}

int tsri_cli_strip_launch(int argc, char **argv, char **out)
{
    int count = 0;
    bool ended = false;

    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];

        ended = ended || strcmp(word, "--") == 0;
        if (!ended && (strcmp(word, "-n") == 0 || strcmp(word, "--hosts") == 0)) {
            i++; /* its value */
        } else if (ended || (strncmp(word, "-n", 2) != 0 && strncmp(word, "--hosts=", 8) != 0)) {
            out[count++] = argv[i];
        }
    }
    return count;
}

static int slots_of(const char *entry)
{
    const char *colon = entry + strcspn(entry, ":,");

    return *colon == ':' ? (int)strtol(colon + 1, NULL, 10) : 1;
}

static const char *next_entry(const char *entry)
{
    entry += strcspn(entry, ",");
    return *entry == ',' ? entry + 1 : entry;
}

void tsri_cli_place(const tsri_cli *cli, int *node_of)
{
    int rank = 0;
    int nodes = 0;

    for (const char *entry = cli->hosts; rank < cli->ranks; entry = next_entry(entry)) {
        const size_t length = strcspn(entry, ":,");
        const int end = rank + slots_of(entry);
        int node = nodes;
        int before = 0;

        /* A host that was named before goes on with its ranks. */
        for (const char *at = cli->hosts; at < entry; at = next_entry(at)) {
            if (strcspn(at, ":,") == length && strncmp(at, entry, length) == 0) {
                node = node_of[before];
                break;
            }
            before += slots_of(at);
        }
        nodes += node == nodes ? 1 : 0;
        for (; rank < end && rank < cli->ranks; rank++) {
            node_of[rank] = node;
        }
    }
}

const char *tsri_cli_value(const tsri_cli *cli, const char *name)
{
    const char *value = NULL;

    for (int i = 0; i < cli->option_count; i++) {
        if (strcmp(cli->options[i]->name, name) == 0) {
            value = cli->values[i];
        }
    }
    return value;
}

bool tsri_cli_has(const tsri_cli *cli, const char *name)
{
    for (int i = 0; i < cli->option_count; i++) {
        if (strcmp(cli->options[i]->name, name) == 0) {
            return true;
        }
    }
    return false;
}
