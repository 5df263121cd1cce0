// SPDX-License-Identifier: Apache-2.0
// A CUDA driver, libcuda.so.1, that finds no device.

#include <cstdlib>

namespace {

int connections = 0;

} // namespace

extern "C" {

int cuInit(unsigned int /*flags*/) {
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  connections = text == nullptr ? 0 : std::atoi(text);
  constexpr int kNoDevice = 100;
  return kNoDevice;
}

int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}

/// What CUDA_DEVICE_MAX_CONNECTIONS was in cuInit(); 0: not set.
int connections_at_start() {
  return connections;
}

} // extern "C"
