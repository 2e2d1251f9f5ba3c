# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# Each examples/NN_topic/ is a program of the public interface alone, with its expected output:
# every line of expected.txt is a regular expression, and they must match lines of the output in
# this order. The first lines of main.c may say /* ranks: 4 */ and /* args: ... */. A folder with a
# CMakeLists.txt of its own does everything itself.
file(GLOB example_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/examples/*)
foreach(folder IN LISTS example_folders)
    if(EXISTS ${folder}/CMakeLists.txt)
        add_subdirectory(${folder})
        continue()
    endif()
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
    if(NOT sources)
        continue()
    endif()
    get_filename_component(topic ${folder} NAME)
    set(name example_${topic})
    add_executable(${name} ${sources})
    target_link_libraries(${name} PRIVATE tessera_static)
    list(GET sources 0 main)
    tsr_file_option(ranks ${main} ranks 1)
    tsr_file_option(args ${main} args "")
    list(GET ranks 0 ranks)
    set(run ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${name}> ${args})
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DEXPECTED=${folder}/expected.txt
        -P ${PROJECT_SOURCE_DIR}/cmake/RunExample.cmake -- ${run})
    set(processors 1)
    if(ranks GREATER 1)
        set(processors 2)
    endif()
    tsr_set_test(${name} ${main} PROCESSORS ${processors} LABELS example
        ENVIRONMENT ${TSR_DIST_ENV} ${TSR_DIST_SANITIZER_ENV})
endforeach()
