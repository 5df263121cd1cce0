// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/argument_casts.h"

#include "tessera/runtime/kernels/mixed_norm.h"
#include "tessera/sharding/interception/page_key.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace tessera::sharding {

namespace {

/// Their other argument determines the type, or may have any type.
bool is_about_types(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {
      "aten::to", "aten::type_as", "aten::copy_", "aten::_to_copy"};
  for (const auto known : kNames) {
    if (name == known) {
      return true;
    }
  }
  return false;
}

/// Operators of ours that compute in float32, whatever their arguments are.
bool takes_all_types(std::string_view name) {
  return name == "tessera::residual_norm";
}

bool is_norm(std::string_view name) {
  return name.find("_norm") != std::string_view::npos;
}

/// Whether LibTorch's operator takes an activation of a lower precision than
/// its float32 parameters: BatchNorm on all devices, GroupNorm on the CPU.
bool keeps_activation(
    std::string_view name,
    const at::Tensor& activation,
    at::ScalarType dtype) {
  if (dtype != at::kFloat ||
      !c10::isReducedFloatingType(activation.scalar_type())) {
    return false;
  }
  return name == "aten::batch_norm" || name == "aten::instance_norm" ||
         (name == "aten::group_norm" && activation.is_cpu());
}

/// A tensor, undefined for None.
at::Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

bool is_castable(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined() || tensor.dim() == 0 || has_page_key(tensor)) {
    return false;
  }
  const at::ScalarType local = tensor.scalar_type();
  return local != dtype && (local == at::kFloat || local == at::kHalf ||
                            local == at::kBFloat16 || local == at::kDouble);
}

} // namespace

bool call_mixed_norm(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack) {
  const std::string_view name = op.schema().name();
  const bool is_layer_norm = name == "aten::layer_norm";
  const bool is_group_norm = name == "aten::group_norm";
  if (dtype != at::kFloat ||
      (!is_layer_norm && !is_group_norm && name != "aten::rms_norm")) {
    return false;
  }
  // layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable),
  // group_norm(input, num_groups, weight, bias, eps, cudnn_enabled),
  // rms_norm(input, normalized_shape, weight, eps)
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(stack, count);
  const at::Tensor x = arguments[0].toTensor();
  const at::Tensor weight = tensor_of(arguments[2]);
  const at::Tensor bias =
      is_layer_norm || is_group_norm ? tensor_of(arguments[3]) : at::Tensor();
  const auto is_float32 = [](const at::Tensor& parameter) {
    return !parameter.defined() || parameter.scalar_type() == at::kFloat;
  };
  if (!c10::isReducedFloatingType(x.scalar_type()) || has_page_key(x) ||
      !is_float32(weight) || !is_float32(bias)) {
    return false;
  }
  at::Tensor result;
  if (is_group_norm) {
    const int64_t groups = arguments[1].toInt();
    // LibTorch has a kernel for the CPU, and errors for what is not one.
    if (x.is_cpu() || x.dim() < 2 || x.numel() == 0 || groups <= 0 ||
        x.size(1) % groups != 0) {
      return false;
    }
    result = runtime::mixed_group_norm(
        x, groups, weight, bias, arguments[4].toDouble());
  } else if (is_layer_norm) {
    result = runtime::mixed_layer_norm(
        x, arguments[1].toIntVector(), weight, bias, arguments[4].toDouble());
  } else {
    // LibTorch's default for float32.
    const double eps = arguments[3].isNone()
                           ? std::numeric_limits<float>::epsilon()
                           : arguments[3].toDouble();
    result =
        runtime::mixed_rms_norm(x, arguments[1].toIntVector(), weight, eps);
  }
  torch::jit::drop(stack, count);
  torch::jit::push(stack, std::move(result));
  return true;
}

std::optional<at::ScalarType> cast_arguments(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack) {
  const std::string_view name = op.schema().name();
  if (is_about_types(name) || takes_all_types(name)) {
    return std::nullopt;
  }
  std::optional<at::ScalarType> first;
  const auto cast = [&](const at::Tensor& tensor) {
    if (!first) {
      first = tensor.scalar_type();
    }
    return tensor.to(dtype);
  };
  const auto& schema = op.schema().arguments();
  const size_t begin = stack.size() - schema.size();
  for (size_t i = 0; i < schema.size(); ++i) {
    c10::IValue& value = stack[begin + i];
    const auto* alias = schema[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      continue;
    }
    if (value.isTensor()) {
      if (is_castable(value.toTensor(), dtype) &&
          !(i == 0 && keeps_activation(name, value.toTensor(), dtype))) {
        value = cast(value.toTensor());
      }
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> converted;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        converted.push_back(is_castable(tensor, dtype) ? cast(tensor) : tensor);
      }
      value = std::move(converted);
    }
  }
  return is_norm(name) ? first : std::nullopt;
}

void cast_activation(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack) {
  const size_t count = op.schema().returns().size();
  if (count == 0) {
    return;
  }
  c10::IValue& first = stack[stack.size() - count];
  if (first.isTensor() && is_castable(first.toTensor(), dtype)) {
    first = first.toTensor().to(dtype);
  }
}

} // namespace tessera::sharding
