// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/pipeline_model.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::zoo {

namespace {

using Tensors = std::vector<at::Tensor>;

LayerState run_chunk(
    Model& model,
    int chunk,
    const ModelInput& input,
    const Tensors& received) {
  return model.forward_chunk(
      chunk,
      input,
      received.empty() ? LayerState() : LayerState::from_tensors(received));
}

bool is_last_piece(const Model& model, int chunk) {
  return model.stage().end(chunk) == model.stage().count();
}

} // namespace

PipelineForward pipeline_forward(Model& model, InputOfMicroBatch input_of) {
  return [&model, input_of = std::move(input_of)](
             int chunk, int micro_batch, const Tensors& received) -> Tensors {
    const ModelInput& input = input_of(micro_batch);
    LayerState state = run_chunk(model, chunk, input, received);
    if (!is_last_piece(model, chunk)) {
      return state.tensors();
    }
    ModelOutput output = model.finish(input, state);
    TESSERA_CHECK(
        output.loss.defined(),
        "pipeline_forward: micro-batch {} has no labels, and so no loss.",
        micro_batch);
    return {std::move(output.loss)};
  };
}

std::vector<ModelOutput> evaluate_pipeline(
    PipelineExecutor& executor,
    Model& model,
    const std::vector<ModelInput>& inputs) {
  std::vector<ModelOutput> outputs(
      model.stage().has_last() ? inputs.size() : 0);
  executor.evaluate(
      [&](int chunk, int number, const Tensors& received) -> Tensors {
        const auto at = static_cast<size_t>(number);
        LayerState state = run_chunk(model, chunk, inputs[at], received);
        if (!is_last_piece(model, chunk)) {
          return state.tensors();
        }
        outputs[at] = model.finish(inputs[at], state);
        return {};
      },
      static_cast<int>(inputs.size()));
  return outputs;
}

} // namespace tessera::zoo
