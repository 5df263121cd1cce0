// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LayerDropOptions` and `TokenDropOptions` let training steps leave out
// layers, or tokens of layers; `StepDrops` is what one step leaves out.
//
// [Note: layers and tokens that are left out] Which layers are run is a
// function of (seed of the run, step, layer), the same on all ranks and in all
// micro-batches of a step, so that every rank unshards the same layers in the
// same order. Which tokens a layer gets is a function of (seed, step,
// micro-batch, layer), as dropout is ([Note: random keys]), and of nothing
// else: layouts of ranks, pipeline stages, recomputation and resumption do not
// change it. Both are taken outside of the layers, which may be recomputed.

#include "tessera/runtime/random/random_key.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// Progressive layer drop (arXiv:2010.13369). In step t, layer l of L (from 0)
/// is run with probability 1 - l / L (1 - theta(t)), where theta(t) = (1 -
/// theta) exp(-gamma t) + theta: at the beginning all layers are, and the first
/// one always. What a layer that is run adds to its input is divided by the
/// probability, so that its expectation is that of evaluation, which runs all
/// layers.
struct LayerDropOptions {
  double theta = 0.5; ///< the limit of theta(t)
  double gamma = 0.001; ///< per step
};

void visit_fields(runtime::OptionFields& fields, LayerDropOptions& options);

/// Random layerwise token dropping (arXiv:2211.11586). Every layer but the
/// first and the last gets a random subset of each sequence's tokens, another
/// one in each layer; the others pass it by. In step t they are min_tokens + t
/// / steps (S - min_tokens), S being the sequence's length, rounded down to a
/// multiple of `multiple`; all tokens from step `steps` on.
struct TokenDropOptions {
  int64_t min_tokens = 128;
  int64_t steps = 10000; ///< optimizer steps until no token is dropped
  int64_t multiple = 16;
};

void visit_fields(runtime::OptionFields& fields, TokenDropOptions& options);

/// The probability with which a layer is run.
double keep_probability(
    const LayerDropOptions& options,
    int64_t layer,
    int64_t layers,
    int64_t step);

/// The tokens that each middle layer gets, of `tokens`.
int64_t kept_tokens(
    const TokenDropOptions& options,
    int64_t tokens,
    int64_t step);

class StepDrops {
 public:
  /// Nothing is left out.
  StepDrops() = default;

  /// @param layers of the whole model.
  StepDrops(
      const std::optional<LayerDropOptions>& layer_drop,
      const std::optional<TokenDropOptions>& token_drop,
      const RandomKey& key,
      int64_t layers);

  bool any() const {
    return layer_drop_ || token_drop_;
  }

  bool keeps_layer(int64_t layer) const;

  /// The factor on what a layer that is run adds to its input.
  double scale_of(int64_t layer) const;

  /// The tokens that a layer gets, ascending: int64 [rows, kept] on `device`;
  /// undefined: all. Inside of the RandomKeyScope of the micro-batch.
  at::Tensor tokens_of(
      int64_t layer,
      int64_t rows,
      int64_t tokens,
      at::Device device) const;

 private:
  std::optional<LayerDropOptions> layer_drop_;
  std::optional<TokenDropOptions> token_drop_;
  RandomKey key_;
  int64_t layers_ = 0;
};

} // namespace tessera::zoo
