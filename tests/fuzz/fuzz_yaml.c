/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fuzz_yaml.c
 * Any bytes as YAML: read or refused, and the tree is whole.
 */
#include "base/base.h"
#include "base/yaml.h"

#include <stdlib.h>

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_node(const tsri_yaml_node *node)
{
    if ((node->kind == TSRI_YAML_SCALAR) != (node->text != NULL) || node->line < 0) {
        abort();
    }
    for (int i = 0; i < node->count; i++) {
        if ((node->kind == TSRI_YAML_MAP) != (node->children[i].key != NULL)) {
            abort();
        }
        check_node(&node->children[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsri_yaml_node *root = NULL;

    if (tsri_yaml_parse((const char *)data, bytes, "fuzz", &root) == TSR_OK) {
        check_node(root);
        tsri_yaml_free(&root);
    }
    tsr_error_clear();
    return 0;
}
