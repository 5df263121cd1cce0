// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/operator_bytes.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace tessera::runtime {

namespace operator_byte {

namespace {

using Arguments = std::span<const double>;
using Bytes = double (*)(Arguments arguments, const CallBytes& call);

double every_argument(const CallBytes& call) {
  return call.read + call.written + call.made;
}

/// What is looked up is as large as the result.
template <size_t index>
double lookup(Arguments a, const CallBytes& call) {
  return a[index] + 2 * call.made;
}

/// embedding_dense_backward(grad, indices, ...): zeros, and sums of rows.
double lookup_backward(Arguments a, const CallBytes& call) {
  return a[0] + a[1] + call.made + std::min(a[0], call.made);
}

/// Adds `source` to the places of its first argument that `index` names.
template <size_t index, size_t source>
double add_to_places(Arguments a, const CallBytes& /*call*/) {
  return a[index] + 3 * a[source];
}

/// As above, writes it.
template <size_t index, size_t source>
double write_to_places(Arguments a, const CallBytes& /*call*/) {
  return a[index] + 2 * a[source];
}

// Memory is read in sectors.
constexpr double kSectorBytes = 32;

/// nll_loss_forward(self, target, ...): a number of each row.
double loss_by_index(Arguments a, const CallBytes& call) {
  return a[1] + a[1] / sizeof(int64_t) * kSectorBytes + call.made;
}

/// nll_loss_backward(grad, self, target, ...): zeros with a number in each row.
double loss_by_index_backward(Arguments a, const CallBytes& call) {
  return a[2] + a[2] / sizeof(int64_t) * kSectorBytes + call.made;
}

/// grad_out, query, key, value, ...; 16 bits.
template <size_t out>
double attention_backward(Arguments a, const CallBytes& call) {
  constexpr double kWidening = 2; // to float32
  constexpr double kPasses = 4; // zeros, read and written by sums, read
  return every_argument(call) + a[0] + a[out] + kPasses * kWidening * a[1];
}

/// The gradient and the input are the first two arguments.
double norm_backward(Arguments a, const CallBytes& call) {
  return every_argument(call) + a[0] + a[1];
}

const std::unordered_map<std::string_view, Bytes>& bytes_by_name() {
  static const std::unordered_map<std::string_view, Bytes> table = {
      {"aten::embedding", lookup<1>},
      {"aten::index_select", lookup<2>},
      {"aten::gather", lookup<2>},
      {"aten::index", lookup<1>},
      {"aten::embedding_dense_backward", lookup_backward},
      {"aten::index_add_", add_to_places<2, 3>},
      {"aten::scatter_add_", add_to_places<2, 3>},
      {"aten::index_put_", add_to_places<1, 2>},
      {"aten::_index_put_impl_", add_to_places<1, 2>},
      {"aten::index_copy_", write_to_places<2, 3>},
      {"aten::nll_loss_forward", loss_by_index},
      {"aten::nll_loss_backward", loss_by_index_backward},
      {"aten::_scaled_dot_product_flash_attention_backward",
       attention_backward<4>},
      {"aten::_scaled_dot_product_cudnn_attention_backward",
       attention_backward<4>},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       attention_backward<5>},
      {"aten::native_layer_norm_backward", norm_backward},
      {"tessera::mixed_norm_backward", norm_backward},
  };
  return table;
}

} // namespace

} // namespace operator_byte

double bytes_in_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) {
    return 0;
  }
  auto bytes = static_cast<double>(tensor.itemsize());
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const bool is_expanded = tensor.stride(dim) == 0 && tensor.size(dim) > 1;
    bytes *= static_cast<double>(is_expanded ? 1 : tensor.size(dim));
  }
  return bytes;
}

double operator_bytes(
    std::string_view name,
    std::span<const double> arguments,
    const CallBytes& call) {
  const auto& table = operator_byte::bytes_by_name();
  const auto found = table.find(name);
  return found == table.end() ? operator_byte::every_argument(call)
                              : found->second(arguments, call);
}

} // namespace tessera::runtime
