// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EpochBatches` divides the samples of each epoch into batches of all ranks
// together.

#include <cstdint>

namespace tessera {

/// A place in the data that does not depend on the number of ranks.
struct SamplePosition {
  int64_t epoch = 0;
  int64_t samples = 0; ///< of this epoch that all ranks together have had
};

/// Batches are numbered from the start of the first epoch, and each epoch has
/// the same number of them. They begin with the first sample of an epoch; those
/// of one epoch may begin elsewhere, so that a run goes on at any sample.
class EpochBatches {
 public:
  /// @param samples of an epoch, those that fill no step included; 0: no
  ///     batches begin elsewhere.
  /// @param batch_samples of one batch.
  /// @param per_step batches of one optimizer step. If they divide per_epoch,
  ///     an epoch has whole steps, and so has its rest after begin_at();
  ///     otherwise steps have samples of several epochs.
  EpochBatches(
      int64_t samples,
      int64_t batch_samples,
      int64_t per_epoch,
      int64_t per_step = 1);

  int64_t per_epoch() const {
    return per_epoch_;
  }
  int64_t per_step() const {
    return per_step_;
  }
  int64_t batch_samples() const {
    return batch_samples_;
  }

  /// Where batch `number` begins.
  SamplePosition position_of(int64_t number) const;

  /// The batch that has the sample at a position. Samples after the last batch
  /// of an epoch are left out: the first one of the next.
  int64_t number_at(const SamplePosition& position) const;

  /// Lets a batch begin exactly there, and those after it in this epoch follow,
  /// as many whole steps as there are samples for; batches of other epochs
  /// begin as usual. If no batches begin elsewhere, goes back to the beginning
  /// of a step.
  /// @return its number: the first one of the next epoch if what is left fills
  ///     no step.
  int64_t begin_at(const SamplePosition& position);

 private:
  /// By how many samples the batches of an epoch begin later.
  int64_t shift_in(int64_t epoch) const {
    return epoch == shifted_epoch_ ? shift_ : 0;
  }

  int64_t samples_;
  int64_t batch_samples_;
  int64_t per_epoch_;
  int64_t per_step_;
  int64_t shifted_epoch_ = -1;
  /// Below 0 if there are not samples enough for as many batches to begin
  /// later: the first ones of the epoch are then none.
  int64_t shift_ = 0;
};

} // namespace tessera
