// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recomputation in backward: what CheckpointBlock and TransformerBlockList
// stand on.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensor_visitor.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// [Note: recomputation] The forward runs without gradients, so that nothing
/// inside it is kept but its arguments. In backward it runs again, with
/// gradients, from the same arguments, generators and autocast, and a backward
/// of its own goes through what it made. The gradients of its parameters are
/// accumulated there, where their hooks see them; only those of the arguments
/// return to the graph around. The graph holds the arguments and the function,
/// never a weight: those are paged in when the forward runs again.
///
/// From this follows what it cannot do, and says: torch::autograd::grad() and
/// double backward. A forward must compute the same twice; buffers that it
/// updates (running statistics) are updated twice.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// How a call is checkpointed.
struct CheckpointMode {
  /* implicit */ CheckpointMode(
      bool trains,
      Communicator* divide_over = nullptr)
      : trains(trains), divide_over(divide_over) {}

  /// Whether it has parameters that require a gradient: then gradients are
  /// wanted even if no argument requires one.
  bool trains;
  /// A group whose ranks have the same arguments; it outlives the graph. Each
  /// keeps its part of those that require a gradient, and backward gathers
  /// them, to the bit: collective then, over the group.
  Communicator* divide_over;
};

/// Runs `first` on `inputs`, all defined, and keeps `again` for backward.
std::vector<at::Tensor> checkpoint_tensors(
    const std::vector<at::Tensor>& inputs,
    const TensorFunction& first,
    TensorFunction again,
    const CheckpointMode& mode);

namespace detail {

/// Moves the defined tensors out of `value`, in order.
template <typename T>
std::vector<at::Tensor> take_tensors(T& value) {
  std::vector<at::Tensor> tensors;
  visit_tensors(value, [&](at::Tensor& tensor) {
    if (tensor.defined()) {
      tensors.push_back(std::move(tensor));
    }
  });
  return tensors;
}

/// Which of the tensors of `value` are defined.
template <typename T>
std::vector<bool> defined_tensors(T& value) {
  std::vector<bool> defined;
  visit_tensors(value, [&](at::Tensor& t) { defined.push_back(t.defined()); });
  return defined;
}

/// Undoes take_tensors().
template <typename T>
void put_tensors(
    T& value,
    const std::vector<at::Tensor>& tensors,
    const std::vector<bool>& defined) {
  size_t position = 0;
  size_t next = 0;
  visit_tensors(value, [&](at::Tensor& tensor) {
    if (defined[position++]) {
      tensor = tensors[next++];
    }
  });
}

} // namespace detail

/// function(arguments...), computed again in backward. The arguments are
/// copied; see visit_tensors() for what they may be.
/// @param function copyable; called once now and once per backward, with
///   lvalues. It owns what it uses.
template <typename Function, typename... Arguments>
auto checkpoint(
    const CheckpointMode& mode,
    Function function,
    const Arguments&... arguments) {
  using Packed = std::tuple<Arguments...>;
  using Result = std::remove_cvref_t<decltype(std::apply(
      function, std::declval<Packed&>()))>;
  Packed packed(arguments...);
  const std::vector<bool> defined = detail::defined_tensors(packed);
  const std::vector<at::Tensor> inputs = detail::take_tensors(packed);

  const auto call = [function, packed = std::move(packed), defined](
                        const std::vector<at::Tensor>& tensors) -> Result {
    Packed filled = packed;
    detail::put_tensors(filled, tensors, defined);
    return std::apply(function, filled);
  };
  std::optional<Result> result;
  std::vector<bool> result_defined;
  const auto first = [&](const std::vector<at::Tensor>& tensors) {
    result = call(tensors);
    result_defined = detail::defined_tensors(*result);
    return detail::take_tensors(*result);
  };
  const auto again = [call](const std::vector<at::Tensor>& tensors) {
    Result recomputed = call(tensors);
    return detail::take_tensors(recomputed);
  };
  const auto outputs = checkpoint_tensors(inputs, first, again, mode);
  detail::put_tensors(*result, outputs, result_defined);
  return *std::move(result);
}

} // namespace tessera
