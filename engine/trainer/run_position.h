// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunPosition` records how far a training run has come in its data.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/data/epoch_batches.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::engine {

/// Counts micro-batches. Saved as an epoch and a number of samples over all
/// ranks, so that a run that resumes with other ranks or batch sizes continues
/// at the same place in the data.
class RunPosition : public Checkpointable {
 public:
  /// Micro-batches [begin, end) of a rank since the start of the run.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;

    bool operator==(const Range&) const = default;
  };

  /// @param batches micro-batches of all ranks together.
  explicit RunPosition(const EpochBatches& batches) : batches_(batches) {}

  int64_t steps = 0; ///< optimizer steps done
  int64_t batch = 0; ///< micro-batches of a rank since the start of the run
  /// What is not trained on, because of bad losses.
  std::vector<Range> skipped;

  /// Advances `batch` past what is skipped.
  /// @return whether it did.
  bool pass_skipped();
  /// Micro-batches from here on that are skipped.
  int64_t skipped_ahead() const;

  /// Samples of all ranks together in `count` micro-batches.
  int64_t samples_in(int64_t count) const {
    return count * batches_.batch_samples();
  }

  /// Where micro-batch `number` of the run begins.
  SamplePosition position_of(int64_t number) const {
    return batches_.position_of(number);
  }

  /// Goes back to the first sample of the data.
  void restart() {
    batch = batches_.begin_at({});
  }

  /// Samples that are seen twice because the loaded position lies within a
  /// micro-batch.
  int64_t repeated_samples() const {
    return repeated_samples_;
  }

  std::string name() const override;
  CheckpointState save_state() const override;
  /// Adds to `skipped`.
  void load_state(const CheckpointState& state) override;

 private:
  EpochBatches batches_;
  int64_t repeated_samples_ = 0;
};

} // namespace tessera::engine
