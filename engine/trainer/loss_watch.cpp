// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/loss_watch.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::engine {

namespace {

constexpr size_t kMostLosses = 64;
constexpr size_t kLeastLosses = 8; // for a median that says something

} // namespace

std::optional<std::string> LossWatch::add(
    double loss,
    int64_t first,
    int64_t last) {
  const std::string steps = first == last
                                ? formatted("of step {}", last)
                                : formatted("over steps {} to {}", first, last);
  if (!std::isfinite(loss)) {
    return formatted(
        "the loss {} is {}", steps, std::isnan(loss) ? std::abs(loss) : loss);
  }
  const auto usual = median();
  if (usual && loss > spike_ * *usual) {
    return formatted(
        "the loss {} is {}, more than {} (training.loss_spike) times {}, the median of those before",
        steps,
        loss,
        spike_,
        *usual);
  }
  recent_.emplace_back(last, loss);
  if (recent_.size() > kMostLosses) {
    recent_.pop_front();
  }
  return std::nullopt;
}

void LossWatch::rewind(int64_t step) {
  while (!recent_.empty() && recent_.back().first > step) {
    recent_.pop_back();
  }
}

std::optional<double> LossWatch::median() const {
  if (spike_ == 0 || recent_.size() < kLeastLosses) {
    return std::nullopt;
  }
  std::vector<double> losses;
  for (const auto& [step, loss] : recent_) {
    losses.push_back(loss);
  }
  const auto middle =
      losses.begin() + static_cast<std::ptrdiff_t>(losses.size() / 2);
  std::nth_element(losses.begin(), middle, losses.end());
  return *middle;
}

} // namespace tessera::engine
