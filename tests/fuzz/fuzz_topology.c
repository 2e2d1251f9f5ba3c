/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fuzz_topology.c
 * Any bytes as a machine: as hwloc XML, as a packed description, and as a described one; whatever
 * is read is planned and drawn.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include "support/machine.h"
#include "topo/draw.h"

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void use(tsri_topo *topo)
{
    tsri_topo_mapping *plan = NULL;
    tsri_topo_mesh *mesh = NULL;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);

    if (tsri_topo_mapping_create(topo, &(tsri_topo_ask){0}, &plan) == TSR_OK) {
        const tsr_mesh_axis axis = {"shard", 2 * plan->place_count};

        (void)tsri_topo_mesh_create(topo, plan, 2, &axis, 1, &mesh);
        (void)tsri_topo_draw_text(topo, plan, to);
        (void)tsri_topo_draw_svg(topo, plan, mesh, to);
    }
    tsri_topo_mesh_free(&mesh);
    tsri_topo_mapping_free(&plan);
    (void)fclose(to);
    free(text);
}

static void read_as(tsri_topo_source source, const char *text)
{
    tsri_topo *topo = NULL;
    tsri_topo *copy = NULL;
    char *packed = NULL;

    if (tsri_topo_read(source, text, &topo) == TSR_OK) {
        use(topo);
        if (tsri_topo_pack(topo, &packed) != TSR_OK ||
            tsri_topo_unpack(packed, strlen(packed), "fuzz", &copy) != TSR_OK) {
            tsr_error_print(stderr);
            abort(); /* what was read can be sent */
        }
    }
    tsri_free(&packed);
    tsri_topo_free(&copy);
    tsri_topo_free(&topo);
    tsr_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsri_topo *topo = NULL;
    char *text = NULL;
    char *xml = NULL;

    if (tsri_alloc(bytes + 1, 1, &text) != TSR_OK) {
        return 0;
    }
    memcpy(text, data, bytes);
    read_as(TSRI_TOPO_XML_TEXT, text);
    if (tsri_topo_unpack((const char *)data, bytes, "fuzz", &topo) == TSR_OK) {
        use(topo);
        tsri_topo_free(&topo);
    }
    if (tsr_machine_xml(text, "fuzz", &xml) == TSR_OK) {
        read_as(TSRI_TOPO_XML_TEXT, xml);
        tsri_free(&xml);
    }
    tsri_free(&text);
    tsr_error_clear();
    return 0;
}
