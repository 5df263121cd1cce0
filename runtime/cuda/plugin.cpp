// SPDX-License-Identifier: Apache-2.0
// The entry point of the CUDA plugin. Its backends have registered themselves
// by the time it is called.

#include <ATen/detail/CUDAHooksInterface.h>

#include <cuda_runtime_api.h>

#include <string>

/// Called by load_cuda_backend(): null, or why CUDA cannot be used.
extern "C" const char* tessera_cuda_start() {
  // True for any LibTorch with CUDA, with or without devices.
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    return "LibTorch was queried for CUDA before its CUDA libraries were "
           "loaded, and has cached that there is none; call "
           "tessera::load_cuda_backend() first in main()";
  }
  // The driver may have a device and yet be of no use: too old for this
  // runtime, broken, or another user's.
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError(); // or LibTorch's next check would report it
    static const std::string kReason =
        std::string("the CUDA driver has a device, but CUDA's runtime (") +
        std::to_string(CUDART_VERSION / 1000) + "." +
        std::to_string(CUDART_VERSION % 1000 / 10) +
        ") cannot use it: " + cudaGetErrorString(error) +
        "; `nvidia-smi` shows the driver and the CUDA version that it supports";
    return kReason.c_str();
  }
  return nullptr;
}
