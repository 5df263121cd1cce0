// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/nccl_registry.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"

namespace tessera {

namespace {

// One plugin serves the process; it registers before any group is made.
NcclBackendFactory registered = nullptr;

} // namespace

void register_nccl_backend(NcclBackendFactory factory) {
  registered = factory;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options) {
  const CudaBackend& cuda = load_cuda_backend();
  TESSERA_CHECK(
      cuda.loaded && registered != nullptr,
      "a communicator for CUDA tensors needs a CUDA device: ",
      cuda.reason,
      ". Keep the model on the CPU, or mend what is named here.");
  TESSERA_CHECK(
      options.device_index >= 0 && options.device_index < cuda.device_count,
      "rank ",
      options.rank,
      " wants CUDA device ",
      options.device_index,
      ", and there are ",
      cuda.device_count,
      " on this machine; start as many local ranks as it has devices");
  return registered(store, options);
}

} // namespace tessera
