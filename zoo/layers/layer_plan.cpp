// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/layer_plan.h"

#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/linear.h"

#include <optional>
#include <string>

namespace tessera::zoo {

namespace {

std::optional<TensorPlanEntry> entry_of(
    const std::string& name,
    const LinearLayer& layer,
    int ranks) {
  if (layer.division == LinearDivision::kData ||
      layer.context.parallel() == nullptr) {
    return std::nullopt;
  }
  const bool is_row = layer.division == LinearDivision::kRow;
  const LinearOptions& sizes = layer.sizes;
  int64_t unit = sizes.unit;
  if ((is_row ? sizes.in : sizes.out) / unit < ranks && sizes.fine_unit) {
    unit = *sizes.fine_unit;
  }
  if (unit == 0) {
    return std::nullopt;
  }
  return TensorPlanEntry{
      name, is_row ? TensorDivision::kRow : TensorDivision::kColumn, unit};
}

} // namespace

TensorPlan layer_plan(const torch::nn::Module& module, int ranks) {
  TensorPlan plan;
  for (const auto& item : module.named_modules()) {
    if (const auto* layer = item.value()->as<LinearLayer>()) {
      if (auto entry = entry_of(item.key(), *layer, ranks)) {
        plan.push_back(std::move(*entry));
      }
    } else if (item.value()->as<TokenTable>() != nullptr) {
      plan.push_back({item.key(), TensorDivision::kVocab});
    }
  }
  return plan;
}

} // namespace tessera::zoo
