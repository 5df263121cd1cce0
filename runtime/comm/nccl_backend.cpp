// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers NCCL.

#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/error.h"

#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

/// Defaults of variables that c10d and NCCL read when a group is made. A
/// variable that is already set takes precedence.
void set_defaults() {
  constexpr int kKeepWhatIsSet = 0;
  const std::pair<const char*, const char*> kDefaults[] = {
      // A failed or late collective ends the process (3: without clean-up,
      // which may hang), and a second thread monitors the watchdog thread.
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"},
      {"TORCH_NCCL_ENABLE_MONITORING", "1"},
      // Informs the other ranks, so that they do not wait for their own
      // timeout.
      {"TORCH_NCCL_PROPAGATE_ERROR", "1"},
      // The flight recorder: the latest collectives are written to a file when
      // one of them times out.
      {"TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"},
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
      // Collectives of different groups run in the order in which this process
      // issued them, which is the same on all ranks: those that run at the same
      // time cannot wait for each other in a circle.
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
  };
  for (const auto& [name, value] : kDefaults) {
    ::setenv(name, value, kKeepWhatIsSet);
  }
}

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
  set_defaults();
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->config.blocking = 1;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, options.rank, options.size, nccl);
  const at::Device device(
      at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index));
  // The device for a barrier, which has no tensor.
  group->setBoundDeviceId(device);
  return group;
}

const bool kRegistered = [] {
  register_nccl_backend({&make_process_group, &device_identity});
  return true;
}();

} // namespace

} // namespace tessera::runtime
