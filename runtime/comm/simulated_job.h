// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SimulatedJob` stands for ranks that do not exist, so that one process runs a
// rank of a job of any size.
//
// Collectives end at once, as if every rank had called them with the same
// tensors: an all-gather repeats the input, a sum is multiplied by the number
// of ranks; what another rank broadcasts keeps its former value. Some ranks may
// be threads of this process, each with a World of its own: small tensors that
// one of them broadcasts in a group reach the others, which is how pipeline
// stages learn the shapes of what they receive. Larger ones, activations and
// their gradients, are received as zeros, as are those of a dry run: all
// numbers are finite if this rank's are.
//
// [Note: pipeline stages that are alike] Of stages in a row that do the same,
// the first is enough, and stands in for the others: what it sends to the
// second, the stage after the last receives, and what that one sends back to
// the last, it receives. It is the one that keeps the most micro-batches.

#include "tessera/runtime/dry_run/work_counts.h"

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::runtime {

/// Thread-safe.
class SimulatedJob {
 public:
  /// @param present the ranks that run in this process.
  /// @param device World::device(); none: that of a real job.
  /// @param longest_wait of one of them for another; see take().
  /// @param stand_ins by rank of a pipeline that does not run here, the present
  ///   one before it that is like it and like all between them. See [Note:
  ///   pipeline stages that are alike].
  explicit SimulatedJob(
      std::vector<int> present,
      std::optional<c10::Device> device = std::nullopt,
      std::chrono::seconds longest_wait = std::chrono::minutes(1),
      std::map<int, int> stand_ins = {});

  const std::vector<int>& present() const {
    return present_;
  }
  /// Whether another rank is run in place of this one.
  bool has_stand_in(int rank) const {
    return stand_ins_.count(rank) > 0;
  }
  /// The present rank with which `rank` exchanges what it would with its
  /// neighbor `other`: `other` itself if it is present; nothing if nothing
  /// stands in for it.
  std::optional<int> partner(int rank, int other) const;
  const std::optional<c10::Device>& device() const {
    return device_;
  }
  /// What ranks of this process share.
  const c10::intrusive_ptr<c10d::Store>& store() const {
    return store_;
  }

  void add_work(
      int rank,
      const std::string& communicator,
      const char* kind,
      const std::vector<int>& members,
      double bytes);
  /// What `rank` has called since the start, or since it was last forgotten.
  std::vector<CollectiveWork> work(int rank) const;
  void forget_work(int rank);

  void add_seconds(int rank, double seconds);
  /// Host time that `rank` has spent in collectives since the start, which in a
  /// real job would be the network's.
  double seconds(int rank) const;

  /// Leaves a message under a name; any number may wait there.
  void post(const std::string& name, std::string message);
  /// Takes the oldest message. Blocks until there is one.
  /// @throws tessera::Error after end(), or if none comes within longest_wait.
  std::string take(const std::string& name);
  /// Another rank's thread has failed: nobody waits any longer.
  void end(const std::string& reason);

 private:
  using Key = std::tuple<int, std::string, std::string, std::vector<int>>;

  std::vector<int> present_; ///< ascending
  std::map<int, int> stand_ins_;
  std::optional<c10::Device> device_;
  std::chrono::seconds longest_wait_;
  c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, CollectiveWork> work_;
  std::map<int, double> seconds_; ///< by rank
  std::map<std::string, std::deque<std::string>> messages_;
  std::string end_;
};

/// The backend of one group. @param key as World::join_group().
/// @param ranks of the group; `rank` is among them.
c10::intrusive_ptr<c10d::Backend> make_simulated_backend(
    const std::shared_ptr<SimulatedJob>& job,
    const std::string& communicator,
    const std::string& key,
    int rank,
    const std::vector<int>& ranks);

} // namespace tessera::runtime
