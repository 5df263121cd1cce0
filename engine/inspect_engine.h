// SPDX-License-Identifier: Apache-2.0
#pragma once
// `inspect_model()` and `inspect_tensor()` summarize the parameters, gradients
// and hidden states of a wrapped model. Print the result with format_summary()
// on one rank, in a pipeline on one rank of each pipeline stage.

#include "tessera/engine/engine.h"
#include "tessera/sharding/inspection/inspect.h"

#include <string>
#include <vector>

namespace tessera {

/// Summarizes every parameter of which a whole name, or one of
/// EngineOptions::other_names, matches the regular expression `pattern`, and
/// its gradient as Engine::grad() returns it; there is none after step(). What
/// tensor-parallel ranks divide is summarized as a whole; in a pipeline, each
/// rank has the rows of its own pipeline stage alone: none, and a warning, if
/// nothing there matches; elsewhere that is an error. Computed from the shards,
/// without all-gathers. Collective, also over tensor-parallel ranks and
/// pipeline stages.
std::vector<TensorSummary> inspect_model(
    Engine& engine,
    const std::string& pattern = ".*");

/// Summarizes over all ranks what record_tensor() recorded; gradients without
/// the loss scale. Collective; every rank must have recorded the same tensors.
std::vector<TensorSummary> inspect_tensor(
    Engine& engine,
    const TensorRecorder& recorder);

} // namespace tessera
