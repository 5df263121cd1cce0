// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LayeredModel` is the base of the zoo's models: a Model with a LayerContext.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/model.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::zoo {

class LayeredModel : public Model {
 protected:
  /// @param json the config.json, which the model keeps.
  /// @param costs of all layers of the model.
  /// Others as of Model.
  LayeredModel(
      const LayerContext& context,
      nlohmann::json json,
      NameTable names,
      const std::vector<pipeline::LayerCost>& costs,
      std::vector<std::string> may_be_missing = {});

  /// The layers that this object holds of the `count` after the first `before`,
  /// such as one half of the model, numbered from the first of these.
  std::vector<int> local_layers(int before, size_t count) const;

  /// ModelOutput::hidden_states. Collective with a group.
  /// @param entered of LayerState.
  /// @param last the final hidden states, whole on every rank; undefined: they
  ///     are not among the results.
  std::vector<at::Tensor> hidden_states(
      std::span<const at::Tensor> entered,
      const at::Tensor& last = {}) const;

  /// Model::cannot_drop_tokens() of layers that may leave out any of the
  /// tokens that a rank has.
  std::string cannot_drop_divided_tokens() const;

  /// @throws tessera::Error under sequence parallelism if images of `tokens`
  ///     tokens are not divisible over the tensor-parallel ranks.
  void check_divides_tokens(int64_t tokens) const;

  LayerContext context_;
};

} // namespace tessera::zoo
