# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# What is installed: libtessera (static and shared) of all folders but the program's, the program,
# headers, and the files by which CMake and pkg-config find them.
include(CMakePackageConfigHelpers)

set(objects ${TSR_FOLDERS})
list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:tsr_\\1>")
set(requirements Jansson::Jansson Yaml::Yaml Threads::Threads MPI::MPI_C Hwloc::Hwloc Dnnl::Dnnl
    OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)

set(files ${JANSSON_LIBRARY} ${YAML_LIBRARY} ${MPI_C_LIBRARIES} ${HWLOC_LIBRARY} ${DNNL_LIBRARY}
    ${OpenMP_C_LIBRARIES} ${CMAKE_DL_LIBS} pthread m)

# What a program needs beside the static library, once as CMake takes it and once as flags. By name,
# so that an installed package asks for no package file of another, nor for what another was made
# with: these are shared libraries, which bring their own. By folder only where no linker looks.
set(beside_cmake "")
set(beside_flags "")
foreach(file IN LISTS files)
    cmake_path(GET file PARENT_PATH folder)
    cmake_path(GET file STEM name)
    string(REGEX REPLACE "^lib" "" name ${name})
    if(NOT folder OR folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
        list(APPEND beside_cmake -l${name})
    else()
        list(APPEND beside_cmake ${file})
        list(APPEND beside_flags -L${folder})
    endif()
    list(APPEND beside_flags -l${name})
endforeach()
list(REMOVE_DUPLICATES beside_cmake)
list(REMOVE_DUPLICATES beside_flags)

add_library(tessera_static STATIC ${objects})
add_library(tessera SHARED ${objects})
set_target_properties(tessera_static PROPERTIES OUTPUT_NAME tessera)
set_target_properties(tessera PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
foreach(library tessera tessera_static)
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(${library} INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tessera PRIVATE ${requirements})
if(NOT TSR_SANITIZE)
    target_link_options(tessera PRIVATE -Wl,--no-undefined)
endif()
target_link_libraries(tessera_static INTERFACE
    "$<BUILD_INTERFACE:${requirements}>" "$<INSTALL_INTERFACE:${beside_cmake}>")
add_library(Tessera::tessera ALIAS tessera)
add_library(Tessera::tessera_static ALIAS tessera_static)

file(GLOB program_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.c)
if(program_sources)
    add_executable(tessera_program ${program_sources})
    set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_include_directories(tessera_program PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(tessera_program PRIVATE tessera_static)
    install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(TARGETS tessera tessera_static EXPORT TesseraTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tessera ${PROJECT_BINARY_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${package_folder}
        FILE TesseraConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
        COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${package_folder})

# From where the file lies, so that the installed tree may be moved.
set(pc_folder ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH to_include ${pc_folder} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
list(JOIN beside_flags " " beside_flags)
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
