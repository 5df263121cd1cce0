// SPDX-License-Identifier: Apache-2.0
#include "divided_model.h"

#include "tessera/sharding/lazy.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/models/pretrained.h"

namespace tessera::tools {

void add_model_options(CLI::App& app, ModelArguments& arguments) {
  app.add_option("--model", arguments.model, "Hugging Face folder")->required();
  app.add_option(
      "--architecture",
      arguments.architecture,
      "In place of the one that config.json names, e.g. GPT2Model");
  app.add_option(
      "--tensor",
      arguments.parallel.sizes.tensor,
      "Ranks that divide each layer, in a job of `tessera launch`; what is "
      "left "
      "of the ranks divides the parameters");
  app.add_option(
      "--pipeline",
      arguments.parallel.sizes.pipeline,
      "Stages that divide the layers");
  app.add_option(
      "--expert",
      arguments.parallel.sizes.expert,
      "Ranks that divide the experts of a layer, of those that divide "
      "parameters");
}

DividedModel::DividedModel(const ModelArguments& arguments)
    : world_(init()),
      parallel_(world_, arguments.parallel, /*micro_batches=*/1) {
  zoo::FromPretrainedOptions options;
  options.architecture = arguments.architecture;
  options.lazy = true;
  options.context = zoo::layer_context(parallel_);
  model_ = zoo::from_pretrained(arguments.model, options);
  sharding::move_module(*model_, world_.device());
  if (world_.size() > 1) {
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine_options.parallel = parallel_.mesh_if_given();
    engine_.emplace(world_, model_, engine_options);
  } else {
    materialize(*model_);
  }
}

bool DividedModel::tells() const {
  return parallel_.tells_loss() && parallel_.batches().index == 0;
}

} // namespace tessera::tools
