// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/configured_model.h"

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

std::shared_ptr<zoo::Model> configured_model(
    const TrainingConfig& config,
    ParallelRun& parallel) {
  const nlohmann::json classes =
      class_fields(config.classes, config.problem_type);
  if (!config.model_folder.empty()) {
    zoo::FromPretrainedOptions options;
    options.architecture = config.architecture;
    options.config = classes;
    options.fresh_heads = !classes.empty();
    options.strict = config.strict;
    options.context = zoo::layer_context(parallel);
    options.lazy = true;
    return zoo::from_pretrained(config.model_folder, options);
  }
  const std::string origin = config.model_config.string();
  nlohmann::json json =
      runtime::parse_json(runtime::read_text_file(config.model_config), origin);
  json.update(classes);
  const auto model = lazy([&] {
    return zoo::from_config(
        json,
        {config.architecture, zoo::fresh_layer_context(parallel)},
        origin);
  });
  init_parameters(*model, config.seed);
  return model;
}

} // namespace tessera::zoo
