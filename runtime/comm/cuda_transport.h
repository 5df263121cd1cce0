// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which way CUDA tensors travel between ranks.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace tessera {

/// Ranks that share a device, as "ranks 0 and 3"; empty when none do.
/// @param identities of every rank's device, by rank.
std::string ranks_on_one_device(const std::vector<std::string>& identities);

/// A group for CUDA tensors: NCCL where every rank has a device of its own. Two
/// ranks on one device are more than NCCL can serve; they get a group for CPU
/// tensors (make_cpu_backend()), and Communicator copies to the host and back:
/// slow, and meant for tests.
/// Collective; blocks until all `size` ranks have arrived.
/// @throws tessera::Error when there is no CUDA device, with the reason.
c10::intrusive_ptr<c10d::Backend> make_cuda_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device_index,
    std::chrono::milliseconds timeout);

} // namespace tessera
