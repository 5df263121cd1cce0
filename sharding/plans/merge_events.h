// SPDX-License-Identifier: Apache-2.0
#pragma once
// `merge_events()` makes the record of a step that does what two recorded steps
// do.

#include "tessera/sharding/plans/residency_plan.h"

#include <optional>
#include <vector>

namespace tessera::sharding {

/// [Note: plans of steps that differ] A step that leaves out a part of the
/// model follows the plan of a whole step: what it passes over is unsharded and
/// resharded all the same. A step that uses what its plan lacks departs from
/// it, and every later gather of the step is on demand. Were its own record the
/// next plan, steps that leave out parts at random (stochastic depth) would
/// depart over and over. So the next plan is made from both records: after some
/// steps it has all that any step uses. It is not where the records have little
/// in common, as those of alternating trainings, or contradict each other.
///
/// @return the events of both, in the order of each; nothing if they have
///   different numbers of backwards, if their orders contradict each other, or
///   if less than half of the result is in both.
std::optional<std::vector<PlanEvent>> merge_events(
    const std::vector<PlanEvent>& a,
    const std::vector<PlanEvent>& b);

} // namespace tessera::sharding
