# SPDX-License-Identifier: Apache-2.0
# tessera_library(NAME SOURCES ... [DEPS ...] [PRIVATE_DEPS ...] [NO_TORCH])
# A shared library libtessera_NAME.so with the alias tessera::NAME.
# A header is included as "tessera/<folder>/<file>.h": in the build tree
# through links in build/include/tessera, so that it can stay beside its source.
set(TESSERA_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${TESSERA_INCLUDE_DIR}/tessera")
foreach(_room runtime sharding offload pipeline engine zoo)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${_room}"
       "${TESSERA_INCLUDE_DIR}/tessera/${_room}" SYMBOLIC)
endforeach()

# The precompiled header that every target using LibTorch shares.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/pch/tessera_pch.cpp" CONTENT "")
add_library(tessera_pch OBJECT "${PROJECT_BINARY_DIR}/pch/tessera_pch.cpp")
target_link_libraries(tessera_pch PRIVATE tessera::torch Threads::Threads)
target_precompile_headers(tessera_pch PRIVATE <torch/torch.h>)

function(tessera_use_torch target)
  target_link_libraries(${target} PUBLIC tessera::torch)
  target_precompile_headers(${target} REUSE_FROM tessera_pch)
endfunction()

function(tessera_library name)
  cmake_parse_arguments(ARG "NO_TORCH" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(tessera_${name} SHARED ${ARG_SOURCES})
  add_library(tessera::${name} ALIAS tessera_${name})
  # No <target>_EXPORTS macro: it would make the shared header unusable.
  set_target_properties(tessera_${name} PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(tessera_${name} PUBLIC
    $<BUILD_INTERFACE:${TESSERA_INCLUDE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(tessera_${name} PUBLIC cxx_std_20)
  target_link_libraries(tessera_${name}
    PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(NOT ARG_NO_TORCH)
    tessera_use_torch(tessera_${name})
  endif()
  tessera_install_library(${name})
endfunction()

function(tessera_executable name)
  cmake_parse_arguments(ARG "NO_TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(NOT ARG_NO_TORCH)
    target_link_libraries(${name} PRIVATE tessera::torch)
    target_precompile_headers(${name} REUSE_FROM tessera_pch)
  endif()
endfunction()
