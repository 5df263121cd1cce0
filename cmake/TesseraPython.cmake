# SPDX-License-Identifier: Apache-2.0
# TESSERA_WITH_PYTHON: whether the Python package is built, for the Python whose
# torch package is TESSERA_TORCH.
set(TESSERA_WITH_PYTHON OFF)
if(TESSERA_PYTHON)
  # Not Python3, which is what runs scripts.
  get_filename_component(_prefix "${TESSERA_TORCH}/../../../.." ABSOLUTE)
  if(NOT Python_EXECUTABLE AND EXISTS "${_prefix}/bin/python3")
    set(Python_EXECUTABLE "${_prefix}/bin/python3" CACHE FILEPATH "")
  endif()
  find_package(Python COMPONENTS Interpreter Development.Module)
  # LibTorch's Python side starts only where all of its libraries are.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import torch; print(torch.__path__[0])"
    OUTPUT_VARIABLE _imported OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE _import_error RESULT_VARIABLE _import_rc)
  if(_import_rc EQUAL 0)
    get_filename_component(_imported "${_imported}" REALPATH)
  endif()
  if(Python_Development.Module_FOUND AND "${_imported}" STREQUAL TESSERA_TORCH)
    set(TESSERA_WITH_PYTHON ON)
    message(STATUS "Python package: for ${Python_EXECUTABLE} ${Python_VERSION}")
  elseif(NOT TESSERA_PYTHON STREQUAL "AUTO")
    message(FATAL_ERROR
      "TESSERA_PYTHON is ON, but ${Python_EXECUTABLE} has no headers "
      "(python3-dev), or does not import the torch of TESSERA_TORCH "
      "(${TESSERA_TORCH}), but '${_imported}' ${_import_error}. Install them, "
      "set Python_EXECUTABLE, or set TESSERA_PYTHON=OFF.")
  endif()
endif()
