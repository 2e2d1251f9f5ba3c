# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# How tests become CTest cases. A test is one file and one executable; what it needs is read from
# its first lines (/* ranks: 1 2 4 */, /* hostile: 4 */, /* labels: long */, /* timeout: 120 */) and
# its includes.

set(TSR_DIST_ENV
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers build as root
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 # more ranks than cores
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader
    OMP_NUM_THREADS=1 TSR_RACE_CHECK=1) # conflicting accesses without an event fail
set(TSR_SANITIZER_ENV
    UBSAN_OPTIONS=print_stacktrace=1
    LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0)
# Leaks of MPI's unloaded plugins cannot be suppressed at exit; main_mpi.c looks before that.
set(TSR_DIST_SANITIZER_ENV ${TSR_SANITIZER_ENV} ASAN_OPTIONS=leak_check_at_exit=0:fast_unwind_on_malloc=0)
set(TSR_TEST_TIMEOUT 600)

# The value of the comment /* key: value */ in the first lines of a file, as a list; or the default.
function(tsr_file_option out file key default)
    file(STRINGS ${file} lines LIMIT_COUNT 12 REGEX "^/\\* ${key}: .* \\*/$")
    set(value ${default})
    if(lines)
        list(GET lines 0 line)
        string(REGEX REPLACE "^/\\* ${key}: (.*) \\*/$" "\\1" value "${line}")
        string(REPLACE " " ";" value "${value}")
    endif()
    set(${out} ${value} PARENT_SCOPE)
endfunction()

# Link what a file includes: "mesh/x.h" and, by tools/header_owner.txt, "tessera/mesh.h" are
# tsr_mesh, "support/x.h" is tsr_support_x; a public header without owner is everything.
function(tsr_link_included target file)
    file(STRINGS ${PROJECT_SOURCE_DIR}/tools/header_owner.txt owners)
    file(STRINGS ${file} includes REGEX "^#include \"[a-z_]+/.*\\.h\"")
    target_link_libraries(${target} PRIVATE tsr_test_harness)
    foreach(line IN LISTS includes)
        string(REGEX REPLACE "^#include \"([a-z_]+)/(.+)\\.h\".*" "\\1;\\2" parts "${line}")
        list(GET parts 0 folder)
        list(GET parts 1 header)
        if(folder STREQUAL "support")
            set(folder support_${header})
        elseif(folder STREQUAL "tessera")
            set(folder everything)
            foreach(owner IN LISTS owners)
                if(owner MATCHES "^${header} (.+)$")
                    set(folder ${CMAKE_MATCH_1})
                endif()
            endforeach()
        endif()
        if(folder STREQUAL "everything")
            target_link_libraries(${target} PRIVATE ${TSR_ALL_LIBRARIES})
        elseif(TARGET tsr_${folder} AND NOT target STREQUAL "tsr_${folder}")
            target_link_libraries(${target} PRIVATE tsr_${folder})
        endif()
    endforeach()
endfunction()

# tsr_add_test_program(<file> <main>): the executable named after the file.
function(tsr_add_test_program file main)
    get_filename_component(name ${file} NAME_WE)
    if(TARGET ${name})
        message(FATAL_ERROR "two tests are called ${name}: ${file}")
    endif()
    add_executable(${name} ${file} ${PROJECT_SOURCE_DIR}/tests/support/${main}.c)
    tsr_link_included(${name} ${file})
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    if(TARGET tsr_${folder})
        target_link_libraries(${name} PRIVATE tsr_${folder})
    endif()
    if(main STREQUAL "main_mpi")
        target_link_libraries(${name} PRIVATE MPI::MPI_C)
    endif()
endfunction()

