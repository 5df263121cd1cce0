// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_position.h"

#include <algorithm>

namespace tessera::engine {

RunPosition::RunPosition(int64_t batches_per_epoch, int64_t batch_samples)
    : batches_per_epoch_(batches_per_epoch), batch_samples_(batch_samples) {}

bool RunPosition::pass_skipped() {
  const int64_t before = batch;
  bool moves = true;
  while (moves) { // ranges may follow one another
    moves = false;
    for (const Range& range : skipped) {
      if (range.begin <= batch && batch < range.end) {
        batch = range.end;
        moves = true;
      }
    }
  }
  return batch != before;
}

int64_t RunPosition::skipped_ahead() const {
  int64_t count = 0;
  for (const Range& range : skipped) {
    count += std::max<int64_t>(0, range.end - std::max(batch, range.begin));
  }
  return count;
}

std::string RunPosition::name() const {
  return "trainer";
}

CheckpointState RunPosition::save_state() const {
  CheckpointState state{
      {{"steps", steps},
       {"epoch", batch / batches_per_epoch_},
       {"samples", batch % batches_per_epoch_ * batch_samples_}},
      {}};
  for (const Range& range : skipped) {
    state.values["skipped"].push_back(
        {{"epoch", range.begin / batches_per_epoch_},
         {"samples", range.begin % batches_per_epoch_ * batch_samples_},
         {"count", (range.end - range.begin) * batch_samples_}});
  }
  return state;
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
  if (!state.values.contains("skipped")) {
    return;
  }
  // Whole micro-batches that have any of the samples.
  for (const auto& range : state.values.at("skipped")) {
    const int64_t first = range.at("samples");
    const int64_t count = range.at("count");
    const int64_t begin = range.at("epoch").get<int64_t>() * batches_per_epoch_;
    const Range saved{
        begin + first / batch_samples_,
        begin + (first + count + batch_samples_ - 1) / batch_samples_};
    if (std::find(skipped.begin(), skipped.end(), saved) == skipped.end()) {
      skipped.push_back(saved);
    }
  }
}

} // namespace tessera::engine
