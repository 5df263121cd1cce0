# SPDX-License-Identifier: Apache-2.0
# LibTorch as imported targets: tessera::torch (CPU) and, in a CUDA build,
# tessera::torch_cuda.
#
# TorchConfig.cmake is not used on purpose: the one in the CUDA wheel refuses to
# configure on a machine without a CUDA toolkit, and it overrides the CUDA
# architectures. A program needs only the headers and three libraries.
#
# An installed Tessera includes this file too, with TESSERA_BUILT_WITH_TORCH, the
# LibTorch that it was built with, which is taken unless another one is given.
set(_torch "$ENV{TESSERA_TORCH}")
if(NOT _torch)
  set(_torch "${TESSERA_BUILT_WITH_TORCH}")
endif()
set(TESSERA_TORCH "${_torch}" CACHE PATH
    "LibTorch: an unpacked libtorch, or the torch package of a Python environment")
if(NOT TESSERA_TORCH)
  set(_pythons "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
  if(SKBUILD) # the Python for which the wheel is built
    set(_pythons "${Python_EXECUTABLE}")
  endif()
  foreach(_python ${_pythons})
    execute_process(
      COMMAND "${_python}" -c
              "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET RESULT_VARIABLE _rc)
    if(_rc EQUAL 0)
      set(TESSERA_TORCH "${_found}" CACHE PATH "" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${TESSERA_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "LibTorch was not found: '${TESSERA_TORCH}/lib/libtorch_cpu.so' does not "
    "exist. Run 'make setup' in a clone of Tessera, or set TESSERA_TORCH to a "
    "libtorch folder or to the torch package of a Python environment (2.11 or "
    "newer).")
endif()
get_filename_component(TESSERA_TORCH "${TESSERA_TORCH}" REALPATH)

file(STRINGS "${TESSERA_TORCH}/include/torch/headeronly/version.h" _version_lines
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX MATCHALL "[0-9]+" _version "${_version_lines}")
list(JOIN _version "." TESSERA_TORCH_VERSION)
if(TESSERA_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR
    "LibTorch ${TESSERA_TORCH_VERSION} at '${TESSERA_TORCH}' is too old; "
    "Tessera needs 2.11 or newer.")
endif()
message(STATUS "LibTorch ${TESSERA_TORCH_VERSION}: ${TESSERA_TORCH}")

# Imported, so that installed targets name it without bringing it.
add_library(tessera::torch_headers INTERFACE IMPORTED GLOBAL) # fmt's among them
target_include_directories(tessera::torch_headers SYSTEM INTERFACE
  "${TESSERA_TORCH}/include" "${TESSERA_TORCH}/include/torch/csrc/api/include")
add_library(tessera::torch INTERFACE IMPORTED GLOBAL)
target_compile_definitions(tessera::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# In a wheel it is the torch of the environment that the wheel is installed in.
set(_torch_rpath "${TESSERA_TORCH}/lib")
if(SKBUILD)
  set(_torch_rpath "$ORIGIN/../torch/lib")
endif()
target_link_options(tessera::torch INTERFACE
  "-Wl,-rpath,${_torch_rpath}" "-Wl,-rpath-link,${TESSERA_TORCH}/lib")
target_link_libraries(tessera::torch INTERFACE
  tessera::torch_headers
  "${TESSERA_TORCH}/lib/libtorch_cpu.so" "${TESSERA_TORCH}/lib/libc10.so")

if(TESSERA_WITH_CUDA)
  find_path(TESSERA_NCCL_INCLUDE nccl.h
            HINTS "${TESSERA_TORCH}/../nvidia/nccl/include" REQUIRED)
  add_library(tessera_torch_cuda INTERFACE)
  add_library(tessera::torch_cuda ALIAS tessera_torch_cuda)
  target_include_directories(tessera_torch_cuda SYSTEM INTERFACE "${TESSERA_NCCL_INCLUDE}")
  target_compile_definitions(tessera_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_options(tessera_torch_cuda INTERFACE "-Wl,--allow-shlib-undefined")
  target_link_libraries(tessera_torch_cuda INTERFACE
    tessera::torch "${TESSERA_TORCH}/lib/libtorch_cuda.so"
    "${TESSERA_TORCH}/lib/libc10_cuda.so" CUDA::cudart)
endif()