# Threads that wait spin briefly, as in the program (src/cli/openmp.c).
# tsr_set_test(<case> <file> PROCESSORS <n> LABELS <l>... ENVIRONMENT <e>...)
function(tsr_set_test case file)
    cmake_parse_arguments(ARG "" "PROCESSORS" "LABELS;ENVIRONMENT" ${ARGN})
    tsr_file_option(timeout ${file} timeout ${TSR_TEST_TIMEOUT})
    tsr_file_option(labels ${file} labels "")
    tsr_file_option(watchdog ${file} watchdog "")
    if(watchdog) # of a case, in seconds
        list(APPEND ARG_ENVIRONMENT TSR_TEST_WATCHDOG_S=${watchdog})
    endif()
    set(scratch ${PROJECT_BINARY_DIR}/scratch/${case})
    file(MAKE_DIRECTORY ${scratch})
    set_tests_properties(${case} PROPERTIES PROCESSORS ${ARG_PROCESSORS} TIMEOUT ${timeout}
        SKIP_RETURN_CODE 77 LABELS "${ARG_LABELS};${labels}" WORKING_DIRECTORY ${scratch}
        ENVIRONMENT "${ARG_ENVIRONMENT};GOMP_SPINCOUNT=1000;TSR_TEST_SCRATCH=${scratch};TSR_PROGRAM=${PROJECT_BINARY_DIR}/tessera")
endfunction()

# One process: <name>.
function(tsr_add_unit_test file)
    cmake_parse_arguments(ARG "" "" "LABELS" ${ARGN})
    get_filename_component(name ${file} NAME_WE)
    tsr_add_test_program(${file} main_unit)
    add_test(NAME ${name} COMMAND ${name})
    tsr_set_test(${name} ${file} PROCESSORS 1 LABELS ${ARG_LABELS} ENVIRONMENT ${TSR_SANITIZER_ENV})
    if(NOT ARG_LABELS MATCHES kernels)
        return()
    endif()
    # The processor's own level is the case above; tests/support/main_unit.c skips what it lacks.
    foreach(level baseline avx2)
        add_test(NAME ${name}.${level} COMMAND ${name})
        tsr_set_test(${name}.${level} ${file} PROCESSORS 1 LABELS ${ARG_LABELS}
            ENVIRONMENT ${TSR_SANITIZER_ENV} TSR_CPU_ISA=${level} ONEDNN_MAX_CPU_ISA=AVX2)
    endforeach()
endfunction()

# One case per rank count: <name>.np<n>.
function(tsr_add_dist_test file)
    cmake_parse_arguments(ARG "" "" "LABELS" ${ARGN})
    get_filename_component(name ${file} NAME_WE)
    tsr_add_test_program(${file} main_mpi)
    tsr_file_option(ranks ${file} ranks "1;2;4")
    foreach(n IN LISTS ranks)
        set(processors 1)
        if(n GREATER 1)
            set(processors 2)
        endif()
        add_test(NAME ${name}.np${n}
            COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} $<TARGET_FILE:${name}>)
        tsr_set_test(${name}.np${n} ${file} PROCESSORS ${processors} LABELS ${ARG_LABELS} np${n}
            ENVIRONMENT ${TSR_DIST_ENV} ${TSR_DIST_SANITIZER_ENV})
    endforeach()
    # The same on the backend of tests/support/hostile.h, which stands in for cpu; not with
    # sanitizers, as it keeps what was released for a while.
    tsr_file_option(hostile ${file} hostile "")
    foreach(n IN LISTS hostile)
        target_link_libraries(${name} PRIVATE tsr_support_hostile)
        target_link_options(${name} PRIVATE -Wl,-u,tsri_backend_of_test)
        add_test(NAME ${name}.hostile.np${n}
            COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} $<TARGET_FILE:${name}>)
        tsr_set_test(${name}.hostile.np${n} ${file} PROCESSORS 2 LABELS np${n} hostile
            ENVIRONMENT ${TSR_DIST_ENV} ${TSR_DIST_SANITIZER_ENV} TSR_HOSTILE_AS_CPU=1)
    endforeach()
endfunction()

# A libFuzzer target fuzz_<x>.c over tests/fuzz/corpus/<x>/.
function(tsr_add_fuzz_test file)
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" corpus ${name})
    tsr_add_test_program(${file} main_fuzz)
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
    tsr_set_test(${name} ${file} PROCESSORS 1 LABELS fuzz ENVIRONMENT ${TSR_SANITIZER_ENV})
endfunction()
