// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all layers of a model are made with: plain, or divided over a
// tensor-parallel group; all of them, or those of a pipeline's stage.

#include "tessera/pipeline/stage_layers.h"
#include "tessera/sharding/parallel/random_key.h"
#include "tessera/sharding/parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

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

  /// Activations between layers to whole ones, used for parts of a layer; see
  /// tessera::enter_layer().
  at::Tensor enter(const at::Tensor& between) const;

  /// What every rank has whole to what is between layers: under sequence
  /// parallelism this rank's part of the sequences.
  at::Tensor between(const at::Tensor& whole) const;

  /// What is between layers to what every rank has whole, for results.
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
  PipelinePlace place_;
  std::optional<int64_t> layer_;
};

} // namespace tessera::zoo
