// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/step_timing.h"

#include <utility>

namespace tessera::engine {

namespace {

double& part_of(StepSplit& split, StepPhase phase) {
  switch (phase) {
    case StepPhase::kData:
      return split.data;
    case StepPhase::kForward:
      return split.forward;
    case StepPhase::kBackward:
      return split.backward;
    case StepPhase::kOptimizer:
      break;
  }
  return split.optimizer;
}

} // namespace

StepSplit StepSplit::divided_by(double count) const {
  return {
      data / count,
      forward / count,
      backward / count,
      optimizer / count,
      exposed_transfer / count};
}

StepTiming::StepTiming(c10::Device device, TransferWaits& waits)
    : device_(device), waits_(waits) {
  waits_.start(device);
}

StepTiming::~StepTiming() {
  waits_.stop();
}

void StepTiming::begin(StepPhase phase) {
  mark(phase, false);
}

void StepTiming::end() {
  mark(StepPhase::kOptimizer, true);
}

void StepTiming::mark(StepPhase phase, bool is_end) {
  marks_.push_back(
      {phase, is_end, runtime::StreamTime::now(device_), waits_.count()});
}

StepSplit StepTiming::take() {
  const auto marks = std::exchange(marks_, {});
  const auto waits = waits_.take();
  StepSplit split;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    if (marks[i].is_end) {
      continue;
    }
    double waited = 0;
    for (size_t w = marks[i].waits; w < marks[i + 1].waits; ++w) {
      waited += waits[w].seconds();
    }
    part_of(split, marks[i].phase) +=
        marks[i + 1].time.seconds_since(marks[i].time) - waited;
    split.exposed_transfer += waited;
  }
  return split;
}

} // namespace tessera::engine
