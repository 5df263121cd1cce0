// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora_record.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/linear.h"

#include <algorithm>

namespace tessera::zoo {

namespace {

std::string adapter_parameter(const std::string& layer, const char* name) {
  return layer + "." + kAdapterModule + "." + name;
}

/// transformers' masked language models have one bias as that of the decoder
/// and that of the predictions. Here an untied head has both, and uses the
/// former.
void save_bias_twice(NameTable& table) {
  const auto row_of = [&](const char* native) {
    return std::find_if(
        table.base.begin(), table.base.end(), [&](const NameRule& rule) {
          return rule.native.front() == native;
        });
  };
  const auto used = row_of("head.decoder.bias");
  const auto unused = row_of("head.bias");
  if (used == table.base.end() || unused == table.base.end()) {
    return;
  }
  table.copies.emplace(unused->foreign, used->foreign);
  table.ignored.push_back(used->foreign);
  used->foreign = unused->foreign;
  table.base.erase(unused);
}

} // namespace

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.find_last_of('.');
  return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

const LoraRecord& LoraRecord::of(const Model& model) {
  const auto children = model.named_children();
  const auto* found = children.find(kName);
  const auto* record = found != nullptr
                           ? dynamic_cast<const LoraRecord*>(found->get())
                           : nullptr;
  TESSERA_CHECK(
      record != nullptr,
      "the model has no LoRA adapters; apply_lora() or load_lora() adds them");
  return *record;
}

NameTable lora_table(
    const Model& model,
    const LoraTargets& targets,
    const ParameterSizes& sizes) {
  NameTable base_names = model.names();
  base_names.is_part = false;
  const WeightNames base(sizes, base_names);
  const LoraBias bias = targets.config().bias;
  const auto is_adapted = [&](const std::string& our_parameter) {
    return sizes.contains(
        adapter_parameter(module_of(our_parameter), "lora_B"));
  };
  NameTable table;
  table.is_adapter = true;
  const auto add = [&](const std::string& foreign,
                       const std::vector<std::string>& native,
                       bool transposed = false) {
    table.base.push_back(
        {std::string(kAdapterPrefix) + foreign,
         native,
         transposed ? NameRule::kTransposed : NameRule::kSame});
  };
  for (const NamedWeight& weight : base.weights()) {
    const std::string foreign = module_of(weight.name);
    const bool adapted = is_adapted(weight.native.front());
    if (adapted && weight.name.ends_with(".weight")) {
      add(foreign + ".lora_A.weight",
          {adapter_parameter(module_of(weight.native.front()), "lora_A")});
      const auto of_all = [&](const char* name) {
        std::vector<std::string> parameters;
        for (const std::string& native : weight.native) {
          parameters.push_back(adapter_parameter(module_of(native), name));
        }
        return parameters;
      };
      add(foreign + ".lora_B.weight", of_all("lora_B"));
      if (targets.config().use_dora) {
        add(foreign + ".lora_magnitude_vector", of_all("lora_magnitude"));
      }
    } else if (targets.is_saved(foreign)) {
      add(weight.name, weight.native, weight.transposed);
    } else if (weight.name.ends_with(".bias")) {
      if (adapted && bias != LoraBias::kNone) {
        add(foreign + ".base_layer.bias", weight.native);
      } else if (bias == LoraBias::kAll) {
        add(weight.name, weight.native);
      }
    }
  }
  save_bias_twice(table);
  if (const auto tied = model.tied_head();
      tied && targets.is_saved(tied->embedding)) {
    // PEFT saves the one weight under both names.
    const std::string copy =
        std::string(kAdapterPrefix) + tied->head + ".weight";
    table.copies.emplace(
        std::string(kAdapterPrefix) + tied->embedding + ".weight", copy);
    table.ignored.push_back(copy);
  }
  return table;
}

} // namespace tessera::zoo
