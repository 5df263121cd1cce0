// SPDX-License-Identifier: Apache-2.0
#pragma once
// Backward through one piece of a model, at once or in two halves.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
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
/// runs these, for their inputs alone, and notes what arrives at the operators
/// beside which a parameter enters. backward_weight() runs those again, for
/// their parameters alone, and what lies between them and the parameters. An
/// operator that computes only what it is asked for (matrix products, norms)
/// thus does each half of its work once; a custom function that always computes
/// all of its gradients does so twice. The results are those of a whole
/// backward. What a checkpointed block accumulates inside its own backward is
/// there after the first half.
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

  Tensors inputs_;
  torch::autograd::edge_list roots_;
  Tensors input_gradients_;
  std::shared_ptr<Halves> halves_;
};

} // namespace tessera
