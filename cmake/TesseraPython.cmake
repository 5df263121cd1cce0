# SPDX-License-Identifier: Apache-2.0
# TESSERA_WITH_PYTHON: whether the Python package is built, and the Python that
# it is for: the one whose torch package is TESSERA_TORCH.
set(TESSERA_WITH_PYTHON OFF)
if(TESSERA_PYTHON)
  get_filename_component(_prefix "${TESSERA_TORCH}/../../../.." ABSOLUTE)
  if(NOT Python3_EXECUTABLE AND EXISTS "${_prefix}/bin/python3")
    set(Python3_EXECUTABLE "${_prefix}/bin/python3")
  endif()
  find_package(Python3 COMPONENTS Interpreter Development.Module)
  if(Python3_Development.Module_FOUND AND
     EXISTS "${TESSERA_TORCH}/lib/libtorch_python.so")
    set(TESSERA_WITH_PYTHON ON)
    message(STATUS "Python package: ${Python3_EXECUTABLE} ${Python3_VERSION}")
  elseif(NOT TESSERA_PYTHON STREQUAL "AUTO")
    message(FATAL_ERROR
      "TESSERA_PYTHON is ON, but Python's headers (python3-dev) or "
      "'${TESSERA_TORCH}/lib/libtorch_python.so' are missing. Install them, set "
      "TESSERA_TORCH to the torch package of a Python environment, or set "
      "TESSERA_PYTHON=OFF.")
  endif()
endif()
