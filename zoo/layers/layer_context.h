// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LayerContext` states how the layers of a model are constructed: plain or
// partitioned over a tensor-parallel group; for whole sequences or divided
// ones; with all experts or some; for the whole model or one pipeline stage.

#include "tessera/pipeline/stage_layers.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/context_parallel/context_parallel.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// Experts divided over ranks; the groups outlive the layers and their graphs.
struct ExpertParallel {
  /// ParallelGroup::kExpert: the ranks that together hold all experts.
  Communicator* group = nullptr;
  /// ParallelGroup::kGradients: the ranks over whose tokens router losses are
  /// computed.
  Communicator* gradients = nullptr;
};

/// [Note: one implementation of every layer] A layer is written once, for whole
/// activations. With a group its linear layers and tables of tokens are
/// partitioned by apply_tensor_plan(), and what they return looks whole
/// ([Note: DTensors]). Without a group nothing of Tessera needs to be set up:
/// no init(), no mesh, no engine.
class LayerContext {
 public:
  /// Plain LibTorch layers.
  LayerContext() = default;

  /// Layers partitioned over `how.group`. Their parameters are declared and
  /// have no memory until init_parameters() or load_weights(), and
  /// materialize() or wrap().
  /// @throws tessera::Error if `tp` has no group.
  explicit LayerContext(const TensorParallel& tp);

  /// The same layers, with sequences divided over `how.group` (context
  /// parallelism). The model still takes whole batches and returns whole
  /// results.
  /// @throws tessera::Error as check(const ContextParallel&).
  LayerContext over_context(const ContextParallel& cp) const;

  /// The same layers, with experts divided over `how.group`.
  /// @throws tessera::Error if `tp` lacks a group.
  LayerContext over_experts(const ExpertParallel& ep) const;

  /// The same layers, restricted to one pipeline stage.
  LayerContext on_stage(const pipeline::PipelinePosition& position) const;

  /// By default the only pipeline stage.
  const pipeline::PipelinePosition& position() const {
    return position_;
  }

  /// Null for plain layers.
  const TensorParallel* parallel() const {
    return parallel_ ? &*parallel_ : nullptr;
  }

  /// The context of layer number `layer` of the whole model
  /// ([Note: random keys]).
  LayerContext numbered(int64_t layer) const;

  /// Keep it alive during the forward of a numbered layer: the layer then draws
  /// the same random numbers on any pipeline stage.
  RandomLayerScope random_scope(at::Device device) const {
    return {layer_, device};
  }

  /// Null for whole sequences.
  const ContextParallel* context() const {
    return sequences_ ? &*sequences_ : nullptr;
  }
  /// Null if every rank has all experts.
  const ExpertParallel* experts() const {
    return experts_ ? &*experts_ : nullptr;
  }

  /// This rank's tokens, along dimension `dim`, of a tensor that every rank has
  /// whole.
  at::Tensor local_tokens(const at::Tensor& full, int64_t dim = 1) const;
  /// [batch, own tokens, ...] to [batch, sequence, ...]; see full_context().
  at::Tensor all_tokens(const at::Tensor& local) const;

  /// Divides this rank's tokens, which every rank of the tensor-parallel group
  /// has whole, along the sequence under sequence parallelism.
  at::Tensor between(const at::Tensor& full) const;

  /// Whether every rank has all tokens between layers: neither context nor
  /// sequence parallelism divides them.
  bool has_all_tokens() const {
    return !sequences_ && !(parallel_ && parallel_->sequence);
  }

  /// The tensor-parallel ranks that have equal activations between layers; null
  /// for plain layers, and under sequence parallelism, which divides them.
  Communicator* same_between() const {
    return parallel_ && !parallel_->sequence ? parallel_->group : nullptr;
  }

  /// Gathers an activation to a whole result: all features of all tokens.
  at::Tensor full(const at::Tensor& x) const;

  /// Dropout. Ranks with different tokens (context parallelism) drop
  /// differently; for tensor-parallel ranks see DropoutMasks.
  at::Tensor dropout(const at::Tensor& x, double probability, bool train) const;

  /// bool as x, which is contiguous: what dropout() keeps, in training. The
  /// numbers that are drawn are those of dropout().
  at::Tensor dropout_mask(const at::Tensor& x, double probability) const;

 private:
  std::optional<TensorParallel> parallel_;
  std::optional<ContextParallel> sequences_;
  std::optional<ExpertParallel> experts_;
  pipeline::PipelinePosition position_;
  std::optional<int64_t> layer_;
};

} // namespace tessera::zoo
