// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/data/epoch_batches.h"

#include <algorithm>

namespace tessera {

SamplePosition EpochBatches::position_of(int64_t number) const {
  const int64_t epoch = number / per_epoch_;
  const int64_t index = number % per_epoch_;
  return {
      epoch, std::max<int64_t>(0, index * batch_samples_ + shift_in(epoch))};
}

int64_t EpochBatches::number_at(const SamplePosition& position) const {
  const int64_t index =
      (position.samples - shift_in(position.epoch)) / batch_samples_;
  return position.epoch * per_epoch_ + std::min(index, per_epoch_);
}

int64_t EpochBatches::begin_at(const SamplePosition& position) {
  shifted_epoch_ = -1;
  shift_ = 0;
  const int64_t within = position.samples % batch_samples_;
  if (samples_ > 0 && within > 0 &&
      position.samples / batch_samples_ < per_epoch_) {
    shifted_epoch_ = position.epoch;
    const bool fits = per_epoch_ * batch_samples_ + within <= samples_;
    shift_ = fits ? within : within - batch_samples_;
  }
  return number_at(position);
}

} // namespace tessera
