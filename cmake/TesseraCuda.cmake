# SPDX-License-Identifier: Apache-2.0
# Decides whether the CUDA code is compiled. Sets TESSERA_WITH_CUDA.
set(TESSERA_WITH_CUDA OFF)
if(NOT TESSERA_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # TORCH_CUDA_ARCH_LIST, in torch's spelling ("7.5;9.0"), wins.
    if(DEFINED ENV{TORCH_CUDA_ARCH_LIST})
      string(REGEX REPLACE "[ ,]" ";" _archs "$ENV{TORCH_CUDA_ARCH_LIST}")
      list(TRANSFORM _archs REPLACE "\\." "")
      list(TRANSFORM _archs REPLACE "\\+PTX" "")
      set(CMAKE_CUDA_ARCHITECTURES "${_archs}")
    elseif(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75 80 86 90)
    endif()
    enable_language(CUDA)
    if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
      message(FATAL_ERROR
        "CMake ${CMAKE_VERSION} knows no C++20 for nvcc "
        "${CMAKE_CUDA_COMPILER_VERSION}. Use a newer CMake, such as that in "
        ".venv/bin after `make setup`, or configure with -DTESSERA_CUDA=OFF.")
    endif()
    find_package(CUDAToolkit REQUIRED)
    # LibTorch's, not a second one: two runtimes in a process do not share
    # their current device or their streams.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(TESSERA_WITH_CUDA ON)
  elseif(TESSERA_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "TESSERA_CUDA=ON, but no CUDA compiler was found. Put nvcc on PATH, "
      "set CMAKE_CUDA_COMPILER, or configure with -DTESSERA_CUDA=OFF.")
  endif()
endif()
message(STATUS "CUDA code: ${TESSERA_WITH_CUDA} ${CMAKE_CUDA_ARCHITECTURES}")
