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

namespace tessera {

/// What a rank is about to do with all others.
struct RankIntent {
  enum class Kind : int64_t {
    kUnshard,
    kReduce,
    kBackwardEnd,
    kGatherScope,
    kSettle,
    kUnwrap,
  };
  Kind kind = Kind::kUnshard;
  int64_t group = -1;
  int64_t parameter = -1; ///< that caused it, or -1

  bool operator==(const RankIntent&) const = default;
};

/// Agreement over a communicator of its own, so that its small messages never
/// mix with the data.
///
/// [Note: ranks that disagree] A collective that was not planned is agreed on
/// first: every rank states its intent, all see all, and ranks that differ get
/// an error naming what each one wanted, never sums of the wrong groups. A
/// planned collective needs no agreement, since all ranks follow the same plan.
/// A rank that leaves the plan says so in the store, with the number of
/// collectives it has issued; a rank that waits for a later one will never be
/// joined, and stops with an error instead of hanging.
class RankAgreement {
 public:
  /// Collective. @param describe turns an intent into words for errors.
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

  /// Says that this rank left the plan of `period` after `issued` collectives.
  void announce_departure(
      uint64_t period,
      uint64_t issued,
      const std::string& what);

  /// A check for waiting on collective number `sequence` of `period`.
  WaitCheck watch(uint64_t period, uint64_t sequence);

  /// A check that only looks for other ranks' failures.
  WaitCheck watch_failures();

  /// Tells all ranks and throws.
  [[noreturn]] void fail(const std::string& message);

 private:
  std::string key(const std::string& suffix) const;
  void throw_if_failed();

  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::unique_ptr<Communicator> control_;
  std::function<std::string(const RankIntent&)> describe_;
};

} // namespace tessera
