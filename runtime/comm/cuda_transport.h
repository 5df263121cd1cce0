// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make_cuda_backend()` selects the transport of CUDA tensors between ranks.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace tessera::runtime {

/// Lists ranks that share a device, as "ranks 0 and 3"; empty if none do.
/// @param identities identity of each rank's device, by rank.
std::string ranks_on_one_device(const std::vector<std::string>& identities);

/// Makes a backend for ranks that all have the same CUDA device, whose
/// collectives run on streams, as those of NCCL. Collective.
/// @throws tessera::Error where it does not work, with the same reason on all
///   ranks.
using SharedDeviceBackend = c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device_index,
    std::chrono::milliseconds timeout);

/// Called when a plug-in is loaded that has one, as that of the tests.
/// @param make null: there is none any more.
void register_shared_device_backend(SharedDeviceBackend* make);
/// Null without a plug-in.
SharedDeviceBackend* shared_device_backend();

/// Makes a backend for CUDA tensors: NCCL if every rank has a device of its
/// own, which it needs. If all ranks share one, shared_device_backend(). If
/// there is none or it does not work, if only some ranks share one, or if
/// TESSERA_TRANSPORT is `shm` or `gloo`, a backend for CPU tensors
/// (make_cpu_backend()): Communicator then copies through the host, which is
/// slow and blocks it. Collective; blocks until all `size` ranks have arrived.
/// @param name of the group in c10d's records of collectives; of no other.
/// @throws tessera::Error when there is no CUDA device, with the reason.
c10::intrusive_ptr<c10d::Backend> make_cuda_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device_index,
    std::chrono::milliseconds timeout,
    const std::string& name);

} // namespace tessera::runtime
