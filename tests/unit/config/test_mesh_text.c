/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh_text.c
 * Meshes as people write them.
 */
#include <string.h>

#include "config/mesh_text.h"
#include "support/tsr_test.h"

static void check_refused(const char *text, int ranks, const char *words)
{
    tsri_mesh_text mesh;
    tsr_status status = tsri_mesh_parse(text, &mesh);

    if (status == TSR_OK) {
        status = tsri_mesh_fit(&mesh, ranks);
    }
    CHECK_EQ(status, TSR_ERR_INVALID);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void legal(void)
{
    tsri_mesh_text mesh;

    REQUIRE_OK(tsri_mesh_parse("replicate=2,shard=3,tp=4", &mesh));
    REQUIRE_EQ(mesh.count, 3);
    CHECK_STR(mesh.axes[0].name, "replicate");
    CHECK_STR(mesh.axes[2].name, "tp");
    CHECK_EQ(mesh.axes[1].size, 3);
    CHECK_OK(tsri_mesh_fit(&mesh, 24));
    REQUIRE_OK(tsri_mesh_parse(" a=2,  b_1=-1 ", &mesh));
    CHECK_OK(tsri_mesh_fit(&mesh, 8));
    CHECK_EQ(mesh.axes[1].size, 4);
    REQUIRE_OK(tsri_mesh_parse("shard=-1", &mesh));
    CHECK_OK(tsri_mesh_fit(&mesh, 1));
    CHECK_EQ(mesh.axes[0].size, 1);
    REQUIRE_OK(tsri_mesh_parse("dp=1,cp=1,shard_a=1,shard2=1,expert=1,data=1,fsdp=1", &mesh));
    REQUIRE_OK(tsri_mesh_parse("fifteen_letters=1", &mesh));
}

static void refused(void)
{
    check_refused("", 1, "names no axis");
    check_refused("shard", 1, "\"shard\" is not axis=size");
    check_refused("shard=", 1, "\"shard=\" is not axis=size");
    check_refused("shard=2x", 1, "\"shard=2x\" is not axis=size");
    check_refused("shard=99999999999999999999", 1, "is not axis=size");
    check_refused("shard=0", 1, "axis \"shard\" has size 0");
    check_refused("shard=-2", 1, "axis \"shard\" has size -2");
    check_refused("shard=4294967297", 1, "axis \"shard\" has size 4294967297");
    check_refused("=2", 2, "a name has 1 to 15");
    check_refused("Shard=2", 2, "a name has 1 to 15");
    check_refused("shrad=2", 2, "axis \"shrad\" is nearly \"shard\"");
    check_refused("shards=2", 2, "is nearly \"shard\"");
    check_refused("repilcate=2", 2, "is nearly \"replicate\"");
    check_refused("pt=2", 2, "is nearly \"tp\"");
    check_refused("sixteen_letters_=1", 1, "a name has 1 to 15");
    check_refused("a=1,b=1,a=1", 1, "names the axis \"a\" twice");
    check_refused("a=-1,b=-1", 4, "leaves both \"a\" and \"b\" open");
    check_refused("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", 1, "more than 8 axes");
    check_refused("shard=2,tp=2", 8, "mesh shard=2,tp=2 has 4 cells for 8 ranks");
    check_refused("shard=-1,tp=3", 8, "has 3 cells times what is left for 8 ranks");
    check_refused("a=2147483647,b=2147483647,c=2147483647", 8, "more cells than can be counted");
}

const tsr_test_case tsr_test_cases[] = {
    {"legal", legal},
    {"refused", refused},
    {NULL, NULL},
};
