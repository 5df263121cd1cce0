// SPDX-License-Identifier: Apache-2.0
#pragma once
// `join_store()` opens the key-value store of a job and waits for its ranks.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace tessera::runtime {

/// Opens the store at MASTER_ADDR:MASTER_PORT, which rank 0 hosts, or
/// torchrun's agent does, and waits until all ranks have opened it. Logs every
/// 10 s which ranks are missing. Collective; blocks.
/// @param timeout of the wait, and of later operations on the store.
/// @throws tessera::Error when a variable of the environment is missing or
///   malformed, when the address cannot be opened, and naming the ranks that
///   have not joined within `timeout`.
c10::intrusive_ptr<c10d::Store> join_store(
    int rank,
    int size,
    std::chrono::milliseconds timeout);

/// Reads an environment variable of the job.
/// @throws tessera::Error naming the variable if it is not set, or is not an
///   integer from `low` to `high`.
int environment_int(const char* name, int low, int high);

} // namespace tessera::runtime
