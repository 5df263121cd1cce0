// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads the CUDA side at run time, where there is a device to use it.

#include <string>

namespace tessera {

struct CudaBackend {
  bool loaded = false;
  /// CUDA devices that this process sees; 0 unless loaded.
  int device_count = 0;
  /// Why it is not loaded; empty when it is.
  std::string reason;
};

/// All CUDA code is in one plugin, libtessera_cuda.so beside this library, so
/// that a program on a machine without a CUDA device does not load LibTorch's
/// CUDA libraries. This loads it, once per process, if the CUDA driver finds a
/// device; what the plugin holds (kernels, NCCL) registers itself. Later calls
/// return the same answer. Thread-safe.
///
/// Call it before LibTorch is first asked about CUDA (torch::manual_seed and
/// torch::cuda::is_available do): LibTorch remembers its first answer. Do not
/// fork afterwards: CUDA does not work in the child.
const CudaBackend& load_cuda_backend();

} // namespace tessera
