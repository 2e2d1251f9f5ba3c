/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* machine_xml FILE.desc: a described machine as hwloc XML on standard output. */
#include "base/base.h"
#include "base/file.h"

#include "support/machine.h"

int main(int argc, char **argv)
{
    char *text = NULL;
    char *xml = NULL;
    size_t bytes = 0;

    if (argc != 2 || tsri_file_read(argv[1], &text, &bytes) != TSR_OK ||
        tsr_machine_xml(text, argv[1], &xml) != TSR_OK) {
        tsr_error_print(stderr);
        return 1;
    }
    (void)fputs(xml, stdout);
    tsri_free(&text);
    tsri_free(&xml);
    return 0;
}
