// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/lora_options.h"

namespace tessera::zoo {

std::optional<LoraOptions> read_lora_options(
    const runtime::ConfigReader& model) {
  if (!model.contains("lora")) {
    return std::nullopt;
  }
  const runtime::ConfigReader reader = model.get_object("lora");
  LoraOptions options;
  zoo::LoraConfig& lora = options.adapter;
  lora.r = reader.get_int("r", {.min = 1}, lora.r);
  lora.alpha = reader.get_double("alpha", {.min = 0}, lora.alpha);
  lora.dropout = reader.get_double("dropout", {.min = 0, .max = 0.99}, 0.0);
  auto names = reader.get_strings("target_modules");
  if (names.size() == 1 && names.front() == "all-linear") {
    lora.target_modules.pattern = names.front();
  } else {
    lora.target_modules.names = std::move(names);
  }
  const std::vector<std::string> none;
  lora.exclude_modules.names = reader.get_strings("exclude_modules", none);
  lora.modules_to_save = reader.get_strings("modules_to_save", none);
  lora.bias = reader.get_enum(
      "bias",
      {{"none", zoo::LoraBias::kNone},
       {"all", zoo::LoraBias::kAll},
       {"lora_only", zoo::LoraBias::kLoraOnly}},
      std::optional(lora.bias));
  lora.use_rslora = reader.get_bool("use_rslora", false);
  lora.init = reader.get_enum(
      "init",
      {{"default", zoo::LoraInit::kDefault},
       {"gaussian", zoo::LoraInit::kGaussian},
       {"random", zoo::LoraInit::kRandom}},
      std::optional(lora.init));
  options.merge = reader.get_bool("merge", false);
  if (lora.target_modules.empty()) {
    reader.fail(
        "target_modules",
        "give names of linear layers as in the checkpoint, e.g. [\"query\", "
        "\"value\"], or [\"all-linear\"]");
  }
  return options;
}

} // namespace tessera::zoo
