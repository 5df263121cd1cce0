// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers NCCL.

#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/error.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::runtime {

namespace {

/// "GPU-..." and the UUID in hexadecimal; the same for all processes that see
/// the device.
std::string device_identity(int device_index) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device_index);
  TESSERA_CHECK(
      error == cudaSuccess,
      "cannot query the properties of CUDA device {}: {}",
      device_index,
      cudaGetErrorString(error));
  std::ostringstream text;
  text << "GPU-" << std::hex << std::setfill('0');
  for (const char byte : properties.uuid.bytes) {
    text << std::setw(2) << (static_cast<unsigned>(byte) & 0xff);
  }
  return text.str();
}

c10::intrusive_ptr<c10d::Backend> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->config.blocking = 1;
  nccl->group_name = options.name;
  nccl->global_ranks_in_group.assign(
      options.job_ranks.begin(), options.job_ranks.end());
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, options.rank, options.size, nccl);
  const at::Device device(
      at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index));
  // The device for a barrier, which has no tensor.
  group->setBoundDeviceId(device);
  connect_ranks(*group, device);
  return group;
}

const bool kRegistered = [] {
  register_nccl_backend({&make_process_group, &device_identity});
  return true;
}();

} // namespace

} // namespace tessera::runtime
