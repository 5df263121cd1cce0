// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/collectives/linear_function.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace tessera::sharding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A linear map and its transpose.
struct LinearPair : torch::CustomClassHolder {
  LinearPair(TensorMap map, TensorMap transpose)
      : map(std::move(map)), transpose(std::move(transpose)) {}
  TensorMap map;
  TensorMap transpose;
};

constexpr const char* kPair = "pair";

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const c10::intrusive_ptr<LinearPair>& pair) {
    context->saved_data[kPair] = c10::IValue::make_capsule(pair);
    return pair->map(input);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto pair = c10::static_intrusive_pointer_cast<LinearPair>(
        context->saved_data[kPair].toCapsule());
    return {
        apply_linear(gradients[0], pair->transpose, pair->map), at::Tensor()};
  }
};

} // namespace

at::Tensor apply_linear(
    const at::Tensor& input,
    TensorMap map,
    TensorMap transpose) {
  return LinearFunction::apply(
      input,
      c10::make_intrusive<LinearPair>(std::move(map), std::move(transpose)));
}

} // namespace tessera::sharding
