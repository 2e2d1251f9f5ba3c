# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# The cluster files of clusters/ as a header, so that the program finds them wherever it lies.
file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/clusters/*.yaml)
set(arrays "")
set(rows "")
set(names "")
set(number 0)
foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1, " bytes "${bytes}")
    string(APPEND arrays "static const char tsri_cluster_text_${number}[] = {${bytes}0};\n")
    string(APPEND rows "    {\"${name}\", tsri_cluster_text_${number}},\n")
    list(APPEND names ${name})
    math(EXPR number "${number} + 1")
endforeach()
list(JOIN names ", " names)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/include/plan/clusters.h CONTENT
"/* Made from clusters/ at configuration. Included by src/plan/cluster.c alone. */
${arrays}
enum {
    TSRI_CLUSTER_COUNT = ${number}
};
static const struct {
    const char *name, *text;
} tsri_clusters[TSRI_CLUSTER_COUNT] = {
${rows}};
#define TSRI_CLUSTER_NAMES \"${names}\"
" @ONLY)
