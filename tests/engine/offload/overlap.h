// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training runs whose numbers must not depend on what is done beside backward.

#include "tessera/offload/updates/update_statistics.h"

#include "engine/offload/placement.h"

#include <functional>
#include <string>
#include <vector>

namespace tessera::tests {

inline constexpr UpdateOverlap kOverlaps[] = {
    UpdateOverlap::kWait,
    UpdateOverlap::kSpeculate};

inline const char* text_of(UpdateOverlap overlap) {
  return overlap == UpdateOverlap::kWait ? "wait" : "speculate";
}

/// What can be seen of a run: numbers, and the parameters after every step.
struct SeenRun {
  std::vector<at::Tensor> numbers;
  std::vector<std::map<std::string, at::Tensor>> parameters;
  UpdateStatistics updates;
};

inline void expect_same_run(
    const SeenRun& got,
    const SeenRun& want,
    const std::string& label) {
  expect_same_bits(got.numbers, want.numbers, label);
  ASSERT_EQ(got.parameters.size(), want.parameters.size());
  for (size_t step = 0; step < want.parameters.size(); ++step) {
    expect_same_bits(
        got.parameters[step],
        want.parameters[step],
        label + ", step " + std::to_string(step));
  }
}

/// A loss that depends on the step, the micro-batch and the rank. In every
/// other step one layer has no gradient.
inline at::Tensor resting_loss(
    RestingNet& net,
    int step,
    int micro,
    int rank,
    bool all = true) {
  torch::manual_seed(100 * step + 10 * micro + rank);
  return net->forward(torch::randn({5, 7}), all).square().mean();
}

} // namespace tessera::tests
