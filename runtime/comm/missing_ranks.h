// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MissingRanks` tells a rank that waits for a collective which ranks it waits
// for.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::runtime {

/// The ranks of one communicator. A rank that has waited for a collective for a
/// while notes its number in a store; ranks without that note have not joined
/// the collective, or have just done so. A collective that ends in time does
/// not use the store.
class MissingRanks {
 public:
  /// @param store of this communicator alone.
  /// @param rank of this process in the communicator.
  /// @param job_ranks the number of each rank in the job, for messages.
  MissingRanks(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      std::vector<int> job_ranks);

  /// Notes that this rank waits for collective `number`, counted from 0.
  void answer(uint64_t number);

  struct Answers {
    /// Of the job, ascending, that have not noted that they wait for the
    /// collective or a later one.
    std::vector<int> missing;
    /// Whether this rank is the first of those that have.
    bool is_first = false;
  };

  /// @throws c10::Error or LostRankError when the store is gone, and with it
  ///   its rank.
  Answers answers(uint64_t number) const;

  /// GroupStore::end_of_a_rank(); "" for other stores.
  std::string end_of_a_rank(std::chrono::milliseconds patience) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<int> job_ranks_;
};

/// Between log lines of a rank that waits for others.
inline constexpr std::chrono::seconds kWaitNoticeInterval{10};

/// "rank 3", "ranks 1, 2 and 5".
std::string ranks_text(const std::vector<int>& ranks);

} // namespace tessera::runtime
