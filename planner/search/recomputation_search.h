// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RecomputationSearch` finds what a run has to compute again in backward to
// fit into memory, with as little repeated work as possible.

#include "tessera/planner/search/planned_run.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::planner {

/// [Note: how much is recomputed] A layout that fits as it is recomputes
/// nothing. Else there are some kinds of parts: nothing, cheap operators,
/// these and attention, each with any number of whole layers besides. A run of
/// a kind without layers and one with all of them say how many layers it needs
/// and how long a step then takes, if memory and time are linear in their
/// number; the number itself is searched for in the kind that seems the fastest
/// only, around the number that it seems to need. So a layout takes a few more
/// dry runs than with whole layers alone. What saves no memory in the first
/// layout, as attention on CUDA, is not tried in others.
class RecomputationSearch {
 public:
  /// A dry run of a layout that recomputes these parts.
  using PlanParts = std::function<PlannedRun(const RecomputedParts& parts)>;

  /// @param layers of the model; 0: none can be recomputed.
  /// @param available_bytes of a device, in bytes.
  /// @param attention can be recomputed alone.
  RecomputationSearch(
      int64_t layers,
      int64_t available_bytes,
      bool attention = true);

  /// @param inputs_are_full recomputed layers keep whole inputs on every
  ///   tensor rank, unless these divide them.
  /// @return the fastest that fits; if none does, that which takes the least
  ///   memory of a device.
  PlannedRun least(const PlanParts& plan, bool inputs_are_full);

 private:
  /// Parts with so many layers that they seem to fit.
  struct Guess {
    PlannedRun all; ///< with all layers
    int64_t layers = 0;
    double seconds = 0; ///< of a step
  };

  std::optional<Guess> guess(const PlannedRun& none, PlannedRun all) const;
  PlannedRun fewest_layers(const PlanParts& plan, Guess guess) const;

  int64_t layers_;
  int64_t available_bytes_;
  std::vector<RecomputedParts> kinds_; ///< each recomputes more than the last
};

} // namespace tessera::planner
