# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: libraries, headers as "tessera/<room>/...",
# the programs, and a package for find_package(tessera). The tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Libraries beside each other, programs beside the folder of libraries. LibTorch
# is found where it was at build time; see tessera::torch.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
if(SKBUILD) # a wheel, whose libraries are all in one folder
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()
set(TESSERA_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/tessera")

function(tessera_install_library name)
  if(NOT TESSERA_INSTALL)
    return()
  endif()
  set_target_properties(tessera_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS tessera_${name} EXPORT tesseraTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

function(tessera_install_program name)
  if(TESSERA_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# Headers and the CMake package; after all libraries.
function(tessera_install_package)
  foreach(_room runtime sharding offload pipeline engine planner text zoo tasks)
    install(DIRECTORY ${_room}
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera
            FILES_MATCHING PATTERN "*.h"
            PATTERN gloo_shim EXCLUDE)
  endforeach()
  file(GLOB _umbrellas CONFIGURE_DEPENDS include/tessera/*.h)
  install(FILES ${_umbrellas}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
  install(EXPORT tesseraTargets NAMESPACE tessera::
          DESTINATION ${TESSERA_PACKAGE_DIR})
  # In a folder of their own: find_package() looks into the build folder if its
  # bin/ is on PATH, and they serve what is installed only.
  configure_package_config_file(
    cmake/tesseraConfig.cmake.in "${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake"
    INSTALL_DESTINATION ${TESSERA_PACKAGE_DIR})
  write_basic_package_version_file(
    "${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES
    "${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake"
    "${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake"
    cmake/TesseraTorch.cmake
    DESTINATION ${TESSERA_PACKAGE_DIR})
  install(FILES LICENSE configs/README.md
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
