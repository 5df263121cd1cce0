// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/run_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tessera::planner {

namespace {

/// Each recomputes more than the last.
constexpr std::array<RecomputedParts, 3> kEstimatedKinds{
    RecomputedParts{},
    RecomputedParts{.operators = true},
    RecomputedParts{.operators = true, .attention = true}};

/// With all layers, which then keep nothing but their inputs: no other takes
/// less memory. Where layers are not recomputed, the last kind takes the least.
constexpr size_t kSmallest = 1;

/// The line through a value with kFew and one with kMore layers.
class Line {
 public:
  Line(double few, double more)
      : slope_((more - few) / (RunEstimate::kMore - RunEstimate::kFew)),
        begin_(few - slope_ * RunEstimate::kFew) {}

  double at(int64_t layers) const {
    return begin_ + slope_ * static_cast<double>(layers);
  }
  double slope() const {
    return slope_;
  }

 private:
  double slope_;
  double begin_;
};

template <typename Function>
void for_each_part(Function function) {
  for (double StepTime::*part :
       {&StepTime::compute,
        &StepTime::shards,
        &StepTime::activations,
        &StepTime::copies,
        &StepTime::layers,
        &StepTime::update,
        &StepTime::least_compute,
        &StepTime::device_update}) {
    function(part);
  }
}

} // namespace

RunEstimate::RunEstimate(
    PlanLayers plan,
    int64_t layers,
    bool recomputes_layers)
    : plan_(std::move(plan)),
      layers_(layers),
      recomputes_layers_(recomputes_layers) {}

const std::string& RunEstimate::refusal() {
  kind(0);
  return refusal_;
}

RunEstimate::Estimate RunEstimate::line(
    const RecomputedParts& parts,
    bool all_layers) {
  const auto planned = [&](int64_t layers) {
    return plan_(parts.with_layers(all_layers ? layers : 0), layers);
  };
  const PlannedRun few = planned(kFew);
  if (few.stages.empty()) {
    refusal_ = few.problem.empty() ? "refused" : few.problem;
    return {};
  }
  const PlannedRun more = planned(kMore);
  const auto bytes = [&](int64_t PlannedRun::*member) {
    return Line(
        static_cast<double>(few.*member), static_cast<double>(more.*member));
  };
  Estimate estimate;
  estimate.recomputed = parts.with_layers(all_layers ? layers_ : 0);
  const Line device = bytes(&PlannedRun::device_bytes);
  estimate.device_bytes = static_cast<int64_t>(device.at(layers_));
  estimate.bytes_of_layers =
      static_cast<int64_t>(device.slope() * static_cast<double>(layers_));
  estimate.host_bytes =
      static_cast<int64_t>(bytes(&PlannedRun::host_bytes).at(layers_));
  const auto seconds_of_layers = [&](double StepTime::*part) {
    return Line(few.time.*part, more.time.*part).slope() *
           static_cast<double>(layers_);
  };
  estimate.compute_of_layers = seconds_of_layers(&StepTime::compute);
  estimate.shards_of_layers = seconds_of_layers(&StepTime::shards);
  estimate.time.overlaps = few.time.overlaps;
  for_each_part([&](double StepTime::*part) {
    estimate.time.*part = Line(few.time.*part, more.time.*part).at(layers_);
  });
  return estimate;
}

RunEstimate::Kind& RunEstimate::kind(size_t index) {
  while (kinds_.size() <= index) {
    Kind next{.parts = kEstimatedKinds[kinds_.size()]};
    next.none = line(next.parts, /*all_layers=*/false);
    if (!kinds_.empty()) {
      const int64_t before = kinds_.back().none.bytes_of_layers;
      next.saves_nothing = next.none.bytes_of_layers >= before - before / 10000;
    }
    kinds_.push_back(std::move(next));
  }
  return kinds_[index];
}

const RunEstimate::Estimate& RunEstimate::smallest() {
  if (!smallest_) {
    smallest_ = recomputes_layers_
                    ? line(kEstimatedKinds[kSmallest], /*all_layers=*/true)
                    : line(kEstimatedKinds.back(), /*all_layers=*/false);
  }
  return *smallest_;
}

std::optional<int64_t> RunEstimate::least_bytes() {
  const int64_t bytes = smallest().device_bytes;
  return refusal_.empty() ? std::optional(bytes) : std::nullopt;
}

RunEstimate::Estimate RunEstimate::between(
    const Kind& kind,
    int64_t count,
    int64_t layers) {
  if (count == 0) {
    return kind.none;
  }
  if (count == layers) {
    return *kind.all;
  }
  Estimate estimate = *kind.all;
  const double others = static_cast<double>(layers - count);
  const double saved =
      static_cast<double>(
          kind.none.bytes_of_layers - kind.all->bytes_of_layers) /
      static_cast<double>(layers);
  estimate.recomputed.layers = count;
  // The peak is at least the higher of two lines, from the moments of both
  // peaks; the lower of them is surely no more.
  estimate.device_bytes = std::min(
      kind.all->device_bytes + static_cast<int64_t>(others * saved),
      kind.none.device_bytes -
          static_cast<int64_t>(static_cast<double>(count) * saved));
  estimate.bytes_of_layers += static_cast<int64_t>(others * saved);
  for (double Estimate::*part :
       {&Estimate::compute_of_layers, &Estimate::shards_of_layers}) {
    estimate.*part += others / static_cast<double>(layers) *
                      (kind.none.*part - (*kind.all).*part);
  }
  for_each_part([&](double StepTime::*part) {
    estimate.time.*part += others / static_cast<double>(layers) *
                           (kind.none.time.*part - kind.all->time.*part);
  });
  return estimate;
}

std::optional<RunEstimate::Estimate> RunEstimate::least(
    int64_t available_bytes,
    const std::function<int64_t(const Estimate& estimate)>& bytes_of) {
  std::optional<Estimate> fastest;
  const auto offer = [&](const Estimate& estimate) {
    if (bytes_of(estimate) <= available_bytes &&
        (!fastest || estimate.time.total() < fastest->time.total())) {
      fastest = estimate;
    }
  };
  for (size_t i = 0; i < kEstimatedKinds.size(); ++i) {
    Kind& chosen_kind = kind(i);
    if (!refusal_.empty()) {
      return std::nullopt;
    }
    if (chosen_kind.saves_nothing) {
      continue;
    }
    if (fastest && chosen_kind.none.time.total() >= fastest->time.total()) {
      break; // further kinds take longer still
    }
    offer(chosen_kind.none);
    if (bytes_of(chosen_kind.none) <= available_bytes) {
      break;
    }
    if (bytes_of(smallest()) > available_bytes) {
      return std::nullopt;
    }
    if (!recomputes_layers_) {
      continue;
    }
    if (!chosen_kind.all) {
      chosen_kind.all = i == kSmallest
                            ? smallest()
                            : line(chosen_kind.parts, /*all_layers=*/true);
    }
    // Bytes fall with the number of layers.
    if (bytes_of(*chosen_kind.all) > available_bytes) {
      continue;
    }
    int64_t too_few = 0;
    int64_t enough = layers_;
    while (enough - too_few > 1) {
      const int64_t middle = (too_few + enough) / 2;
      (bytes_of(between(chosen_kind, middle, layers_)) <= available_bytes
           ? enough
           : too_few) = middle;
    }
    offer(between(chosen_kind, enough, layers_));
  }
  return fastest;
}

} // namespace tessera::planner
