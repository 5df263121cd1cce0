// SPDX-License-Identifier: Apache-2.0
#pragma once
// `checkpoint()` recomputes a call in backward. CheckpointBlock and
// TransformerBlockList are built on it.

#include "tessera/sharding/checkpointing/tensor_visitor.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

class Communicator;

/// [Note: recomputation] The forward runs without gradients, so that only its
/// arguments are kept. In backward it runs again, with gradients, from the same
/// arguments, generator states and autocast settings, and a nested backward
/// runs through the recomputed graph. The gradients of parameters are
/// accumulated there, where their hooks see them; only the gradients of the
/// arguments return to the surrounding graph. That graph holds the arguments
/// and the function, but no weights: they are paged in when the forward runs
/// again.
///
/// Consequently torch::autograd::grad() and double backward are not supported;
/// both throw an error. A forward must compute the same result twice; buffers
/// that it updates (running statistics) are updated once, if they are listed.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// How a call is checkpointed.
struct CheckpointMode {
  /// Whether the call uses parameters that require a gradient. If so, its
  /// outputs require a gradient even if no argument does.
  bool trains = false;
  /// Whether the arguments rest on the host until backward; see
  /// CheckpointOptions::inputs_on_host.
  bool inputs_on_host = false;
  /// A group whose ranks have the same arguments; must outlive the graph. Each
  /// rank keeps its slice of those that require a gradient, and backward
  /// all-gathers them, bit for bit; backward is then collective over the group.
  /// Arguments that its ranks have divided already (DTensors) stay as they are.
  Communicator* divide_over = nullptr;
  /// Of the parameters that the call uses: their generators are restored for
  /// the recomputation, as are those of the arguments' devices.
  std::vector<c10::Device> devices;
  /// What the call updates, such as running statistics: the recomputation
  /// leaves them as it found them.
  std::vector<at::Tensor> buffers;
};

/// Runs `first` on `inputs`, which must all be defined, and keeps `again` for
/// backward.
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

/// Returns, for each tensor of `value`, whether it is defined.
template <typename T>
std::vector<bool> defined_tensors(T& value) {
  std::vector<bool> defined;
  visit_tensors(value, [&](at::Tensor& t) { defined.push_back(t.defined()); });
  return defined;
}

/// Inverse of take_tensors().
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

/// Returns function(arguments...), and recomputes it in backward. The arguments
/// are copied; see visit_tensors() for their types.
/// @param function copyable; called with lvalues, once now and once per
///   backward. It must own what it uses.
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
