# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# tsr_add_folder(<name> SOURCES <folder>... [DEPENDS <name>...] [LINK <target>...])
#
# Makes the static library tsr_<name> of all C files in the folders; a folder without sources makes
# none. TSR_FOLDERS lists the libraries made so far. A dependency without sources is left out, and
# what it depends on is taken in its place.
set(TSR_FOLDERS "")

function(tsr_add_folder name)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
    set(patterns ${ARG_SOURCES})
    list(TRANSFORM patterns PREPEND ${PROJECT_SOURCE_DIR}/)
    list(TRANSFORM patterns APPEND /*.c)
    file(GLOB sources CONFIGURE_DEPENDS ${patterns})
    set(links "")
    foreach(dependency IN LISTS ARG_DEPENDS)
        list(APPEND links ${TSR_LINKS_${dependency}})
    endforeach()
    if(NOT sources)
        set(TSR_LINKS_${name} ${links} PARENT_SCOPE)
        return()
    endif()
    add_library(tsr_${name} STATIC ${sources})
    target_include_directories(tsr_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
        ${PROJECT_BINARY_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(tsr_${name} PUBLIC ${links} ${ARG_LINK})
    set(TSR_LINKS_${name} tsr_${name} PARENT_SCOPE)
    set(TSR_FOLDERS ${TSR_FOLDERS} ${name} PARENT_SCOPE)
endfunction()
