// SPDX-License-Identifier: Apache-2.0
#pragma once
// How ranks make sure that they are about to do the same thing, and how they
// find out when one of them went another way.

#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// What a rank is about to do with all others.
struct RankIntent {
  enum class Kind : int64_t {
    kUnshard,
    kReduce,
    kBackwardEnd,
    kGatherScope,
    kForwardPhase, ///< of a training step, or without gradients
    kClip,
    kReadGradient,
    kAddGradient,
    kStep,
    kSum,
    kUnwrap,
  };
  Kind kind = Kind::kUnshard;
  int64_t group = -1; ///< or the number of the phase
  int64_t parameter = -1; ///< that caused it, or -1
};

/// Agreement over a communicator of its own, so that its small messages never
/// mix with the data.
///
/// [Note: ranks that disagree] A collective that was not planned is agreed on
/// first: every rank states its intent, all see all, and ranks that differ get
/// an error naming what each one wanted, never sums of the wrong groups. A
/// planned collective needs no agreement, since all ranks follow the same plan.
///
/// A rank that has waited for an agreement for a while notes in the store which
/// one it is (they are counted), how many planned collectives it has issued,
/// and what it wants. A rank that waits for a later collective, and has not
/// been in that agreement, sees that each waits for the other: both end with an
/// error instead of hanging. An agreement that comes about costs no note.
class RankAgreement {
 public:
  /// Collective. Agreements of one job do not see each other, whatever their
  /// names. @param world outlives this object. @param describe turns an intent
  /// into words for errors.
  RankAgreement(
      World& world,
      const std::string& name,
      std::function<std::string(const RankIntent&)> describe);

  int rank() const {
    return control_->rank();
  }
  int size() const {
    return control_->size();
  }
  Communicator& control() {
    return *control_;
  }

  /// States `mine` and blocks until every rank has stated its own.
  /// @return nothing when all agree; or the group of a reduction that some
  ///   rank wants first: every rank joins it, then states its intent again.
  /// @throws tessera::Error naming every rank's intent when they differ.
  std::optional<int64_t> agree(const RankIntent& mine);

  /// To be called for every planned or agreed data collective, when it is
  /// issued. @return its number.
  uint64_t count_collective() {
    return issued_++;
  }

  /// A check for waiting on data collective number `sequence`.
  /// @param doing what this rank is doing, for the error.
  WaitCheck watch(uint64_t sequence, std::function<std::string()> doing);

  /// A check that only looks for other ranks' failures.
  WaitCheck watch_failures();

  /// Tells the other ranks that this one has failed: their waits end with an
  /// error that gives the reason.
  void report(const std::string& reason) noexcept;

  /// Tells all ranks and throws.
  [[noreturn]] void fail(const std::string& message);

 private:
  /// A rank and what it does, in words.
  using Account = std::pair<int, std::string>;

  std::string key(const std::string& suffix) const;
  std::string key_of_rank(int rank) const;
  /// In the store of the job: what the parts of a model tell each other.
  std::string key_of_failure() const;
  WaitCheck watch_agreement(const RankIntent& mine);
  std::string disagreement(const std::vector<Account>& accounts) const;
  void throw_if_failed();

  /// "rank 3", by its number in the job.
  std::string name_of_rank(int rank) const;

  World& world_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::unique_ptr<Communicator> control_;
  std::function<std::string(const RankIntent&)> describe_;
  uint64_t agreements_ = 0; ///< that have come about
  uint64_t issued_ = 0; ///< data collectives
};

} // namespace tessera
