// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/step_drops.h"

#include "tessera/runtime/core/option_fields.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tessera::zoo {

namespace {

/// Numbers of the draws of tokens, away from those of the layers themselves,
/// whose dropout is drawn from their own.
constexpr int64_t kTokenDraws = int64_t{1} << 32;

} // namespace

void visit_fields(runtime::OptionFields& fields, LayerDropOptions& options) {
  fields.field(
      "theta",
      options.theta,
      {.min = 0, .max = 1},
      "the share of time in which the last layer is run comes down to about this");
  fields.field(
      "gamma",
      options.gamma,
      {.min = 0},
      "how fast, per step: theta(t) = (1 - theta) exp(-gamma t) + theta");
}

void visit_fields(runtime::OptionFields& fields, TokenDropOptions& options) {
  fields.field(
      "min_tokens",
      options.min_tokens,
      {.min = 1},
      "tokens of each sequence that a middle layer gets in the first step");
  fields.field(
      "steps",
      options.steps,
      {.min = 1},
      "optimizer steps until it gets all of them; their number grows evenly");
  fields.field(
      "multiple",
      options.multiple,
      {.min = 1},
      "their number is a multiple of this");
}

double keep_probability(
    const LayerDropOptions& options,
    int64_t layer,
    int64_t layers,
    int64_t step) {
  const double theta =
      (1 - options.theta) *
          std::exp(-options.gamma * static_cast<double>(step)) +
      options.theta;
  return 1 -
         static_cast<double>(layer) / static_cast<double>(layers) * (1 - theta);
}

int64_t kept_tokens(
    const TokenDropOptions& options,
    int64_t tokens,
    int64_t step) {
  if (step >= options.steps || tokens <= options.min_tokens) {
    return tokens;
  }
  const int64_t more = (tokens - options.min_tokens) * step / options.steps;
  const int64_t kept = options.min_tokens + more;
  const int64_t even = kept - kept % options.multiple;
  return std::clamp(even, std::min(options.min_tokens, tokens), tokens);
}

StepDrops::StepDrops(
    const std::optional<LayerDropOptions>& layer_drop,
    const std::optional<TokenDropOptions>& token_drop,
    const RandomKey& key,
    int64_t layers)
    : layer_drop_(layer_drop),
      token_drop_(token_drop),
      key_(key),
      layers_(layers) {}

bool StepDrops::keeps_layer(int64_t layer) const {
  return !layer_drop_ ||
         uniform_of_step(key_, layer) <
             keep_probability(*layer_drop_, layer, layers_, key_.step);
}

double StepDrops::scale_of(int64_t layer) const {
  return layer_drop_
             ? 1 / keep_probability(*layer_drop_, layer, layers_, key_.step)
             : 1;
}

at::Tensor StepDrops::tokens_of(
    int64_t layer,
    int64_t rows,
    int64_t tokens,
    at::Device device) const {
  if (!token_drop_ || layer == 0 || layer + 1 >= layers_) {
    return {};
  }
  const int64_t kept = kept_tokens(*token_drop_, tokens, key_.step);
  if (kept == tokens) {
    return {};
  }
  // On the CPU: the same on all ranks, whatever they compute on.
  const RandomLayerScope random(kTokenDraws + layer, at::kCPU);
  const at::Tensor order =
      torch::rand({rows, tokens}).argsort(/*dim=*/int64_t{1});
  return std::get<0>(order.narrow(1, 0, kept).sort(1)).to(device);
}

} // namespace tessera::zoo
