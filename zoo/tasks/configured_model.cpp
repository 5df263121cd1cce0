// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/configured_model.h"

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/pretrained.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

nlohmann::json class_fields(
    std::vector<std::string> names,
    const std::string& problem_type) {
  nlohmann::json fields = nlohmann::json::object();
  if (!problem_type.empty()) {
    fields["problem_type"] = problem_type;
  }
  if (names.empty() && problem_type == "regression") {
    names = {"LABEL_0"};
  }
  if (names.empty()) {
    return fields;
  }
  nlohmann::json of_numbers = nlohmann::json::object();
  nlohmann::json of_names = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    of_numbers[std::to_string(i)] = names[i];
    of_names[names[i]] = i;
  }
  fields["id2label"] = of_numbers;
  fields["label2id"] = of_names;
  return fields;
}

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
