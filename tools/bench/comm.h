// SPDX-License-Identifier: Apache-2.0
#pragma once
// `measure_comm()` measures the collectives of a job as nccl-tests does.

#include "tessera/runtime/comm/init.h"

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

enum class CommKind {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSendReceive, ///< to the next rank of a ring, from the one before
};

const char* name_of(CommKind kind);
/// All of them, in order.
const std::vector<CommKind>& comm_kinds();

/// The factor from algorithm bandwidth to bus bandwidth, which does not depend
/// on the number of ranks where a ring is limited by its links: 2 (n - 1) / n
/// for all-reduce, (n - 1) / n for all-gather, reduce-scatter and all-to-all, 1
/// for the others (nccl-tests, doc/PERFORMANCE.md).
double bus_factor(CommKind kind, int ranks);

struct CommOptions {
  std::vector<CommKind> kinds = comm_kinds();
  std::vector<c10::ScalarType> dtypes{c10::ScalarType::Float};
  /// "shm", "gloo", "cuda"; empty: what the engine uses on World::device().
  std::vector<std::string> transports;
  int64_t min_bytes = 1024;
  int64_t max_bytes = int64_t{16} << 20;
  int64_t factor = 4; ///< from a size to the next
  int iterations = 20;
  int warmup = 5;
};

struct CommResult {
  CommKind kind = CommKind::kAllGather;
  std::string transport; ///< c10d's name of the backend
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Of the whole tensor, as nccl-tests' column "size": the output of an
  /// all-gather, the input of a reduce-scatter, what a rank sends to all in an
  /// all-to-all.
  int64_t bytes = 0;
  double seconds = 0; ///< of one, mean over iterations and ranks
  int64_t wrong = 0; ///< elements with another value than expected, all ranks

  double algorithm_bandwidth() const {
    return static_cast<double>(bytes) / seconds;
  }
  double bus_bandwidth(int ranks) const {
    return algorithm_bandwidth() * bus_factor(kind, ranks);
  }
};

struct CommFindings {
  int ranks = 1;
  int nodes = 1;
  std::vector<CommResult> results;
};

/// Collective over the job.
/// @param report called on rank 0 with each result.
/// @throws tessera::Error on a transport that the job does not have.
CommFindings measure_comm(
    World& world,
    const CommOptions& options,
    const std::function<void(const CommResult&)>& report = {});

/// Bandwidths in bytes per second, times in seconds, below "comm".
nlohmann::ordered_json to_json(const CommFindings& findings);

/// The columns of comm_row(): sizes in bytes, times in us, bandwidths in GB/s
/// (10^9).
std::string comm_header();
std::string comm_row(const CommResult& result, int ranks);

} // namespace tessera::tools
