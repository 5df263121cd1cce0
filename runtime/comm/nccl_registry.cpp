// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/nccl_registry.h"

#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

std::atomic<int64_t> groups_made{0};

// One plugin per process; it registers before any group is made.
NcclFunctions nccl_functions;

const NcclFunctions& functions_for_device(int device_index) {
  const CudaBackend& cuda = load_cuda_backend();
  TESSERA_CHECK(
      cuda.loaded && nccl_functions.make_backend != nullptr,
      "a communicator for CUDA tensors needs a CUDA device: {}. Fix this, or keep the model on the CPU.",
      cuda.reason);
  TESSERA_CHECK(
      device_index >= 0 && device_index < cuda.device_count,
      "a communicator was requested for CUDA device {}, but this machine has {} of them; move the module to an existing one, e.g. with module.to(tessera::world().device())",
      device_index,
      cuda.device_count);
  return nccl_functions;
}

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

} // namespace

void register_nccl_backend(const NcclFunctions& functions) {
  nccl_functions = functions;
}

std::string cuda_device_identity(int device_index) {
  return functions_for_device(device_index).device_identity(device_index);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options) {
  set_defaults();
  auto backend =
      functions_for_device(options.device_index).make_backend(store, options);
  ++groups_made;
  return backend;
}

int64_t nccl_groups_made() {
  return groups_made;
}

void connect_ranks(c10d::Backend& group, at::Device device) {
  const c10::DeviceGuard guard(device);
  group.eagerConnectSingleDevice(device);
  std::vector<at::Tensor> tensors{
      at::zeros({1}, at::TensorOptions(at::kByte).device(device))};
  c10d::BroadcastOptions options;
  options.asyncOp = false; // on the current stream
  group.broadcast(tensors, options);
  current_stream(device)->synchronize();
}

} // namespace tessera::runtime
