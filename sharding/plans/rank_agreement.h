// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankAgreement` makes ranks agree on what they are about to do, and detects
// ranks that do something else.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// What ranks do with the files of a model.
enum class FileUse : int64_t {
  kSave, ///< a checkpoint
  kLoad, ///< a checkpoint
  kLoadWeights,
  kGiveValues, ///< lists tensors, or sends their values to rank 0
};

/// A collective operation that a rank is about to start.
struct RankIntent {
  enum class Kind : int64_t {
    kUnshard,
    kReduce,
    kBackwardEnd,
    kGatherScope,
    kForwardPhase, ///< of a training step, or without gradients
    kClip,
    kReadGradient,
    kInspect,
    kAddGradient,
    kStep,
    kSum,
    kFiles, ///< of the model; `group` is a FileUse
    kUnwrap,
    kCompareValues, ///< of parameters; `group` is their hash
  };
  Kind kind = Kind::kUnshard;
  /// Or the number of the phase, a FileUse, of kStep a number that stands for
  /// all its settings, or of kClip the bits of the norm's p or of the limit.
  int64_t group = -1;
  /// That caused it, or -1; of kStep the bits of the learning rate, of kClip 0
  /// for a norm and 1 for a limit.
  int64_t parameter = -1;
  /// See Pager::settle_gradients(); ranks may differ in it.
  bool is_settled = false;
};

/// The ranks state the same operation with other numbers. All ranks that agree
/// get it.
class OtherSettingsError : public Error {
 public:
  using Error::Error;
};

/// What the ranks have stated, if they can continue.
struct RankConsent {
  /// The group of a reduction that some rank needs first: every rank joins it,
  /// then states its intent again. Nothing: all agree.
  std::optional<int64_t> reduction;
  bool all_settled = false;
};

/// Agreement over a communicator of its own, so that its small messages are
/// never mixed with the data.
///
/// [Note: ranks that disagree] A collective that was not planned is agreed on
/// first: every rank states its intent, all ranks see all intents, and if they
/// differ, every rank gets an error that names what each rank intended, never
/// sums of the wrong groups. A planned collective needs no agreement, since all
/// ranks follow the same plan.
///
/// A rank that has waited for an agreement for a while writes to the store the
/// number of the agreement, how many planned collectives it has issued, and its
/// intent. A rank that waits for a later collective, and has not taken part in
/// that agreement, then sees that each waits for the other: both end with an
/// error instead of hanging. An agreement that is reached in time does not use
/// the store.
class RankAgreement {
 public:
  /// Collective over the job. Agreements are separate, whatever their names.
  /// @param ranks that agree, ascending; including this one. Other ranks agree
  ///   among themselves.
  /// @param describe formats an intent for error messages.
  RankAgreement(
      World& world,
      const std::string& name,
      std::vector<int> ranks,
      std::function<std::string(const RankIntent&)> describe);

  /// Among the ranks that agree.
  int rank() const {
    return control_->rank();
  }
  int size() const {
    return control_->size();
  }
  Communicator& control() {
    return *control_;
  }

  /// States `self_intent` and blocks until every rank has stated its intent.
  /// @throws tessera::Error naming every rank's intent when they differ.
  RankConsent agree(const RankIntent& self_intent);

  /// Must be called when a planned or agreed data collective is issued.
  /// @return its number.
  uint64_t count_collective() {
    return issued_++;
  }

  /// Returns a check for waiting on data collective number `sequence`.
  /// @param doing describes what this rank is doing, for the error.
  WaitCheck watch(uint64_t sequence, std::function<std::string()> doing);

  /// Returns a check that only detects failures of other ranks.
  WaitCheck watch_failures();

  /// Tells the other ranks that this one has failed: their waits end with an
  /// error that gives the reason.
  void report(const std::string& reason) noexcept;

  /// Leaves a text for all ranks of the job in the store, in the place of an
  /// earlier one. Not collective; nothing without a store.
  void leave_note(const std::string& name, const std::string& text);
  /// Returns what a rank has left; nothing if none has.
  std::optional<std::string> find_note(const std::string& name) const;

  /// Reports `message` to all ranks and throws it.
  [[noreturn]] void fail(const std::string& message);

 private:
  /// A rank and a description of what it does.
  using Account = std::pair<int, std::string>;

  std::string key(const std::string& suffix) const;
  std::string key_of_rank(int rank) const;
  /// Shared by all ranks of the job.
  std::string key_of_failure() const;
  std::string key_of_note(const std::string& name) const;
  WaitCheck watch_agreement(const RankIntent& self_intent);
  std::string disagreement(const std::vector<Account>& accounts) const;
  std::string lines_of(const std::vector<Account>& accounts) const;
  void throw_if_failed();

  /// "rank 3", with the rank number in the job.
  std::string name_of_rank(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_; ///< null: the job has one rank
  std::string name_;
  std::vector<int> ranks_; ///< numbered as in the job
  std::unique_ptr<Communicator> control_;
  std::function<std::string(const RankIntent&)> describe_;
  uint64_t agreements_ = 0; ///< reached so far
  uint64_t issued_ = 0; ///< data collectives issued
};

} // namespace tessera::sharding
