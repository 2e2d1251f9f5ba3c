# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# Flags of single files: definitions are exact, kernels are fast, nothing uses -ffast-math.

# Contraction of a * b + c would change bits between machines.
set(TSR_EXACT_FLAGS -ffp-contract=off)
# errno and traps of mathematical functions are never looked at.
set(TSR_KERNEL_FLAGS -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)

file(GLOB exact CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/ref/*.c
     ${PROJECT_SOURCE_DIR}/src/base/rng.c)
set_source_files_properties(${exact} PROPERTIES COMPILE_OPTIONS "${TSR_EXACT_FLAGS}")
file(GLOB fast CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cpu/*.c)
set_source_files_properties(${fast} PROPERTIES COMPILE_OPTIONS "${TSR_KERNEL_FLAGS}")
file(GLOB fast CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cpu/*.c)
set_source_files_properties(${fast} PROPERTIES COMPILE_OPTIONS -O3)
