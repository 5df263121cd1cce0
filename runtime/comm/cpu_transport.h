// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make_cpu_backend()` selects the transport of CPU tensors between ranks.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace tessera::runtime {

/// The environment variable TESSERA_TRANSPORT: `auto` (the default), `shm` or
/// `gloo`.
/// @throws tessera::Error when it has another value.
std::string wanted_transport();

/// Makes a backend for CPU tensors: shared memory if all ranks are on one host
/// and can share memory, else Gloo over TCP. The environment variable
/// TESSERA_TRANSPORT (`auto`, `shm` or `gloo`, the same on all ranks) overrides
/// the choice. Collective; blocks until all `size` ranks have arrived.
/// @throws tessera::Error when the variable has another value or differs
///   between ranks, and when it is `shm` and the ranks cannot share memory.
c10::intrusive_ptr<c10d::Backend> make_cpu_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

} // namespace tessera::runtime
