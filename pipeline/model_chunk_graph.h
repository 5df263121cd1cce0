// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelChunkGraph` runs backward through one piece of a model, at once or in
// two halves.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace tessera::pipeline {

/// The autograd graph that the forward of a piece recorded between its inputs
/// and its outputs. It does not hold the memory of outputs: once they are sent,
/// only what backward needs remains.
///
/// [Note: backward in two halves] The gradients of a piece's inputs need only
/// those operators through which an input reaches an output. backward_input()
/// runs these, cut off from everything else, and records the gradients that
/// arrive at each operator that was cut. backward_weight() runs those operators
/// again, cut off from the inputs instead, and what lies between them and the
/// parameters. An operator of LibTorch computes only the gradients that are
/// asked for, so each half of a matrix product or a norm is computed once.
/// Custom functions are cut if they declare themselves traceable and do the
/// same; what others compute for parameters, such as a checkpointed block,
/// belongs to the first half.
///
/// The results are those of a whole backward.
class ModelChunkGraph {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// @param inputs leaves; gradients are computed for those that require one.
  /// @param outputs computed from the inputs or from parameters.
  ModelChunkGraph(Tensors inputs, const Tensors& outputs);

  /// Accumulates the gradients of all parameters. Frees the graph.
  /// @param gradients of the outputs that require one, in order.
  void backward(const Tensors& gradients);

  /// The first half: computes the gradients of the inputs.
  void backward_input(const Tensors& gradients);
  /// The second half, after the first: accumulates the gradients of all
  /// parameters. Frees the graph.
  void backward_weight();

  /// Returns the gradients of the inputs that require one, in order; zeros if
  /// no output depends on it. Call it once, after backward() or
  /// backward_input().
  Tensors take_input_gradients();

 private:
  struct Halves;

  void collect_input_gradients();

  Tensors inputs_;
  torch::autograd::edge_list roots_;
  Tensors input_gradients_;
  std::shared_ptr<Halves> halves_;
};

} // namespace tessera::pipeline
