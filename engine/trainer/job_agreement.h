// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JobAgreement` makes all ranks of a job take the same decision.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::engine {

/// Small values over all ranks of the job, over a communicator of its own on
/// the CPU: devices are not waited for.
class JobAgreement {
 public:
  /// Collective.
  /// @param name names the decisions in errors.
  /// @param check called while this rank waits for others; may be empty.
  JobAgreement(World& world, const std::string& name, WaitCheck check = {});

  /// The maximum over the ranks of each value. Collective; blocks.
  std::vector<int64_t> max(const std::vector<int64_t>& values);

  /// Calls `decide` on rank 0 and returns its result on all ranks; if it
  /// throws, every rank throws. Collective; blocks.
  /// @param what begins the message on the other ranks.
  int64_t from_rank_zero(
      const std::string& what,
      const std::function<int64_t()>& decide);

 private:
  bool is_rank_zero_;
  std::unique_ptr<Communicator> ranks_;
  WaitCheck check_;
};

} // namespace tessera::engine
