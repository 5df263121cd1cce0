// SPDX-License-Identifier: Apache-2.0
#pragma once
// `load_cuda_backend()` loads the CUDA plugin at run time if there is a CUDA
// device.

#include <c10/core/DeviceType.h>

#include <string>
#include <vector>

namespace tessera::runtime {

struct CudaBackend {
  bool loaded = false;
  /// CUDA devices visible to this process; 0 unless loaded.
  int device_count = 0;
  /// Of each of them, as the driver gives it: "NVIDIA A100-SXM4-80GB".
  std::vector<std::string> device_names;
  /// Why it is not loaded; empty if it is.
  std::string reason;
  /// Another than CUDA only in tests.
  c10::DeviceType device_type = c10::DeviceType::CUDA;
};

/// Loads the CUDA plugin, once per process, if the CUDA driver finds a device.
/// All CUDA code is in this plugin, libtessera_cuda.so next to this library, so
/// that a program on a machine without a CUDA device does not load LibTorch's
/// CUDA libraries. Its kernels and NCCL backend register themselves. Later
/// calls return the same result. Thread-safe.
///
/// Call it before LibTorch is first asked about CUDA (torch::manual_seed and
/// torch::cuda::is_available do that), since LibTorch caches its first answer.
/// Do not fork afterwards: CUDA does not work in the child.
const CudaBackend& load_cuda_backend();

/// Makes load_cuda_backend() return `backend` instead of loading the plugin, so
/// that tests run on another accelerator. They register what the plugin would
/// (register_nccl_backend(), register_device_kernels() and
/// register_host_pinning()), before anything else runs.
void replace_cuda_backend(CudaBackend backend);

} // namespace tessera::runtime
