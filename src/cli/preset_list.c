/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The option --presets. */
#include "cli/preset_list.h"

#include "base/base.h"

#include <string.h>

enum {
    NAME_BYTES = 32
};

tsr_status tsri_cli_presets(const tsri_cli *cli, const char *text, int out[TSRI_CLI_MOST_PRESETS],
                            int *count_out)
{
    const char *asked = tsri_cli_value(cli, "--presets");
    const char *at = asked != NULL ? asked : text;
    int count = 0;

    if (strcmp(at, "all") == 0) {
        at = TSRI_PRESET_NAMES;
    }
    for (at += strspn(at, ", "); *at != '\0'; at += strspn(at, ", ")) {
        const size_t length = strcspn(at, ", ");
        char name[NAME_BYTES];

        if (count == TSRI_CLI_MOST_PRESETS) {
            return TSR_RAISE(TSR_ERR_INVALID, "--presets names more than %d",
                             (int)TSRI_CLI_MOST_PRESETS);
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, at);
        const tsr_status status = tsri_preset_find(name, &out[count]);

        if (status != TSR_OK) {
            return TSR_RAISE(status, "--presets: %s", tsr_error_message());
        }
        count++;
        at += length;
    }
    if (count == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "--presets names none");
    }
    *count_out = count;
    return TSR_OK;
}
