// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/layered_model.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera::zoo {

LayeredModel::LayeredModel(
    const LayerContext& context,
    nlohmann::json json,
    NameTable names,
    const std::vector<pipeline::LayerCost>& costs,
    std::vector<std::string> may_be_missing)
    : Model(
          std::move(json),
          std::move(names),
          pipeline::StageLayers(context.position(), costs),
          std::move(may_be_missing)),
      context_(context) {}

std::vector<int> LayeredModel::local_layers(int before, size_t count) const {
  std::vector<int> numbers;
  for (const int layer : stage().local()) {
    if (layer >= before && layer < before + static_cast<int>(count)) {
      numbers.push_back(layer - before);
    }
  }
  return numbers;
}

std::vector<at::Tensor> LayeredModel::hidden_states(
    std::span<const at::Tensor> entered,
    const at::Tensor& last) const {
  std::vector<at::Tensor> states;
  for (const at::Tensor& one : entered) {
    states.push_back(context_.full(one));
  }
  if (last.defined()) {
    states.push_back(last);
  }
  return states;
}

std::string LayeredModel::cannot_drop_divided_tokens() const {
  return context_.context() != nullptr
             ? "context-parallel ranks have parts of the sequences; use parallel.context 1"
             : "";
}

void LayeredModel::check_divides_tokens(int64_t tokens) const {
  const TensorParallel* tp = context_.parallel();
  TESSERA_CHECK(
      tp == nullptr || !tp->sequence || tokens % tp->group->size() == 0,
      "images of {} tokens are not divisible by {} tensor-parallel ranks; turn off sequence parallelism",
      tokens,
      tp == nullptr ? 1 : tp->group->size());
}

} // namespace tessera::zoo
