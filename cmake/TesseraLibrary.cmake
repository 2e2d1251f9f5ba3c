# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# What is installed: libtessera (static and shared) of all folders but the program's, the program,
# headers, and the files by which CMake and pkg-config find them.
include(CMakePackageConfigHelpers)

set(objects ${TSR_FOLDERS})
list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:tsr_\\1>")
set(requirements Jansson::Jansson Yaml::Yaml Threads::Threads MPI::MPI_C Hwloc::Hwloc Dnnl::Dnnl
    OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)

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
target_link_libraries(tessera_static PUBLIC ${requirements})
add_library(Tessera::tessera ALIAS tessera)

file(GLOB program_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.c)
if(program_sources)
    add_executable(tessera_program ${program_sources})
    set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_include_directories(tessera_program PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    target_link_libraries(tessera_program PRIVATE tessera_static)
    install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(TARGETS tessera_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tessera EXPORT TesseraTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/tessera ${PROJECT_BINARY_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${package_folder}
        FILE TesseraConfig.cmake)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
        COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${package_folder})

configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
