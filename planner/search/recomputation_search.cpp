// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/recomputation_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace tessera::planner {

namespace {

/// Activations of the first stage between forward and backward, less 1 %, are
/// not less than before. Of pipelines they are not known.
bool saves_nothing(const PlannedRun& run, const PlannedRun& before) {
  if (run.stages.empty()) {
    return true;
  }
  const int64_t kept = run.stages.front().activations_after_forward;
  const int64_t kept_before = before.stages.front().activations_after_forward;
  return kept_before > 0 && kept >= kept_before - kept_before / 100;
}

} // namespace

RecomputationSearch::RecomputationSearch(
    int64_t layers,
    int64_t available_bytes,
    bool attention)
    : layers_(layers),
      available_bytes_(available_bytes),
      kinds_{{.operators = true}} {
  if (attention) {
    kinds_.push_back({.operators = true, .attention = true});
  }
}

PlannedRun RecomputationSearch::least(
    const PlanParts& plan,
    bool inputs_are_full) {
  PlannedRun none = plan({});
  if (none.fits() || none.stages.empty()) {
    return none;
  }
  std::vector<PlannedRun> tried{none};
  std::optional<Guess> fastest;
  const auto try_layers = [&](const RecomputedParts& parts) {
    if (layers_ == 0) {
      return;
    }
    tried.push_back(plan(parts.with_layers(layers_)));
    const auto found = guess(none, tried.back());
    if (found && (!fastest || found->seconds < fastest->seconds)) {
      fastest = found;
    }
  };
  try_layers({});
  for (auto kind = kinds_.begin(); kind != kinds_.end() && !none.fits();) {
    tried.push_back(plan(*kind));
    if (saves_nothing(tried.back(), none)) {
      kind = kinds_.erase(kind);
      continue;
    }
    none = tried.back();
    if (!none.fits()) {
      try_layers(*kind);
    }
    ++kind;
  }
  if (inputs_are_full && !none.fits()) {
    RecomputedParts divided = none.recomputed;
    divided.divided_inputs = true;
    try_layers(divided);
  }
  const PlannedRun* best = best_of(tried);
  if (fastest && (best == nullptr || fastest->seconds <= best->time.total())) {
    tried.push_back(fewest_layers(plan, *std::move(fastest)));
    best = best_of(tried);
  }
  if (best == nullptr) {
    best = &*std::min_element(
        tried.begin(), tried.end(), [](const auto& a, const auto& b) {
          return !a.stages.empty() &&
                 (b.stages.empty() || a.device_bytes < b.device_bytes);
        });
  }
  return *best;
}

std::optional<RecomputationSearch::Guess> RecomputationSearch::guess(
    const PlannedRun& none,
    PlannedRun all) const {
  if (!all.fits()) {
    return std::nullopt;
  }
  const auto excess = static_cast<double>(none.device_bytes - available_bytes_);
  const auto saved = static_cast<double>(
      std::max<int64_t>(1, none.device_bytes - all.device_bytes));
  const auto needed = static_cast<int64_t>(
      std::ceil(static_cast<double>(layers_) * excess / saved));
  Guess guess;
  guess.layers = std::clamp<int64_t>(needed, 1, layers_);
  guess.seconds = none.time.total() + (all.time.total() - none.time.total()) *
                                          static_cast<double>(guess.layers) /
                                          static_cast<double>(layers_);
  guess.all = std::move(all);
  return guess;
}

PlannedRun RecomputationSearch::fewest_layers(
    const PlanParts& plan,
    Guess guess) const {
  const int64_t fine = std::max<int64_t>(1, layers_ / 16);
  int64_t too_few = 0;
  int64_t enough = layers_;
  int64_t next = guess.layers;
  PlannedRun fewest = std::move(guess.all);
  for (int tried = 0; enough - too_few > fine; ++tried) {
    next = std::clamp(next, too_few + 1, enough - 1);
    PlannedRun run = plan(fewest.recomputed.with_layers(next));
    if (run.fits()) {
      enough = next;
      fewest = std::move(run);
    } else {
      too_few = next;
    }
    // The guess is confirmed, or it was not good.
    next = tried > 0        ? (too_few + enough) / 2
           : enough == next ? enough - fine
                            : too_few + fine;
  }
  return fewest;
}

} // namespace tessera::planner
