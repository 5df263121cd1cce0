// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"

#include <cstdlib>

namespace tessera::tests {

std::string source_dir() {
  const char* const set = std::getenv("TESSERA_SOURCE_DIR");
  return set != nullptr ? set : TESSERA_SOURCE_DIR;
}

std::string program(const std::string& name) {
  return TESSERA_BINARY_DIR "/bin/" + name;
}

std::string cuda_plugin() {
  return TESSERA_BINARY_DIR "/lib/libtessera_cuda.so";
}

std::string shared_device_plugin() {
  return TESSERA_BINARY_DIR "/lib/libtessera_shared_device.so";
}

std::string fake_cuda_driver() {
  return TESSERA_BINARY_DIR "/tests/fake_cuda_driver/libcuda.so.1";
}

std::string fake_nvml() {
  return TESSERA_BINARY_DIR "/tests/fake_nvml/libnvidia-ml.so.1";
}

std::string version() {
  return TESSERA_VERSION;
}

} // namespace tessera::tests
