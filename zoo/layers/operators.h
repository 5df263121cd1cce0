// SPDX-License-Identifier: Apache-2.0
#pragma once
// `operators()` is the table of what layers compute between matrix products, by
// kernels of our own or by LibTorch's operators ([Note: fused operators]).

#include "tessera/zoo/layers/activation.h"
#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/rotary.h"

#include <ATen/core/Tensor.h>

#include <utility>

namespace tessera::zoo {

/// A Norm and its parameters, which may be undefined.
struct NormCall {
  const NormOptions& options;
  at::Tensor weight;
  at::Tensor bias;
};

struct LayerOperators {
  /// activation(gate) * up.
  at::Tensor (*gated)(
      Activation activation,
      const at::Tensor& gate,
      const at::Tensor& up);
  /// rotate() of queries and keys.
  std::pair<at::Tensor, at::Tensor> (*rotated)(
      const at::Tensor& query,
      const at::Tensor& key,
      const RotaryTables& tables);
  /// NormImpl::add().
  ResidualNorm (*residual_norm)(
      const LayerContext& context,
      const Residual& residual,
      const NormCall& norm);
};

/// The table that `fused` of a configuration chooses. Kernels of our own leave
/// to LibTorch's operators what they do not take.
const LayerOperators& operators();

} // namespace tessera::zoo
