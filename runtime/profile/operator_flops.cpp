// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/operator_flops.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tessera::runtime {

namespace operator_flop {

namespace {

using Arguments = std::span<const c10::IValue>;
using Flops = OperatorFlops (*)(Arguments arguments);

/// Undefined if the argument is None.
at::Tensor tensor(Arguments arguments, size_t i) {
  return arguments[i].isTensor() ? arguments[i].toTensor() : at::Tensor();
}

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

/// Matrices [m, k] and [k, n] as arguments `first` and the next, maybe with a
/// batch dimension.
template <size_t first>
OperatorFlops product(Arguments a) {
  return {
      2 * elements(tensor(a, first)) *
      static_cast<double>(tensor(a, first + 1).size(-1))};
}

OperatorFlops inner_product(Arguments a) {
  return {2 * elements(tensor(a, 0))};
}

/// queries [.., rows, features], keys [.., columns, features] and values as
/// arguments `first` and the next.
/// @param products of the scores' matrix with keys or queries, and with values.
/// @param causal the number of the argument that says so.
OperatorFlops attention(
    Arguments a,
    size_t first,
    double products_of_keys,
    double products_of_values,
    double repeated_products,
    size_t causal) {
  const at::Tensor q = tensor(a, first);
  const double pairs = elements(q) / static_cast<double>(q.size(-1)) *
                       static_cast<double>(tensor(a, first + 1).size(-2));
  const auto of_keys = 2 * pairs * static_cast<double>(q.size(-1));
  const auto of_values =
      2 * pairs * static_cast<double>(tensor(a, first + 2).size(-1));
  const double all =
      products_of_keys * of_keys + products_of_values * of_values;
  // As many columns as rows: those above the diagonal.
  const bool is_causal =
      causal < a.size() && a[causal].isBool() && a[causal].toBool();
  return {all, repeated_products * of_keys, is_causal ? all / 2 : 0};
}

/// @tparam causal see attention().
template <size_t causal>
OperatorFlops attention_forward(Arguments a) {
  return attention(a, 0, 1, 1, 0, causal);
}

/// The scores again, and for queries, keys, values and weights.
template <size_t causal>
OperatorFlops attention_backward(Arguments a) {
  return attention(a, 1, 3, 2, 1, causal);
}

/// With what the pattern of an attention hides.
/// @param share the number of the argument with an upper bound of their share.
template <size_t share>
OperatorFlops of_pattern(OperatorFlops flops, Arguments a) {
  flops.masked = flops.all * (1 - a[share].toDouble());
  return flops;
}

OperatorFlops pattern_attention(Arguments a) {
  return of_pattern<8>(attention(a, 0, 1, 1, 0, a.size()), a);
}

OperatorFlops pattern_attention_backward(Arguments a) {
  return of_pattern<11>(attention(a, 1, 3, 2, 1, a.size()), a);
}

/// Each element of the output costs a filter, of what its group of channels
/// has.
double convolution_flops(double outputs, const at::Tensor& weight) {
  return 2 * outputs * elements(weight) / static_cast<double>(weight.size(0));
}

int64_t value_at(const std::vector<int64_t>& values, int64_t i) {
  return values.size() == 1 ? values[0] : values.at(static_cast<size_t>(i));
}

/// input, weight, and lists of integers as the arguments with these numbers.
OperatorFlops convolution(
    Arguments a,
    size_t padding,
    size_t stride,
    std::optional<size_t> dilation) {
  const at::Tensor input = tensor(a, 0);
  const at::Tensor weight = tensor(a, 1);
  const auto pad = a[padding].toIntVector();
  const auto step = a[stride].toIntVector();
  const auto gap =
      dilation ? a[*dilation].toIntVector() : std::vector<int64_t>{1};
  double outputs = static_cast<double>(input.size(0) * weight.size(0));
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    const int64_t i = dim - 2;
    const int64_t reach = value_at(gap, i) * (weight.size(dim) - 1) + 1;
    outputs *= static_cast<double>(
        (input.size(dim) + 2 * value_at(pad, i) - reach) / value_at(step, i) +
        1);
  }
  return {convolution_flops(outputs, weight)};
}

OperatorFlops any_convolution(Arguments a) {
  if (a[6].toBool()) { // transposed: each input costs a filter
    return {convolution_flops(elements(tensor(a, 0)), tensor(a, 1))};
  }
  return convolution(a, 4, 3, 5);
}

OperatorFlops mkldnn_convolution(Arguments a) {
  return convolution(a, 3, 4, 5);
}

OperatorFlops slow_convolution(Arguments a) {
  return convolution(a, 5, 4, std::nullopt);
}

OperatorFlops convolution_backward(Arguments a) {
  const auto wanted = a[10].toBoolList();
  // As in forward: for a transposed one, each input costs a filter.
  const at::Tensor counted = tensor(a, a[7].toBool() ? 1 : 0);
  return {
      convolution_flops(elements(counted), tensor(a, 2)) *
      ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0))};
}

const std::unordered_map<std::string_view, Flops>& flops_by_name() {
  static const std::unordered_map<std::string_view, Flops> table = {
      {"aten::mm", product<0>},
      {"aten::bmm", product<0>},
      {"aten::addmm", product<1>},
      {"aten::addmm_", product<1>},
      {"aten::baddbmm", product<1>},
      {"aten::baddbmm_", product<1>},
      {"aten::dot", inner_product},
      {"aten::mv", inner_product},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       attention_forward<4>},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       attention_backward<7>},
      {"aten::_scaled_dot_product_flash_attention", attention_forward<4>},
      {"aten::_scaled_dot_product_flash_attention_backward",
       attention_backward<11>},
      {"aten::_scaled_dot_product_efficient_attention", attention_forward<6>},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       attention_backward<11>},
      {"aten::_scaled_dot_product_cudnn_attention", attention_forward<6>},
      {"aten::_scaled_dot_product_cudnn_attention_backward",
       attention_backward<14>},
      {"tessera::pattern_attention", pattern_attention},
      {"tessera::pattern_attention_backward", pattern_attention_backward},
      {"aten::convolution", any_convolution},
      {"aten::mkldnn_convolution", mkldnn_convolution},
      {"aten::_slow_conv2d_forward", slow_convolution},
      {"aten::slow_conv3d_forward", slow_convolution},
      {"aten::convolution_backward", convolution_backward},
  };
  return table;
}

} // namespace

} // namespace operator_flop

OperatorFlops operator_flops(
    std::string_view name,
    std::span<const c10::IValue> arguments) {
  const auto& table = operator_flop::flops_by_name();
  const auto found = table.find(name);
  return found == table.end() ? OperatorFlops{} : found->second(arguments);
}

} // namespace tessera::runtime
