// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all layers of a model are made with: plain, or divided over a
// tensor-parallel group; for whole sequences or divided ones; all experts or
// some; all of them, or those of a pipeline's stage.

#include "tessera/pipeline/stage_layers.h"
#include "tessera/sharding/parallel/context_parallel.h"
#include "tessera/sharding/parallel/random_key.h"
#include "tessera/sharding/parallel/tensor_parallel.h"
#include "tessera/sharding/parallel/tensor_random.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// Experts divided over ranks; groups outlive the layers and their graphs.
struct ExpertParallel {
  /// ParallelGroup::kExpert: the ranks that have all experts between them.
  Communicator* group = nullptr;
  /// ParallelGroup::kGradients: the ranks over whose tokens the losses of
  /// routers are taken.
  Communicator* gradients = nullptr;
};

/// [Note: one implementation of every layer] A layer is written once, for whole
/// activations. Its Linear and Embedding are torch::nn's, or those of
/// sharding/parallel where the context has a group; a layer asks them how many
/// features they have here. It calls enter() once before its column-parallel
/// projections; everything else below is nothing without a group. Without one
/// nothing of Tessera is set up: no init(), no mesh, no engine.
class LayerContext {
 public:
  /// Plain LibTorch layers.
  LayerContext() = default;

  /// Layers divided over `how.group`. Their parameters are declared and have no
  /// memory until init_parameters() or load_weights(), and materialize() or
  /// wrap().
  /// @throws tessera::Error when `how` has no group.
  explicit LayerContext(const TensorParallel& how);

  /// The same layers over sequences divided over `how.group`. A model takes
  /// whole batches nevertheless, and gives whole results.
  /// @throws tessera::Error as check(const ContextParallel&).
  LayerContext over_context(const ContextParallel& how) const;

  /// The same layers with experts divided over `how.group`.
  /// @throws tessera::Error when `how` lacks a group.
  LayerContext over_experts(const ExpertParallel& how) const;

  /// The same layers, of one stage's pieces of the model.
  LayerContext on_stage(const PipelinePlace& place) const;

  /// By default the only stage.
  const PipelinePlace& place() const {
    return place_;
  }

  /// Null for plain layers.
  const TensorParallel* parallel() const {
    return parallel_ ? &*parallel_ : nullptr;
  }
  int ranks() const;
  int rank() const;

  /// For layer number `layer` of the whole model ([Note: random keys]).
  LayerContext numbered(int64_t layer) const;

  /// For the forward of a numbered layer: it draws the same numbers on whatever
  /// pipeline stage it is.
  RandomLayerScope random_scope(at::Device device) const {
    return {layer_, device};
  }

  /// Null for whole sequences.
  const ContextParallel* context() const {
    return sequences_ ? &*sequences_ : nullptr;
  }
  /// Null where every rank has all experts.
  const ExpertParallel* experts() const {
    return experts_ ? &*experts_ : nullptr;
  }

  /// This rank's tokens of dimension `dim` of what every rank has whole.
  at::Tensor own_tokens(const at::Tensor& whole, int64_t dim = 1) const;
  /// [batch, own tokens, ...] to [batch, sequence, ...]; see whole_context().
  at::Tensor all_tokens(const at::Tensor& own) const;

  /// Activations between layers to whole ones, used for parts of a layer; see
  /// tessera::enter_layer().
  at::Tensor enter(const at::Tensor& between) const;

  /// What every rank of the tensor-parallel group has whole, of this rank's
  /// tokens, to what is between layers: under sequence parallelism a part of
  /// them.
  at::Tensor between(const at::Tensor& whole) const;

  /// What is between layers to what every rank has whole, for results: all
  /// features of all tokens.
  at::Tensor whole(const at::Tensor& between) const;

  /// A parameter that every rank has whole and uses between layers.
  at::Tensor replicated(const at::Tensor& parameter) const;

  /// A parameter that every rank has whole and uses for its part of a layer.
  at::Tensor shared(const at::Tensor& parameter) const;

  /// Dropout of activations between layers: the same elements on all ranks that
  /// have them. See DropoutMasks.
  at::Tensor dropout(const at::Tensor& between, double probability, bool train)
      const;

  /// Dropout inside of a layer, while training: of a rank's part of dimension
  /// `dim`, of `size` elements that are divided in whole units.
  at::Tensor dropout_part(
      const at::Tensor& part,
      double probability,
      int64_t dim,
      int64_t size,
      int64_t unit = 1) const;

 private:
  std::optional<TensorParallel> parallel_;
  std::optional<ContextParallel> sequences_;
  std::optional<ExpertParallel> experts_;
  PipelinePlace place_;
  std::optional<int64_t> layer_;
};

/// While it lives, ranks that have different tokens, or different parts of a
/// layer, get random numbers of their own; see TensorRandomScope.
class PartsRandomScope {
 public:
  /// @param tensor_parts tensor-parallel ranks have different parts, too.
  PartsRandomScope(
      const LayerContext& context,
      const at::Device& device,
      bool tensor_parts);

 private:
  std::optional<TensorRandomScope> tokens_;
  std::optional<TensorRandomScope> parts_;
};

} // namespace tessera::zoo
