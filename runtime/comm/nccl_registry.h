// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the CUDA plugin leaves its NCCL back end when it is loaded.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace tessera {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  /// CUDA device of this rank, which no other rank of the group uses.
  int device_index = 0;
  /// The watchdog ends the process when a collective takes longer.
  std::chrono::milliseconds timeout{};
};

/// What the CUDA plugin has for this library.
struct NcclFunctions {
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(
      const c10::intrusive_ptr<c10d::Store>& store,
      const NcclOptions& options) = nullptr;
  std::string (*device_identity)(int device_index) = nullptr;
};

/// Called once, when the plugin is loaded.
void register_nccl_backend(const NcclFunctions& functions);

/// What distinguishes a CUDA device from all others in the world: its UUID.
/// @throws tessera::Error when there is no such device, with the reason.
std::string cuda_device_identity(int device_index);

/// A NCCL group for tensors on one CUDA device a rank, with c10d's watchdog and
/// flight recorder on. Its connections are made by its first collective.
/// @throws tessera::Error when there is no CUDA backend, with the reason.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options);

} // namespace tessera
