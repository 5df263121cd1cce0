// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupStore` holds the keys of one group of ranks in the store of a job, and
// names the ranks that a wait for them is for.

#include "tessera/runtime/comm/missing_ranks.h"
#include "tessera/runtime/core/error.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::runtime {

class RankEnds;
struct RankEnd;

/// A rank of a group failed or has ended, or did not come in time, before the
/// ranks had what they were waiting for. Other ways to the same goal need that
/// rank too.
class LostRankError : public Error {
 public:
  using Error::Error;
};

/// [Note: waits on the store] The ranks of a group meet in a key-value store
/// before they have a backend: its backends, c10d's included, wait there for
/// keys that other ranks set. c10d's stores wait without a word, with the lock
/// of their connection held, so that other groups of the process wait too, and
/// their errors name neither rank nor purpose. A GroupStore asks for the keys
/// again and again (after 1 ms first, 50 ms at most) instead. Meanwhile it logs
/// every 10 s which ranks are missing, and ends with an error that names the
/// rank when one has ended ([Note: ranks that have ended]) or has called
/// report(). Thread-safe.
class GroupStore : public c10d::Store {
 public:
  struct Group {
    std::string label; ///< what waits are for: "making the group 'engine'"
    std::string key; ///< the prefix of its keys, used by no other group
    int rank = 0; ///< of this process, in the group
    std::vector<int> job_ranks; ///< the number of each rank in the job
  };

  /// Notes that this rank has come.
  /// @param job the store of the job.
  /// @param timeout of a wait.
  /// @param notice_interval between log lines of a wait.
  GroupStore(
      c10::intrusive_ptr<c10d::Store> job,
      Group group,
      std::chrono::milliseconds timeout,
      std::chrono::milliseconds notice_interval = kWaitNoticeInterval);

  const std::vector<int>& job_ranks() const {
    return group_.job_ranks;
  }

  /// Ends the waits of the other ranks: this one cannot continue.
  void report(const std::string& reason) noexcept;

  /// Waits up to `patience` for the end of one of the ranks. Returns what is
  /// known of those that have ended (text_of_end()), or "".
  std::string end_of_a_rank(std::chrono::milliseconds patience);

  c10::intrusive_ptr<Store> clone() override;
  using Store::set;
  /// @throws LostRankError when the store is gone.
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using Store::compareSet;
  std::vector<uint8_t> compareSet(
      const std::string& key,
      const std::vector<uint8_t>& expected,
      const std::vector<uint8_t>& desired) override;
  /// @throws LostRankError as wait() does.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  /// @throws LostRankError when a rank has ended or failed and the keys are not
  ///   there, when the store is gone, or after `timeout`; 0 is no limit.
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value)
      override;
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;
  void multiSet(
      const std::vector<std::string>& keys,
      const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override;

 private:
  GroupStore(const GroupStore& other, c10::intrusive_ptr<c10d::Store> job);

  /// Throws when a rank has failed or ended and `keys` are not there.
  void check_ranks(const std::vector<std::string>& keys);
  /// Tells the others that this rank has seen the end of some. Rank 0, whose
  /// store may end with it, waits until they have seen it too, 2 s at most: the
  /// reason is in the store.
  void share_look(const std::vector<RankEnd>& ended);
  [[noreturn]] void fail(const std::string& reason) const;
  /// The store is gone, and mostly the rank that hosts it.
  [[noreturn]] void fail_without_store(const c10::Error& error);
  /// The ranks that have not come, numbered as in the job.
  std::vector<int> missing_ranks();
  void log_wait(std::chrono::seconds waited);

  c10::intrusive_ptr<c10d::Store> job_;
  Group group_;
  c10::intrusive_ptr<c10d::PrefixStore> keys_;
  std::chrono::milliseconds notice_interval_;
  RankEnds* ends_; ///< null: not of the job that this process has joined
};

/// The number in the job of each rank of the group to which a GroupStore,
/// perhaps with further prefixes, belongs. Other stores: 0 ... `size` - 1.
std::vector<int> job_ranks(c10d::Store& store, int size);

} // namespace tessera::runtime
