// SPDX-License-Identifier: Apache-2.0
#pragma once
// Backward through one piece of a model, at once or in two halves.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace tessera {

/// The autograd graph that the forward of a piece left behind, between its
/// inputs and its outputs. It holds no output's memory: once that is sent, only
/// what backward needs is left.
///
/// [Note: backward in two halves] The gradients of a piece's inputs need only
/// those operators through which an input reaches an output. backward_input()
/// runs these, cut off from everything else, and notes what arrives at each
/// that has been cut. backward_weight() runs those again, cut off from the
/// inputs instead, and what lies between them and the parameters. An operator
/// of LibTorch computes what is asked for only, so that each half of a matrix
/// product or a norm is computed once. Custom functions are cut where they say
/// that they are traceable and do the same; what others do for parameters, as a
/// checkpointed block does, belongs to the first half.
/// The results are those of a whole backward.
class PieceGraph {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// @param inputs leaves; gradients are wanted for those that require one.
  /// @param outputs made from them, or from parameters.
  PieceGraph(Tensors inputs, const Tensors& outputs);

  /// Accumulates the gradients of all parameters. Frees the graph.
  /// @param gradients of the outputs that require one, in order.
  void backward(const Tensors& gradients);

  /// The first half: the inputs' gradients.
  void backward_input(const Tensors& gradients);
  /// The second half, after the first: accumulates the gradients of all
  /// parameters. Frees the graph.
  void backward_weight();

  /// After backward() or backward_input(), once: the gradients of the inputs
  /// that require one, in order; zeros where no output depends on it.
  Tensors take_input_gradients();

 private:
  struct Halves;

  void collect_input_gradients();

  Tensors inputs_;
  torch::autograd::edge_list roots_;
  Tensors input_gradients_;
  std::shared_ptr<Halves> halves_;
};

} // namespace tessera
