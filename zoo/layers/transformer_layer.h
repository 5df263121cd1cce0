// SPDX-License-Identifier: Apache-2.0
#pragma once
// The transformer layer that all models are made of.

#include "tessera/sharding/transformer_block_list.h"
#include "tessera/zoo/layers/attention.h"
#include "tessera/zoo/layers/experts.h"
#include "tessera/zoo/layers/feed_forward.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

namespace tessera::zoo {

/// Where each half f of a layer is normalised.
enum class NormPlacement {
  kPre, ///< x + f(norm x)
  kPost, ///< norm(x + f(x))
  kSandwich, ///< x + norm'(f(norm x)) (arXiv:2105.13290)
};

struct TransformerLayerOptions {
  NormPlacement placement = NormPlacement::kPre;
  /// x + attention(norm x) + feed_forward(norm x), with one norm (GPT-J).
  bool parallel_halves = false;
  NormOptions norm;
  AttentionOptions attention;
  /// Behind self-attention: of a decoder that has a memory.
  std::optional<AttentionOptions> cross_attention;
  FeedForwardOptions feed_forward;
  /// In place of feed_forward.
  std::optional<ExpertsOptions> experts;
  double dropout = 0; ///< of what each half adds, while training
  bool local = false; ///< takes LayerInput::local_mask
};

/// What goes to every layer with the hidden states; everything may be
/// undefined. See AttentionInput for masks and biases.
struct LayerInput {
  at::Tensor mask;
  at::Tensor local_mask; ///< for layers that see a window only
  at::Tensor bias; ///< of self-attention
  RotaryTables rotary;
  at::Tensor memory; ///< [B, K, features] between layers
  at::Tensor memory_mask; ///< of cross-attention
  KeyValueCache* cache = nullptr; ///< see AttentionInput
};

template <typename Visit>
void visit_tensors_of(LayerInput& input, Visit&& visit) {
  visit(input.mask);
  visit(input.local_mask);
  visit(input.bias);
  visit(input.rotary);
  visit(input.memory);
  visit(input.memory_mask);
}

/// Submodules `attention`, `attention_norm`, `feed_forward` (also with
/// experts), `feed_forward_norm`, and where the options say so
/// `cross_attention`, `cross_attention_norm`, and `..._output_norm` for the
/// second norms of kSandwich.
class TransformerLayerImpl : public torch::nn::Module {
 public:
  TransformerLayerImpl(
      const LayerContext& context,
      const TransformerLayerOptions& options);

  /// hidden [B, S, features] between layers -> the same. Collective with a
  /// group.
  at::Tensor forward(const at::Tensor& hidden, const LayerInput& input = {});

 private:
  struct Half {
    Norm norm{nullptr};
    Norm output_norm{nullptr};
  };

  Half make_half(const std::string& name);
  /// x and what `part` makes of it.
  template <typename Part>
  at::Tensor add(Half& half, const at::Tensor& x, const Part& part);
  at::Tensor feed_forward(const at::Tensor& x);

  LayerContext context_;
  TransformerLayerOptions options_;
  Attention attention_{nullptr}, cross_attention_{nullptr};
  FeedForward feed_forward_{nullptr};
  Experts experts_{nullptr};
  Half attention_half_, cross_half_, feed_forward_half_;
};
TORCH_MODULE(TransformerLayer);

/// Layers one after the other; see tessera::TransformerBlockList.
using TransformerLayers = TransformerBlockList<TransformerLayer>;

} // namespace tessera::zoo
