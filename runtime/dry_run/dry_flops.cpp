// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/dry_run/dry_call.h"

#include <string>
#include <unordered_map>

namespace tessera::runtime {

namespace dry_flop {

namespace {

using Flops = double (*)(const DryCall& call);

double elements(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

/// Matrices [m, k] and [k, n] as arguments `first` and the next, maybe with a
/// batch dimension.
double product_flops(const DryCall& call, size_t first) {
  return 2 * elements(call.tensor(first)) *
         static_cast<double>(call.tensor(first + 1).size(-1));
}

/// queries [.., rows, features], keys [.., columns, features], values.
double attention_flops(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double products_of_keys,
    double products_of_values) {
  const double pairs = elements(q) / static_cast<double>(q.size(-1)) *
                       static_cast<double>(k.size(-2));
  return 2 * pairs *
         (products_of_keys * static_cast<double>(q.size(-1)) +
          products_of_values * static_cast<double>(v.size(-1)));
}

/// Each element of the output costs a filter.
double convolution_flops(double outputs, const at::Tensor& weight) {
  return 2 * outputs * elements(weight) / static_cast<double>(weight.size(0));
}

const std::unordered_map<std::string, Flops>& flops_by_name() {
  static const std::unordered_map<std::string, Flops> table = {
      {"aten::mm", [](const DryCall& c) { return product_flops(c, 0); }},
      {"aten::bmm", [](const DryCall& c) { return product_flops(c, 0); }},
      {"aten::addmm", [](const DryCall& c) { return product_flops(c, 1); }},
      {"aten::addmm_", [](const DryCall& c) { return product_flops(c, 1); }},
      {"aten::baddbmm", [](const DryCall& c) { return product_flops(c, 1); }},
      {"aten::baddbmm_", [](const DryCall& c) { return product_flops(c, 1); }},
      {"aten::dot", [](const DryCall& c) { return 2 * elements(c.tensor(0)); }},
      {"aten::mv", [](const DryCall& c) { return 2 * elements(c.tensor(0)); }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu",
       [](const DryCall& c) {
         return attention_flops(c.tensor(0), c.tensor(1), c.tensor(2), 1, 1);
       }},
      // The scores again, and for queries, keys, values and weights.
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       [](const DryCall& c) {
         return attention_flops(c.tensor(1), c.tensor(2), c.tensor(3), 3, 2);
       }},
      {"aten::_scaled_dot_product_flash_attention",
       [](const DryCall& c) {
         return attention_flops(c.tensor(0), c.tensor(1), c.tensor(2), 1, 1);
       }},
      {"aten::_scaled_dot_product_flash_attention_backward",
       [](const DryCall& c) {
         return attention_flops(c.tensor(1), c.tensor(2), c.tensor(3), 3, 2);
       }},
      {"aten::_scaled_dot_product_efficient_attention",
       [](const DryCall& c) {
         return attention_flops(c.tensor(0), c.tensor(1), c.tensor(2), 1, 1);
       }},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       [](const DryCall& c) {
         return attention_flops(c.tensor(1), c.tensor(2), c.tensor(3), 3, 2);
       }},
      {"aten::mkldnn_convolution",
       [](const DryCall& c) {
         // Kernels that do not overlap, or nearly: an output per stride.
         double outputs =
             static_cast<double>(c.tensor(0).size(0) * c.tensor(1).size(0));
         const auto stride = c.ints(4);
         for (int64_t dim = 2; dim < c.tensor(0).dim(); ++dim) {
           const auto i = static_cast<size_t>(dim - 2);
           outputs *=
               static_cast<double>(c.tensor(0).size(dim)) /
               static_cast<double>(stride.size() == 1 ? stride[0] : stride[i]);
         }
         return convolution_flops(outputs, c.tensor(1));
       }},
      {"aten::convolution_backward",
       [](const DryCall& c) {
         const auto wanted = c.argument(10).toBoolList();
         return convolution_flops(elements(c.tensor(0)), c.tensor(2)) *
                ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
       }},
  };
  return table;
}

} // namespace

} // namespace dry_flop

double dry_flops(const DryCall& call) {
  const auto& table = dry_flop::flops_by_name();
  const auto found = table.find(call.name());
  return found == table.end() ? 0 : found->second(call);
}

} // namespace tessera::runtime
