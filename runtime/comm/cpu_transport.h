// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which way CPU tensors travel between ranks.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace tessera {

/// A group for CPU tensors. Ranks of one host talk through shared memory,
/// others over TCP (Gloo). The environment variable TESSERA_TRANSPORT, the same
/// on all ranks, overrides the choice: `auto`, `shm` or `gloo`.
/// Collective; blocks until all `size` ranks have arrived.
/// @throws tessera::Error when the variable is none of these or differs between
///   ranks, and when `shm` is asked for and ranks cannot share memory.
c10::intrusive_ptr<c10d::Backend> make_cpu_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

} // namespace tessera
