# SPDX-License-Identifier: Apache-2.0
# One dialect and one set of flags for every target, so that a single
# precompiled header serves libraries and programs alike.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# An error in a unity file breaks what follows it.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fmax-errors=20>)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# As in Release: the size of LibTorch's classes depends on it (RecordFunction),
# and its binaries are built with it.
add_compile_definitions($<$<NOT:$<CONFIG:Release>>:NDEBUG>)
# No contraction into fma behind our back: the same bits on every machine.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

if(TESSERA_SANITIZE)
  add_compile_options(
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TESSERA_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()

# Fewer collections of garbage inside GCC: a tenth of the time for a GiB.
add_compile_options(
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=300>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)

find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE)
  # Precompiled headers need the sloppiness; paths relative to the tree let
  # several checkouts share one cache.
  set(_launcher
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};CCACHE_NOHASHDIR=1;CCACHE_DEPEND=1;${TESSERA_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${_launcher}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${_launcher}")
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
