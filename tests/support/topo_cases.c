/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Machines and plans for tests of topology. */
#include "support/topo_cases.h"

#include "base/base.h"
#include "base/file.h"

#include <string.h>

#include "support/machine.h"
#include "support/tsr_test.h"

tsri_topo *tsr_topo_described(const char *text)
{
    char *xml = NULL;
    tsri_topo *topo = NULL;

    CHECK_OK(tsr_machine_xml(text, "test", &xml));
    if (xml != NULL) {
        CHECK_OK(tsri_topo_read(TSRI_TOPO_XML_TEXT, xml, &topo));
    }
    tsri_free(&xml);
    return topo;
}

tsri_topo *tsr_topo_golden(const char *name)
{
    char *text = NULL;
    size_t bytes = 0;
    tsri_topo *topo = NULL;

    CHECK_OK(tsri_file_read(tsr_test_golden_path(name), &text, &bytes));
    if (text != NULL) {
        topo = tsr_topo_described(text);
    }
    tsri_free(&text);
    return topo;
}

tsri_topo_mapping *tsr_topo_planned(const tsri_topo *topo, tsri_topo_ask ask)
{
    tsri_topo_mapping *plan = NULL;

    CHECK_OK(tsri_topo_mapping_create(topo, &ask, &plan));
    return plan;
}

bool tsr_topo_noted(const tsri_topo_mapping *plan, const char *subject, const char *words)
{
    for (int i = 0; i < plan->notes.count; i++) {
        if (strcmp(plan->notes.at[i].subject, subject) == 0 &&
            strstr(plan->notes.at[i].text, words) != NULL) {
            return true;
        }
    }
    return false;
}

void tsr_topo_check_cores(const tsri_topo *topo, const tsri_topo_mapping *plan)
{
    int *users = NULL;
    int least = topo->core_count;

    REQUIRE_OK(tsri_alloc((size_t)topo->core_count, sizeof(int), &users));
    for (int i = 0; i < plan->place_count; i++) {
        const tsri_topo_place *p = &plan->places[i];

        least = p->core_count < least ? p->core_count : least;
        for (int k = 0; k < p->core_count; k++) {
            const int core = plan->cores[p->core_first + k];

            CHECK(core >= 0 && core < topo->core_count);
            CHECK_EQ(++users[core], 1);
        }
    }
    CHECK_EQ(least > 0, topo->core_count >= plan->place_count);
    tsri_free(&users);
}
