# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# Flags of single files: definitions are exact, kernels are fast, nothing uses -ffast-math. Files of
# kernels/cpu are compiled once per instruction level; kernels/tables.c picks one when it is asked.

# Contraction of a * b + c would change bits between machines.
set(TSR_EXACT_FLAGS -ffp-contract=off)
# errno and traps of mathematical functions are never looked at.
set(TSR_KERNEL_FLAGS -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)

file(GLOB exact CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/ref/*.c
     ${PROJECT_SOURCE_DIR}/src/base/rng.c)
set_source_files_properties(${exact} PROPERTIES COMPILE_OPTIONS "${TSR_EXACT_FLAGS}")
file(GLOB fast CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/*.c)
set_source_files_properties(${fast} PROPERTIES COMPILE_OPTIONS "${TSR_KERNEL_FLAGS}"
    COMPILE_DEFINITIONS TSRK_LEVEL=baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(TSR_LEVELS avx2 avx512)
endif()
set(TSR_LEVEL_FLAGS_avx2 -march=x86-64-v3)
set(TSR_LEVEL_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
foreach(level IN LISTS TSR_LEVELS)
    foreach(file IN LISTS fast)
        get_filename_component(name ${file} NAME)
        set(again ${PROJECT_BINARY_DIR}/kernels/${level}_${name})
        file(CONFIGURE OUTPUT ${again} CONTENT "#include \"kernels/cpu/${name}\"\n")
        set_source_files_properties(${again} PROPERTIES
            COMPILE_OPTIONS "${TSR_KERNEL_FLAGS};${TSR_LEVEL_FLAGS_${level}}"
            COMPILE_DEFINITIONS TSRK_LEVEL=${level})
        target_sources(tsr_kernels PRIVATE ${again})
    endforeach()
endforeach()
file(GLOB fast CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cpu/*.c)
set_source_files_properties(${fast} PROPERTIES COMPILE_OPTIONS -O3)
