// SPDX-License-Identifier: Apache-2.0
#pragma once
// pipeline_forward() adapts a model's pipeline stage to PipelineExecutor.

#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/zoo/models/model.h"

#include <functional>
#include <vector>

namespace tessera::zoo {

/// The input of a micro-batch by number; the same on all pipeline stages.
using InputOfMicroBatch = std::function<const ModelInput&(int micro_batch)>;

/// The loss of a micro-batch that is trained on, of what the model has
/// computed.
using LossOfMicroBatch =
    std::function<at::Tensor(const ModelOutput& output, int micro_batch)>;

/// For PipelineExecutor::run() and Engine::run_pipeline(): each chunk passes
/// its LayerState on, and the last chunk of the model returns the loss.
/// @param model outlives the function.
/// @param loss_of empty: the model's own loss.
PipelineForward pipeline_forward(
    Model& model,
    InputOfMicroBatch input_of,
    LossOfMicroBatch loss_of = {});

/// Runs the model without gradients; results are those of Model::forward() on a
/// whole model. Collective over the pipeline stages; blocks.
/// @return one result per input on the pipeline stage with the model's last
///     layer; elsewhere empty.
std::vector<ModelOutput> evaluate_pipeline(
    PipelineExecutor& executor,
    Model& model,
    const std::vector<ModelInput>& inputs);

} // namespace tessera::zoo
