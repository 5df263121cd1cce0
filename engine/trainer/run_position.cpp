// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_position.h"

#include <algorithm>

namespace tessera::engine {

RunPosition::RunPosition(int64_t batches_per_epoch, int64_t batch_samples)
    : batches_per_epoch_(batches_per_epoch), batch_samples_(batch_samples) {}

std::string RunPosition::name() const {
  return "trainer";
}

CheckpointState RunPosition::save_state() const {
  return {
      {{"steps", steps},
       {"epoch", batch / batches_per_epoch_},
       {"samples", batch % batches_per_epoch_ * batch_samples_}},
      {}};
}

void RunPosition::load_state(const CheckpointState& state) {
  steps = state.values.at("steps");
  const int64_t epoch = state.values.at("epoch");
  const int64_t samples = state.values.at("samples");
  // The rest of an epoch that does not fill a batch is left for the next one.
  const int64_t within = std::min(samples / batch_samples_, batches_per_epoch_);
  batch = epoch * batches_per_epoch_ + within;
  repeated_samples_ =
      within < batches_per_epoch_ ? samples % batch_samples_ : 0;
}

} // namespace tessera::engine
