// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/data/epoch_batches.h"

#include <algorithm>

namespace tessera {

EpochBatches::EpochBatches(
    int64_t samples,
    int64_t batch_samples,
    int64_t per_epoch,
    int64_t per_step)
    : samples_(samples),
      batch_samples_(batch_samples),
      per_epoch_(per_epoch),
      per_step_(
          per_step > 0 && per_epoch % per_step == 0 ? per_step : int64_t{1}) {}

SamplePosition EpochBatches::position_of(int64_t number) const {
  const int64_t epoch = number / per_epoch_;
  const int64_t index = number % per_epoch_;
  return {
      epoch, std::max<int64_t>(0, index * batch_samples_ + shift_in(epoch))};
}

int64_t EpochBatches::number_at(const SamplePosition& position) const {
  const int64_t index =
      (position.samples - shift_in(position.epoch)) / batch_samples_;
  return position.epoch * per_epoch_ +
         std::clamp(index, int64_t{0}, per_epoch_);
}

int64_t EpochBatches::begin_at(const SamplePosition& position) {
  shifted_epoch_ = -1;
  shift_ = 0;
  if (samples_ == 0) {
    const int64_t number = number_at(position);
    return number - number % per_epoch_ % per_step_;
  }
  // Samples beyond the last batch never fill a step, or an epoch that is
  // shorter than its samples would become longer.
  const int64_t end =
      std::min(samples_, (per_epoch_ + per_step_) * batch_samples_ - 1);
  int64_t left = std::max<int64_t>(0, end - position.samples) / batch_samples_;
  left -= left % per_step_;
  if (left > 0) {
    shifted_epoch_ = position.epoch;
    shift_ = position.samples - (per_epoch_ - left) * batch_samples_;
  }
  return (position.epoch + 1) * per_epoch_ - left;
}

} // namespace tessera
