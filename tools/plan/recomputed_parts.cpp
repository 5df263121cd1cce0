// SPDX-License-Identifier: Apache-2.0
#include "plan/recomputed_parts.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/zoo/tasks/training_config.h"

namespace tessera::tools {

namespace {

std::string joined(
    const std::vector<std::string>& parts,
    const char* separator,
    const char* nothing) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : separator) + part;
  }
  return text.empty() ? nothing : text;
}

} // namespace

RecomputedParts RecomputedParts::with_layers(int64_t count) const {
  RecomputedParts parts = *this;
  parts.layers = count;
  return parts;
}

std::vector<std::string> RecomputedParts::overrides() const {
  return {
      formatted("model.checkpoint_layers={}", layers),
      formatted("model.checkpoint_attention={}", attention),
      formatted("model.divide_checkpoints={}", divided_inputs),
      formatted("recompute_operators={}", operators)};
}

std::string RecomputedParts::column() const {
  std::vector<std::string> parts;
  if (operators) {
    parts.emplace_back("op");
  }
  if (attention) {
    parts.emplace_back("at");
  }
  if (layers > 0) {
    parts.push_back(formatted("{}{}", layers, divided_inputs ? "/t" : ""));
  }
  return joined(parts, "+", "-");
}

std::string RecomputedParts::text() const {
  std::vector<std::string> parts;
  if (operators) {
    parts.emplace_back("cheap operators");
  }
  if (attention) {
    parts.emplace_back("attention");
  }
  if (layers > 0) {
    parts.push_back(
        runtime::count_text(layers, "layer") +
        (divided_inputs ? " with divided inputs" : ""));
  }
  return joined(parts, ", ", "nothing");
}

RecomputedParts recomputed_parts(const zoo::TrainingConfig& config) {
  return {
      .layers = config.checkpoint_layers.value_or(0),
      .operators = config.engine.recompute_operators,
      .attention = config.checkpoint_attention,
      .divided_inputs = config.divide_checkpoints};
}

} // namespace tessera::tools
