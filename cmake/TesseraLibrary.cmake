# SPDX-License-Identifier: Apache-2.0
# tessera_library(NAME [FOLDERS ...] [SOURCES ...] [EXCEPT ...] [DEPS ...]
#                 [PRIVATE_DEPS ...] [NO_TORCH])
# A shared library libtessera_NAME.so with the alias tessera::NAME, made of the
# .cpp files that lie in FOLDERS, without EXCEPT, and of SOURCES.
#
# tessera_executable(NAME SOURCES ... [DEPS ...] [PCH TARGET] [NO_TORCH])

# A header is included as "tessera/<folder>/<file>.h" in the tree as when
# installed: include/tessera holds links to the rooms.
set(TESSERA_INCLUDE_DIR "${PROJECT_SOURCE_DIR}/include")

# Many files at a time: of the 25 s that 16 of them take to compile, 20 go into
# LibTorch's headers and what they instantiate. A file that cannot go with others
# has the property SKIP_UNITY_BUILD_INCLUSION.
set(CMAKE_UNITY_BUILD ${TESSERA_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 48)
# The same text in every checkout, for ccache.
set(CMAKE_UNITY_BUILD_RELOCATABLE ON)

# tessera_precompile(NAME [OPTION ...]): a precompiled header for targets that
# are compiled with these options beside the common ones.
function(tessera_precompile name)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/pch/${name}.cpp" CONTENT "")
  add_library(${name} OBJECT "${PROJECT_BINARY_DIR}/pch/${name}.cpp")
  target_link_libraries(${name} PRIVATE tessera::torch Threads::Threads)
  target_compile_options(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE
    <torch/types.h> <torch/nn/module.h> <torch/nn/pimpl.h>
    <torch/csrc/autograd/custom_function.h> <torch/csrc/autograd/engine.h>
    <torch/csrc/distributed/c10d/Backend.hpp>)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
endfunction()

tessera_precompile(tessera_pch)

# tessera_use_torch(TARGET [PCH])
function(tessera_use_torch target)
  set(pch tessera_pch)
  if(ARGC GREATER 1)
    set(pch ${ARGV1})
  endif()
  target_link_libraries(${target} PUBLIC tessera::torch)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

function(tessera_library name)
  cmake_parse_arguments(ARG "NO_TORCH" "" "FOLDERS;SOURCES;EXCEPT;DEPS;PRIVATE_DEPS" ${ARGN})
  set(sources ${ARG_SOURCES})
  foreach(folder ${ARG_FOLDERS})
    file(GLOB found CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
         "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
    list(APPEND sources ${found})
  endforeach()
  list(REMOVE_ITEM sources ${ARG_EXCEPT})
  add_library(tessera_${name} SHARED ${sources})
  add_library(tessera::${name} ALIAS tessera_${name})
  # No <target>_EXPORTS macro: it would make the shared header unusable.
  set_target_properties(tessera_${name} PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(tessera_${name} PUBLIC
    $<BUILD_INTERFACE:${TESSERA_INCLUDE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(tessera_${name} PUBLIC cxx_std_20)
  target_link_libraries(tessera_${name}
    PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  # A library calls its own functions, also those of templates: not the copies
  # of a program, which may be compiled without optimization.
  target_link_options(tessera_${name} PRIVATE LINKER:-Bsymbolic-functions)
  if(NOT ARG_NO_TORCH)
    tessera_use_torch(tessera_${name})
  endif()
  tessera_install_library(${name})
endfunction()

function(tessera_executable name)
  cmake_parse_arguments(ARG "NO_TORCH" "PCH" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(NOT ARG_NO_TORCH)
    tessera_use_torch(${name} ${ARG_PCH})
  endif()
endfunction()
