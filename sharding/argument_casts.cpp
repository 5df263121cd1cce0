// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/argument_casts.h"

#include "tessera/sharding/page_key.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <string_view>

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

bool is_norm(std::string_view name) {
  return name.find("_norm") != std::string_view::npos;
}

bool is_castable(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined() || tensor.dim() == 0 || has_page_key(tensor)) {
    return false;
  }
  const at::ScalarType own = tensor.scalar_type();
  return own != dtype && (own == at::kFloat || own == at::kHalf ||
                          own == at::kBFloat16 || own == at::kDouble);
}

} // namespace

std::optional<at::ScalarType> cast_arguments(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack) {
  const std::string_view name = op.schema().name();
  if (is_about_types(name)) {
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
      if (is_castable(value.toTensor(), dtype)) {
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

void cast_results(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack) {
  const size_t count = op.schema().returns().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor() && is_castable(stack[i].toTensor(), dtype)) {
      stack[i] = stack[i].toTensor().to(dtype);
    }
  }
}

} // namespace tessera::sharding
