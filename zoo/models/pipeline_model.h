// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's stage as what a PipelineExecutor calls.

#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/zoo/models/model.h"

#include <functional>
#include <vector>

namespace tessera::zoo {

/// The batch of a micro-batch's number; the same on all stages.
using InputOfMicroBatch = std::function<const ModelInput&(int micro_batch)>;

/// For PipelineExecutor::run() and Engine::run_pipeline(): each chunk hands its
/// LayerState on, and the last piece of the model returns the loss.
/// @param model outlives the function.
PipelineForward pipeline_forward(Model& model, InputOfMicroBatch input_of);

/// Results without gradients, as Model::forward() of a whole model gives them.
/// Collective over the stages; blocks.
/// @return where the model's last layer is, one for each input; elsewhere
///     nothing.
std::vector<ModelOutput> evaluate_pipeline(
    PipelineExecutor& executor,
    Model& model,
    const std::vector<ModelInput>& inputs);

} // namespace tessera::zoo
