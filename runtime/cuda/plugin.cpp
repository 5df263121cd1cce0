// SPDX-License-Identifier: Apache-2.0
// The entry point of the CUDA plugin. Its backends have registered themselves
// by the time it is called.

#include <ATen/detail/CUDAHooksInterface.h>

/// Called by load_cuda_backend(): null, or why CUDA cannot be used.
extern "C" const char* tessera_cuda_start() {
  // True for any LibTorch with CUDA, with or without devices.
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    return "LibTorch was queried for CUDA before its CUDA libraries were "
           "loaded, and has cached that there is none; call "
           "tessera::load_cuda_backend() first in main()";
  }
  return nullptr;
}
