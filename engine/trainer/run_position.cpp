// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_position.h"

#include <algorithm>

namespace tessera::engine {

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
  const SamplePosition here = position_of(batch);
  CheckpointState state{
      {{"steps", steps}, {"epoch", here.epoch}, {"samples", here.samples}}, {}};
  for (const Range& range : skipped) {
    const SamplePosition begin = position_of(range.begin);
    state.values["skipped"].push_back(
        {{"epoch", begin.epoch},
         {"samples", begin.samples},
         {"count", samples_in(range.end - range.begin)}});
  }
  return state;
}

void RunPosition::load_state(const CheckpointState& state) {
  steps = state.values.at("steps");
  const SamplePosition saved{
      state.values.at("epoch"), state.values.at("samples")};
  batch = batches_.begin_at(saved);
  const SamplePosition here = position_of(batch);
  repeated_samples_ =
      here.epoch == saved.epoch ? saved.samples - here.samples : 0;
  if (!state.values.contains("skipped")) {
    return;
  }
  // Whole micro-batches that have any of the samples.
  for (const auto& range : state.values.at("skipped")) {
    const SamplePosition first{range.at("epoch"), range.at("samples")};
    const int64_t begins = batches_.number_at(first);
    const SamplePosition begin = position_of(begins);
    const int64_t before =
        begin.epoch == first.epoch ? first.samples - begin.samples : 0;
    const int64_t count = range.at("count").get<int64_t>() + before;
    const Range full{
        begins,
        begins +
            (count + batches_.batch_samples() - 1) / batches_.batch_samples()};
    if (std::find(skipped.begin(), skipped.end(), full) == skipped.end()) {
      skipped.push_back(full);
    }
  }
}

} // namespace tessera::engine
