// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JobAgreement` makes all ranks of a job take the same decision.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <exception>
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
  /// @param label begins the message on the other ranks.
  int64_t from_rank_zero(
      const std::string& label,
      const std::function<int64_t()>& decide);

  /// As from_rank_zero(), for work that may take longer than ranks wait for
  /// each other: `work` calls its argument, which is collective for the others,
  /// every few seconds.
  void by_rank_zero(
      const std::string& label,
      const std::function<void(const std::function<void()>& go_on)>& work);

 private:
  /// @throws the error of rank 0, and on other ranks one that names it.
  void check_rank_zero(
      const std::string& label,
      const std::exception_ptr& error,
      bool has_failed) const;

  bool is_rank_zero_;
  std::unique_ptr<Communicator> ranks_;
  WaitCheck check_;
};

} // namespace tessera::engine
