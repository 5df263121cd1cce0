// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cuda_registry.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

namespace {

// One plugin serves the process; it registers before any kernel is asked for.
UpdateCudaFunctions registered;

} // namespace

void register_update_cuda(const UpdateCudaFunctions& functions) {
  registered = functions;
}

const UpdateCudaFunctions& update_cuda_functions() {
  TESSERA_CHECK(
      std::get<0>(registered) != nullptr,
      "adamw_: the CUDA backend is not loaded, so CUDA tensors cannot be "
      "updated; build with -DTESSERA_CUDA=ON, or keep the shard on the CPU");
  return registered;
}

} // namespace tessera
