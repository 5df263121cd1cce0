// SPDX-License-Identifier: Apache-2.0
#pragma once
// `register_nccl_backend()` receives the NCCL backend of the CUDA plugin.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::runtime {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  /// CUDA device of this rank; no other rank of the group may use it.
  int device_index = 0;
  /// The watchdog ends the process if a collective takes longer.
  std::chrono::milliseconds timeout{};
  /// Of the group, in the records of the flight recorder; no other group of
  /// the process has it.
  std::string name;
  /// The number in the job of each rank of the group, for these records.
  std::vector<int> job_ranks;
};

/// Functions that the CUDA plugin provides.
struct NcclFunctions {
  /// Ends with connect_ranks().
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(
      const c10::intrusive_ptr<c10d::Store>& store,
      const NcclOptions& options) = nullptr;
  std::string (*device_identity)(int device_index) = nullptr;
};

/// Called once, when the plugin is loaded.
void register_nccl_backend(const NcclFunctions& functions);

/// Returns the UUID of a CUDA device, which is globally unique.
/// @throws tessera::Error when there is no such device, with the reason.
std::string cuda_device_identity(int device_index);

/// Makes an NCCL backend, with one CUDA device per rank and with c10d's
/// watchdog and flight recorder enabled. Collective; connects the ranks and
/// blocks until all have arrived.
/// @throws tessera::Error when there is no CUDA backend, with the reason.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    const NcclOptions& options);

/// How many backends make_nccl_backend() has made in this process. Each takes
/// device memory.
int64_t nccl_groups_made();

/// Connects the ranks of a new backend, and waits for them. A communicator that
/// is connected by its first collective would block the host there: ranks that
/// each send before they receive, on groups of two, would wait for each other
/// in a circle. It broadcasts, because NCCL connects what an algorithm uses
/// when it is first used. Collective.
void connect_ranks(c10d::Backend& group, at::Device device);

} // namespace tessera::runtime
