// SPDX-License-Identifier: Apache-2.0
#include "engine_handle.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::python {

namespace {

/// Divides the layers that `plan` names over the tensor-parallel ranks.
void divide_layers(
    ModuleTree& tree,
    const TensorPlan& plan,
    ParallelRun& parallel) {
  const auto tensor = parallel.tensor();
  TESSERA_CHECK(
      tensor.has_value() != plan.empty(),
      "wrap: parallel.tensor is {}, and tensor_plan names {} layers; ranks divide layers with both, or with neither.",
      parallel.mesh().sizes().tensor,
      plan.size());
  if (tensor) {
    apply_tensor_plan(tree, plan, *tensor);
  }
}

} // namespace

EngineHandle::EngineHandle(
    std::shared_ptr<ModuleTree> tree,
    const WrapOptions& options,
    const TensorPlan& plan)
    : tree_(std::move(tree)) {
  TESSERA_CHECK(
      options.parallel.sizes.pipeline == 1 &&
          options.parallel.sizes.context == 1 &&
          options.parallel.sizes.expert == 1,
      "wrap: parallel.pipeline, parallel.context and parallel.expert need a model whose code knows of them, as those of the zoo; for a Python module they are 1.");
  parallel_ = std::make_unique<ParallelRun>(
      world(), options.parallel, /*micro_batches=*/1);
  divide_layers(*tree_, plan, *parallel_);
  EngineOptions engine = options.engine;
  engine.parallel = parallel_->mesh_or_null();
  engine_.emplace(wrap(std::shared_ptr<torch::nn::Module>(tree_), engine));
}

EngineHandle::~EngineHandle() = default;

Engine& EngineHandle::engine() {
  TESSERA_CHECK(
      engine_.has_value(),
      "this engine was closed; wrap the module again to train it.");
  return *engine_;
}

void EngineHandle::close() {
  tensors_.reset();
  engine_.reset();
}

const ModelTensors& EngineHandle::list_tensors() {
  tensors_.emplace(engine().model_tensors());
  return *tensors_;
}

at::Tensor EngineHandle::read(size_t index) {
  TESSERA_CHECK(tensors_.has_value(), "the tensors have not been listed.");
  at::Tensor value;
  const ModelTensor* wanted = &tensors_->tensors().at(index);
  tensors_->for_each(
      [&](const ModelTensor& /*tensor*/, const at::Tensor& full) {
        value = full.clone();
      },
      [&](const ModelTensor& tensor) { return &tensor == wanted; });
  return value;
}

} // namespace tessera::python
