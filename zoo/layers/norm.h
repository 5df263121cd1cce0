// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Norm` is LayerNorm or RMSNorm, between layers or inside attention.

#include "tessera/zoo/layers/layer_context.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera::zoo {

enum class NormKind {
  kLayerNorm, ///< (x - mean) / sqrt(variance + eps) w + b (arXiv:1607.06450)
  kRmsNorm, ///< x / sqrt(mean of squares + eps) w (arXiv:1910.07467)
};

struct NormOptions {
  NormKind kind = NormKind::kLayerNorm;
  int64_t features = 0;
  double eps = 1e-5;
  bool weight = true;
  bool bias = true; ///< only for LayerNorm with a weight
  /// Added to the stored weight: 1 where files hold w - 1 (Gemma, Nemotron).
  double weight_offset = 0;
};

/// x and what is added to it: scale times `branch`, of which elements are
/// dropped.
struct Residual {
  at::Tensor x;
  at::Tensor branch; ///< as x; undefined: none
  double scale = 1;
  double dropout = 0; ///< probability; 0 outside of training
};

struct ResidualNorm {
  at::Tensor sum; ///< x plus the branch
  at::Tensor normed;
};

/// Normalizes the last dimension. Parameters `weight` and `bias` [features], if
/// the options ask for them, are whole on every rank and start at
/// 1 - `weight_offset` and 0.
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const NormOptions& options);

  /// x [..., features] -> the same. The ranks of a tensor-parallel group may
  /// hold some of the features each (RMSNorm only).
  at::Tensor forward(const at::Tensor& x);

  /// The norm of a sum, in one pass where there is a kernel
  /// ([Note: residual norms]).
  /// @param context draws what is dropped.
  ResidualNorm add(const LayerContext& context, const Residual& residual);

 private:
  NormOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
};
TORCH_MODULE(Norm);

} // namespace tessera::zoo
