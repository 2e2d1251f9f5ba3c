# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# What Tessera is built on. tools/install_deps.sh installs all of it on Debian.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(OpenMP REQUIRED COMPONENTS C)

# An imported target from a header and a library, because these packages bring no CMake files, or
# not everywhere.
function(tsr_find target header library)
    string(REGEX REPLACE ".*::" "" name ${target})
    string(TOUPPER ${name} upper)
    find_path(${upper}_INCLUDE_DIR ${header})
    find_library(${upper}_LIBRARY ${library})
    mark_as_advanced(${upper}_INCLUDE_DIR ${upper}_LIBRARY)
    if(NOT ${upper}_INCLUDE_DIR OR NOT ${upper}_LIBRARY)
        message(FATAL_ERROR "${header} or lib${library} not found; run tools/install_deps.sh")
    endif()
    add_library(${target} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${upper}_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${${upper}_INCLUDE_DIR})
endfunction()

tsr_find(Hwloc::Hwloc hwloc.h hwloc)
tsr_find(Dnnl::Dnnl oneapi/dnnl/dnnl.h dnnl)
tsr_find(Yaml::Yaml yaml.h yaml)
tsr_find(Jansson::Jansson jansson.h jansson)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
mark_as_advanced(XXHASH_INCLUDE_DIR)
if(NOT XXHASH_INCLUDE_DIR)
    message(FATAL_ERROR "xxhash.h not found; run tools/install_deps.sh")
endif()
