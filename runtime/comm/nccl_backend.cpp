// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that offers NCCL to the registry.

#include "tessera/runtime/comm/nccl_registry.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

namespace tessera {

namespace {

c10::intrusive_ptr<c10d::Backend> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options) {
  // The flight recorder and the thread that watches the watchdog are on by
  // c10d's own defaults; here they are made to leave their record when a
  // collective runs into its timeout. A variable that is set wins.
  constexpr int kKeepWhatIsSet = 0;
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", kKeepWhatIsSet);

  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, options.rank, options.size, nccl);
  // What a barrier, which has no tensor, runs on.
  group->setBoundDeviceId(at::Device(
      at::kCUDA, static_cast<c10::DeviceIndex>(options.device_index)));
  return group;
}

const bool kRegistered = [] {
  register_nccl_backend(&make_process_group);
  return true;
}();

} // namespace

} // namespace tessera
