// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/wrapped_model.h"

#include "tessera/runtime/core/log.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"

namespace tessera::zoo {

void add_lora(const TrainingConfig& config, const World& world, Model& model) {
  if (!config.lora) {
    return;
  }
  const auto layers = apply_lora(model, config.lora->adapter, config.seed);
  if (world.rank() != 0) {
    return;
  }
  int64_t trained = 0;
  int64_t all = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  log_info(
      "LoRA of rank {} in {} layers: {} of {} parameters are trained on this rank",
      config.lora->adapter.r,
      layers.size(),
      trained,
      all);
}

Engine wrap_model(
    World& world,
    ParallelRun& parallel,
    TrainingConfig& config,
    const std::shared_ptr<Model>& model) {
  const auto& types = config.engine.sharding.precision;
  if (world.rank() == 0 && world.device().is_cpu() &&
      types.parameters == at::kHalf) {
    log_warning(
        "precision.parameters is float16 on a CPU, where LibTorch computes in it many times slower than in bfloat16 or float32.");
  }
  move_module(*model, world.device());
  model->set_recomputed_layers(config.checkpoint_layers.value_or(0));
  config.engine.parallel = parallel.mesh_if_given();
  return {world, model, config.engine};
}

void freeze(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
}

} // namespace tessera::zoo
