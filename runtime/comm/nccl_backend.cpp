// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that registers NCCL.

#include "tessera/runtime/comm/nccl_registry.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/stream_marks.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
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

/// Connects the ranks, and waits for them. A communicator that is connected by
/// its first collective would block the host there: ranks that each send before
/// they receive, on groups of two, would wait for each other in a circle. The
/// broadcast is needed too, because NCCL connects what an algorithm uses when
/// it is first used.
void connect(c10d::ProcessGroupNCCL& group, at::Device device) {
  const c10::DeviceGuard guard(device);
  group.eagerConnectSingleDevice(device);
  std::vector<at::Tensor> tensors{
      at::zeros({1}, at::TensorOptions(at::kByte).device(device))};
  c10d::BroadcastOptions options;
  options.asyncOp = false; // on the current stream
  group.broadcast(tensors, options);
  current_stream(device)->synchronize();
}

c10::intrusive_ptr<c10d::Backend> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->config.blocking = 1;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, options.rank, options.size, nccl);
  const at::Device device(
      at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index));
  // The device for a barrier, which has no tensor.
  group->setBoundDeviceId(device);
  connect(*group, device);
  return group;
}

const bool kRegistered = [] {
  register_nccl_backend({&make_process_group, &device_identity});
  return true;
}();

} // namespace

} // namespace tessera::runtime
