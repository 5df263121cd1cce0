// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/layers/linear.h"

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

namespace {

/// An expression for these names alone.
std::string any_of_names(const std::vector<std::string>& names) {
  std::string expression;
  for (const std::string& name : names) {
    expression += expression.empty() ? "" : "|";
    for (const char c : name) {
      expression += c == '.' ? "\\." : std::string(1, c);
    }
  }
  return expression;
}

} // namespace

std::vector<ParameterRule> lora_plus_rules(const Model& model, double ratio) {
  lora_config(model); // throws if there are none
  std::vector<std::string> decayed;
  std::vector<std::string> undecayed;
  for (const auto& item : model.named_parameters()) {
    const std::string_view name = item.key();
    const bool is_vector = item.value().dim() == 1;
    if (!item.value().requires_grad() ||
        (!is_vector && !name.ends_with(".lora_B"))) {
      continue;
    }
    (is_vector && !is_adapter_parameter(name) ? undecayed : decayed)
        .emplace_back(name);
  }
  std::vector<ParameterRule> rules;
  for (const auto* names : {&decayed, &undecayed}) {
    if (names->empty()) {
      continue;
    }
    ParameterRule rule{.pattern = any_of_names(*names), .lr_scale = ratio};
    if (names == &undecayed) {
      rule.weight_decay = 0;
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

} // namespace tessera::zoo
