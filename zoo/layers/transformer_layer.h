// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TransformerLayer` is the layer that the zoo's transformers are built from.

#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/zoo/layers/attention.h"
#include "tessera/zoo/layers/banded_attention.h"
#include "tessera/zoo/layers/experts.h"
#include "tessera/zoo/layers/feed_forward.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

namespace tessera::zoo {

/// The position of the norm relative to each half f of a layer.
enum class NormPlacement {
  kPre, ///< x + f(norm x)
  kPost, ///< norm(x + f(x))
  kSandwich, ///< x + norm'(f(norm x)) (arXiv:2105.13290)
  kBranch, ///< x + norm(f(x)) (arXiv:2501.00656)
};

struct TransformerLayerOptions {
  NormPlacement placement = NormPlacement::kPre;
  /// x + attention(norm x) + feed_forward(norm x), with one norm (GPT-J).
  bool parallel_halves = false;
  NormOptions norm;
  AttentionOptions attention;
  /// Above 0: self-attention is BandedAttention with this reach, and takes
  /// LayerInput::banded.
  int64_t reach = 0;
  /// After self-attention: for a decoder with an encoder.
  std::optional<AttentionOptions> cross_attention;
  FeedForwardOptions feed_forward;
  /// Replaces feed_forward.
  std::optional<ExpertsOptions> experts;
  double dropout = 0; ///< of the output of each half, in training mode
  /// Factor on what each half adds, beside LayerInput::scale.
  double residual_scale = 1;
  bool rotary = true; ///< rotates queries and keys if the model has tables
  /// Takes LayerInput::local_pattern and, if defined, local_rotary.
  bool local = false;
};

/// The inputs of every layer other than the hidden states; all may be
/// undefined. See AttentionInput for patterns, masks and biases.
struct LayerInput {
  AttentionPattern pattern; ///< of self-attention
  AttentionPattern local_pattern; ///< for layers with local attention
  at::Tensor mask; ///< of self-attention
  at::Tensor bias; ///< of self-attention
  RotaryTables rotary;
  RotaryTables local_rotary; ///< likewise, in place of `rotary`
  BandedTokens banded; ///< for layers that have windows and global tokens
  at::Tensor memory; ///< the encoder's output, [B, K, features] between layers
  AttentionPattern memory_pattern; ///< of cross-attention
  KeyValueCache* cache = nullptr; ///< see AttentionInput
  /// The factor on what each half adds to its input.
  double scale = 1;

  /// The inputs of a layer that gets some of the tokens.
  /// @param token_indices int64 [B, kept], ascending.
  /// @throws tessera::Error with a cache, banded tokens or memory.
  LayerInput at_tokens(const at::Tensor& token_indices) const;
};

template <typename Visit>
void visit_tensors_of(LayerInput& input, Visit&& visit) {
  visit_tensors_of(input.pattern, visit);
  visit_tensors_of(input.local_pattern, visit);
  visit(input.mask);
  visit(input.bias);
  visit(input.rotary);
  visit(input.local_rotary);
  visit(input.banded);
  visit(input.memory);
  visit_tensors_of(input.memory_pattern, visit);
}

/// Submodules `attention`, `attention_norm`, `feed_forward` (also with
/// experts), `feed_forward_norm`, and depending on the options
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

  /// Whether its attention is recomputed in backward; see recomputed_attend().
  void recompute_attention(bool again);
  /// The ranks that have the same hidden states between layers; null if none.
  Communicator* same_hidden() const {
    return context_.same_between();
  }
  const LayerContext& context() const {
    return context_;
  }

 private:
  struct Half {
    Norm norm{nullptr};
    Norm output_norm{nullptr};
  };

  Half make_half(const std::string& name);
  ResidualNorm normed(Half& half, const Residual& residual);
  at::Tensor sum_of(const Residual& residual) const;
  /// What `before` is the sum of plus the result of `part`, with norms and
  /// dropout as configured: a sum that the next norm may compute.
  template <typename Part>
  Residual add(
      Half& half,
      const Residual& before,
      double scale,
      const Part& part);
  /// Dropout, then LayerInput::scale.
  at::Tensor dropped(const at::Tensor& x, double scale) const;
  at::Tensor attend_to_self(const at::Tensor& x, const LayerInput& input);
  at::Tensor feed_forward(const at::Tensor& x);

  LayerContext context_;
  TransformerLayerOptions options_;
  Attention attention_{nullptr}, cross_attention_{nullptr};
  BandedAttention banded_{nullptr};
  FeedForward feed_forward_{nullptr};
  Experts experts_{nullptr};
  Half attention_half_, cross_half_, feed_forward_half_;
};
TORCH_MODULE(TransformerLayer);

/// A sequence of layers; see tessera::TransformerBlockList.
using TransformerLayers = TransformerBlockList<TransformerLayer>;

} // namespace tessera::zoo
