// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/pipeline_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Layers as the pipeline runs them: stages send each other this rank's part of
/// activations that are divided along the sequence.
class Chunks {
 public:
  explicit Chunks(Model& model)
      : model_(model), tp_(tensor_parallel_of(model)) {}

  LayerState run(int chunk, const ModelInput& input, const Tensors& received)
      const {
    if (received.empty()) {
      return model_.forward_chunk(chunk, input);
    }
    LayerState state = LayerState::from_tensors(received);
    for (at::Tensor* x : between_layers(state)) {
      *x = in_parts(*x);
    }
    return model_.forward_chunk(chunk, input, std::move(state));
  }

  /// What run() of the next chunk receives.
  Tensors sent(LayerState state) const {
    for (at::Tensor* x : between_layers(state)) {
      *x = local_tensor(*x);
    }
    return state.tensors();
  }

 private:
  static std::vector<at::Tensor*> between_layers(LayerState& state) {
    std::vector<at::Tensor*> all{&state.hidden, &state.memory};
    for (at::Tensor& entered : state.entered) {
      all.push_back(&entered);
    }
    return all;
  }

  at::Tensor in_parts(const at::Tensor& x) const {
    // Some models keep other things than activations in `memory`.
    return tp_ != nullptr && tp_->sequence && x.defined() &&
                   x.dim() > tp_->sequence_dim + 1
               ? from_local_tensor(x, tp_->sequence_dim, *tp_)
               : x;
  }

  Model& model_;
  std::shared_ptr<const TensorParallel> tp_;
};

bool is_last_model_chunk(const Model& model, int chunk) {
  return model.stage().end(chunk) == model.stage().count();
}

} // namespace

PipelineForward pipeline_forward(
    Model& model,
    InputOfMicroBatch input_of,
    LossOfMicroBatch loss_of) {
  return [&model,
          chunks = Chunks(model),
          input_of = std::move(input_of),
          loss_of = std::move(loss_of)](
             int chunk, int micro_batch, const Tensors& received) -> Tensors {
    const ModelInput& input = input_of(micro_batch);
    LayerState state = chunks.run(chunk, input, received);
    if (!is_last_model_chunk(model, chunk)) {
      return chunks.sent(std::move(state));
    }
    ModelOutput output = model.finish(input, state);
    TESSERA_CHECK(
        output.loss.defined(),
        "pipeline_forward: micro-batch {} has no labels, and so no loss.",
        micro_batch);
    return {loss_of ? loss_of(output, micro_batch) : std::move(output.loss)};
  };
}

std::vector<ModelOutput> evaluate_pipeline(
    PipelineExecutor& executor,
    Model& model,
    const std::vector<ModelInput>& inputs) {
  const Chunks chunks(model);
  std::vector<ModelOutput> outputs(
      model.stage().has_last() ? inputs.size() : 0);
  executor.evaluate(
      [&](int chunk, int number, const Tensors& received) -> Tensors {
        const auto at = static_cast<size_t>(number);
        LayerState state = chunks.run(chunk, inputs[at], received);
        if (!is_last_model_chunk(model, chunk)) {
          return chunks.sent(std::move(state));
        }
        outputs[at] = model.finish(inputs[at], state);
        return {};
      },
      static_cast<int>(inputs.size()));
  return outputs;
}

} // namespace tessera::zoo
