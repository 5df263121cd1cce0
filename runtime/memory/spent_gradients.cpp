// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/spent_gradients.h"

#include "tessera/runtime/core/replaced_kernels.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/function.h>

namespace tessera::runtime {

namespace {

/// Calls the operator's variant that writes to a given tensor: the gradient if
/// that is spent, else a new one.
template <typename Out, typename... Rest>
at::Tensor over_gradient(
    const at::Tensor& gradient,
    const at::Tensor& kept,
    at::ScalarType dtype,
    const Rest&... rest) {
  static const std::string node = operators_over_gradients().at(Out::name);
  // Autograd's engine alone holds what it passes to a node.
  constexpr int64_t kHolders = 1;
  at::Tensor result = is_spent(gradient, kept, dtype, node, kHolders)
                          ? gradient
                          : at::empty({0}, gradient.options().dtype(dtype));
  return Out::redispatch(
      kernels_of(gradient.device()), gradient, kept, rest..., result);
}

at::Tensor log_softmax_backward(
    const at::Tensor& gradient,
    const at::Tensor& output,
    int64_t dim,
    at::ScalarType dtype) {
  return over_gradient<at::_ops::_log_softmax_backward_data_out>(
      gradient, output, dtype, dim, dtype);
}

at::Tensor softmax_backward(
    const at::Tensor& gradient,
    const at::Tensor& output,
    int64_t dim,
    at::ScalarType dtype) {
  return over_gradient<at::_ops::_softmax_backward_data_out>(
      gradient, output, dtype, dim, dtype);
}

at::Tensor gelu_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    c10::string_view approximate) {
  return over_gradient<at::_ops::gelu_backward_grad_input>(
      gradient, input, input.scalar_type(), approximate);
}

at::Tensor threshold_backward(
    const at::Tensor& gradient,
    const at::Tensor& output,
    const at::Scalar& threshold) {
  return over_gradient<at::_ops::threshold_backward_grad_input>(
      gradient, output, output.scalar_type(), threshold);
}

at::Tensor tanh_backward(const at::Tensor& gradient, const at::Tensor& output) {
  return over_gradient<at::_ops::tanh_backward_grad_input>(
      gradient, output, output.scalar_type());
}

at::Tensor sigmoid_backward(
    const at::Tensor& gradient,
    const at::Tensor& output) {
  return over_gradient<at::_ops::sigmoid_backward_grad_input>(
      gradient, output, output.scalar_type());
}

ReplacedKernels& spent_gradient_kernels() {
  static auto* const kernels = new ReplacedKernels([](torch::Library& library) {
    library.impl("_log_softmax_backward_data", &log_softmax_backward);
    library.impl("_softmax_backward_data", &softmax_backward);
    library.impl("gelu_backward", &gelu_backward);
    library.impl("threshold_backward", &threshold_backward);
    library.impl("tanh_backward", &tanh_backward);
    library.impl("sigmoid_backward", &sigmoid_backward);
  });
  return *kernels;
}

bool reuse_is_wanted = true;

} // namespace

void reuse_spent_gradients(bool reuse, c10::DeviceType device) {
  reuse_is_wanted = reuse;
  spent_gradient_kernels().replace(reuse, device);
}

bool reuses_spent_gradients() {
  return reuse_is_wanted;
}

bool is_spent(
    const at::Tensor& gradient,
    const at::Tensor& kept,
    at::ScalarType dtype,
    const std::string& node,
    int64_t holders) {
  if (gradient.scalar_type() != dtype || !gradient.has_storage() ||
      gradient.use_count() != static_cast<size_t>(holders) ||
      gradient.storage().use_count() != 1 ||
      // Not ours if LibTorch did not allocate it.
      gradient.storage().allocator() == nullptr ||
      // Other strides might be those of the next operator's fast path.
      !gradient.is_contiguous() || !kept.is_contiguous() ||
      gradient.sizes() != kept.sizes() || at::GradMode::is_enabled()) {
    return false;
  }
  // Another caller may use the gradient again.
  const auto caller = torch::autograd::get_current_node();
  return caller != nullptr && caller->name() == node;
}

const std::map<std::string, std::string>& operators_over_gradients() {
  static const std::map<std::string, std::string> kNodes = {
      {"aten::_log_softmax_backward_data", "LogSoftmaxBackward0"},
      {"aten::_softmax_backward_data", "SoftmaxBackward0"},
      {"aten::gelu_backward", "GeluBackward0"},
      {"aten::threshold_backward", "ReluBackward0"},
      {"aten::tanh_backward", "TanhBackward0"},
      {"aten::sigmoid_backward", "SigmoidBackward0"}};
  return kNodes;
}

} // namespace tessera::runtime
