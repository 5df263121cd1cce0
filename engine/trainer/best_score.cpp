// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/best_score.h"

#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::engine {

namespace {

std::string without_prefix(std::string metric) {
  return metric.starts_with(kHeldoutPrefix)
             ? metric.substr(kHeldoutPrefix.size())
             : metric;
}

} // namespace

BestScore::BestScore(std::string metric)
    : metric_(without_prefix(std::move(metric))),
      lower_is_better_(
          metric_.find("loss") != std::string::npos ||
          metric_.find("perplexity") != std::string::npos) {}

bool BestScore::add(const TaskScore& score, int64_t step) {
  auto found = score.values.find(std::string(kHeldoutPrefix) + metric_);
  if (found == score.values.end()) {
    found = score.values.find(metric_);
  }
  if (found == score.values.end()) {
    std::string names;
    for (const auto& [name, value] : score.values.items()) {
      names += (names.empty() ? "" : ", ") + without_prefix(name);
    }
    TESSERA_FAIL(
        "training.best_metric is '{}', which is not measured on the held-out data; these are: {}",
        metric_,
        names);
  }
  ++since_best_;
  // A value that is not finite is null in JSON.
  if (!found->is_number()) {
    return false;
  }
  const double value = found->get<double>();
  // Comparisons with NaN are false.
  const bool is_better =
      value_ ? (lower_is_better_ ? value < *value_ : value > *value_)
             : value == value;
  if (is_better) {
    value_ = value;
    step_ = step;
    since_best_ = 0;
  }
  return is_better;
}

std::string BestScore::text() const {
  return formatted(
      "{}{} {} of step {}",
      kHeldoutPrefix,
      metric_,
      value_ ? formatted("{:.5g}", *value_) : "none",
      step_);
}

CheckpointState BestScore::save_state() const {
  CheckpointState state;
  state.values = {{"metric", metric_}, {"step", step_}, {"since", since_best_}};
  if (value_) {
    state.values["value"] = *value_;
  }
  return state;
}

void BestScore::load_state(const CheckpointState& state) {
  if (state.values.at("metric") != metric_) {
    return; // values of another metric cannot be compared
  }
  step_ = state.values.at("step");
  since_best_ = state.values.at("since");
  value_.reset();
  if (state.values.contains("value")) {
    value_ = state.values.at("value").get<double>();
  }
}

} // namespace tessera::engine
