// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OperatorRecomputation` recomputes, in backward, the results of cheap
// operators that other operators would keep.

#include "tessera/runtime/memory/activation_sink.h"

#include <memory>

namespace tessera::sharding {

/// [Note: recomputed operators] A linear layer keeps its input for the gradient
/// of its weight. If that input is gelu(x), GELU keeps x as well, so that one
/// of the two is redundant. When an operator saves a tensor, autograd's node of
/// the operator that has made it is at hand; if the node keeps all that the
/// result can be computed from, the node is kept in the tensor's place. What a
/// node keeps may in turn be recomputed from the node before: a gated MLP keeps
/// gate and up, and neither silu(gate) nor silu(gate) * up.
///
/// Operators: gelu, silu, gated_activation() of ours, and mul, which includes
/// dropout on the CPU, a product with a mask, of one of these or of relu. They
/// are elementwise, so that the same kernel computes the same bits. Nodes of
/// layer_norm and rms_norm lack eps, and CUDA's dropout computes its factor
/// otherwise than its backward does: their results are kept.
///
/// No nested backward is involved, no generator, and no module: it works for
/// unmodified ones, for torch::autograd::grad() and for double backward.
class OperatorRecomputation final : public runtime::ActivationSink {
 public:
  /// @param next gets all other tensors; null: they stay as they are.
  explicit OperatorRecomputation(
      std::shared_ptr<runtime::ActivationSink> next = nullptr);

  std::unique_ptr<runtime::SavedActivation> take(
      const at::Tensor& tensor,
      bool to_host) override;

 private:
  std::shared_ptr<runtime::ActivationSink> next_;
};

} // namespace tessera::sharding
