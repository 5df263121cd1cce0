// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunEstimate` says what runs of a layout take, from dry runs of models with
// few layers.

#include "tessera/planner/search/planned_run.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::planner {

/// [Note: estimates from few layers] Layers that are alike add the same memory
/// and time each, so two dry runs with few layers say what a run with any
/// number of them takes: their line through it, as long as each layer is a
/// group of its own; groups of several small layers are more or less full with
/// each number of them, and so are the slots that hold them. The peak is the
/// highest of several such lines (in the head, in a layer's backward), of which
/// few layers may show another than many do; as the highest of lines is convex,
/// an estimate is at most what the run takes. So estimates order layouts and
/// leave out those that cannot be the fastest; those that are chosen are
/// planned with all layers.
class RunEstimate {
 public:
  /// Models of so many layers are planned; a model has to have more.
  static constexpr int64_t kFew = 3;
  static constexpr int64_t kMore = 5;

  /// A dry run of the layout that recomputes these parts, of a model with so
  /// many layers.
  using PlanLayers =
      std::function<PlannedRun(const RecomputedParts& parts, int64_t layers)>;

  /// What a run takes, at least.
  struct Estimate {
    RecomputedParts recomputed;
    int64_t device_bytes = 0;
    int64_t host_bytes = 0; ///< of a rank
    /// Part of `device_bytes` that grows with the number of layers.
    int64_t bytes_of_layers = 0;
    StepTime time;
    double compute_of_layers = 0; ///< part of `time.compute`, likewise
    double shards_of_layers = 0; ///< part of `time.shards`
  };

  /// @param layers of the model.
  /// @param recomputes_layers whether they can be, as a whole.
  RunEstimate(PlanLayers plan, int64_t layers, bool recomputes_layers = true);

  /// Why nothing can be estimated: the layout was refused. Empty: it was not.
  const std::string& refusal();

  /// Of a device, what every run takes; nothing if the layout was refused.
  std::optional<int64_t> least_bytes();

  /// The fastest that takes at most `available_bytes` bytes; nothing if there
  /// is none. A kind of parts has a dry run more only where the kinds before do
  /// not fit.
  /// @param bytes_of what has to fit of an estimate.
  std::optional<Estimate> least(
      int64_t available_bytes,
      const std::function<int64_t(const Estimate& estimate)>& bytes_of =
          [](const Estimate& estimate) { return estimate.device_bytes; });

 private:
  /// The same kind of parts with no layers and with all of them.
  struct Kind {
    RecomputedParts parts;
    Estimate none;
    std::optional<Estimate> all; ///< made when it is asked for
    bool saves_nothing = false;
  };

  Estimate line(const RecomputedParts& parts, bool all_layers);
  static Estimate between(const Kind& kind, int64_t count, int64_t layers);
  Kind& kind(size_t index);
  /// What takes the least memory: where it does not fit, nothing does.
  const Estimate& smallest();

  PlanLayers plan_;
  int64_t layers_;
  bool recomputes_layers_;
  std::string refusal_;
  std::vector<Kind> kinds_;
  std::optional<Estimate> smallest_; ///< made when it is asked for
};

} // namespace tessera::planner
