// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that pins host memory.

#include "tessera/runtime/memory/host_pinning.h"

#include <cuda_runtime_api.h>

#include <array>

namespace tessera::runtime {

namespace {

std::string pin(void* data, size_t bytes) {
  const cudaError_t error =
      cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) {
    return "";
  }
  (void)cudaGetLastError(); // else the next CUDA call would report it
  return cudaGetErrorString(error);
}

void unpin(void* data) {
  if (cudaHostUnregister(data) != cudaSuccess) {
    (void)cudaGetLastError(); // at exit the driver may be gone
  }
}

std::string bus_id(c10::DeviceIndex device) {
  std::array<char, 32> text{};
  if (cudaDeviceGetPCIBusId(
          text.data(), static_cast<int>(text.size()), device) != cudaSuccess) {
    (void)cudaGetLastError();
    return "";
  }
  return text.data();
}

const bool kRegistered = [] {
  register_host_pinning({&pin, &unpin, &bus_id});
  return true;
}();

} // namespace

} // namespace tessera::runtime
