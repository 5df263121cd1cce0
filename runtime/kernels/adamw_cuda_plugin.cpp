// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that offers AdamW to the registry.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_cuda.h"
#include "tessera/runtime/kernels/cuda_registry.h"

#include <c10/cuda/CUDAStream.h>

namespace tessera {

namespace {

template <typename T>
void update_on_current_stream(const AdamWShard<T>& shard) {
  const cudaError_t error =
      launch_adamw(shard, c10::cuda::getCurrentCUDAStream().stream());
  TESSERA_CHECK(
      error == cudaSuccess,
      "adamw_: the CUDA kernel for ",
      shard.numel,
      " elements did not start: ",
      cudaGetErrorString(error));
}

const bool kRegistered = [] {
  register_adamw_cuda(
      {&update_on_current_stream<float>, &update_on_current_stream<double>});
  return true;
}();

} // namespace

} // namespace tessera
