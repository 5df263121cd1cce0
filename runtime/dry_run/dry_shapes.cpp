// SPDX-License-Identifier: Apache-2.0
// The operators that have no Meta kernel in LibTorch's C++, or whose kernels
// for the CPU need temporary memory.
#include "tessera/runtime/dry_run/dry_call.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

namespace tessera::runtime {

namespace {

using Results = std::vector<c10::IValue>;

c10::IValue optional_result(bool is_wanted, const at::Tensor& like) {
  return is_wanted ? c10::IValue(at::empty_like(like))
                   : c10::IValue(at::Tensor());
}

int64_t product(at::IntArrayRef sizes) {
  return c10::multiply_integers(sizes);
}

/// native_layer_norm(input, normalized_shape, weight, bias, eps)
Results layer_norm(const DryCall& call) {
  const at::Tensor input = call.tensor(0);
  const auto shape = call.ints(1);
  const at::Tensor x = input.contiguous();
  std::vector<int64_t> rows = input.sizes().vec();
  std::fill(
      rows.end() - static_cast<std::ptrdiff_t>(shape.size()), rows.end(), 1);
  const at::Tensor weight = call.tensor(2);
  const auto statistics = x.options().dtype(
      weight.defined() ? weight.scalar_type() : x.scalar_type());
  const at::Tensor y = at::empty(x.sizes(), x.options());
  return {y, at::empty(rows, statistics), at::empty(rows, statistics)};
}

/// native_layer_norm_backward(grad, input, normalized_shape, mean, rstd,
/// weight, bias, output_mask)
Results layer_norm_backward(const DryCall& call) {
  const at::Tensor gradient = call.tensor(0).contiguous();
  const at::Tensor x = call.tensor(1).contiguous();
  const at::Tensor weight = call.tensor(5);
  const at::Tensor bias = call.tensor(6);
  const auto wanted = call.argument(7).toBoolList();
  Results results{
      wanted[0] ? c10::IValue(at::empty(x.sizes(), x.options()))
                : c10::IValue(at::Tensor()),
      optional_result(wanted[1] && weight.defined(), weight),
      optional_result(wanted[2] && bias.defined(), bias)};
  const at::Tensor sums = at::empty(
      {2 * at::get_num_threads(), product(call.ints(2))},
      x.options().dtype(
          weight.defined() ? weight.scalar_type() : x.scalar_type()));
  return results;
}

at::Tensor heads_first(
    const at::Tensor& q,
    int64_t length,
    int64_t features,
    at::ScalarType dtype) {
  return at::empty(
             {q.size(0), length, q.size(1), features}, q.options().dtype(dtype))
      .transpose(1, 2);
}

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Rows of queries and columns of keys that a thread works on.
std::pair<int64_t, int64_t> attention_tile(int64_t rows, int64_t columns) {
  const int64_t tile = rows >= 768 ? 256 : (rows >= 192 ? 64 : 32);
  return {std::min(tile, rows), std::min<int64_t>(512, columns)};
}

/// _scaled_dot_product_flash_attention_for_cpu(query, key, value, ...)
Results attention(const DryCall& call) {
  const at::Tensor q = call.tensor(0);
  const at::Tensor k = call.tensor(1);
  const at::Tensor v = call.tensor(2);
  const at::ScalarType sums = sum_type(q);
  const at::Tensor out = heads_first(q, q.size(2), v.size(3), q.scalar_type());
  const at::Tensor logsumexp =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(sums))
          .transpose(1, 2);
  const auto [rows, columns] = attention_tile(q.size(2), k.size(2));
  const int64_t each = rows * (columns + 2 + v.size(3));
  const at::Tensor tiles = at::empty(
      {at::get_num_threads(), each + (sums == q.scalar_type() ? 0 : each)},
      q.options().dtype(sums));
  return {out, logsumexp};
}

/// _scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key,
/// value, ...)
Results attention_backward(const DryCall& call) {
  const at::Tensor q = call.tensor(1);
  const at::Tensor k = call.tensor(2);
  const at::Tensor v = call.tensor(3);
  const at::ScalarType dtype = q.scalar_type();
  const at::Tensor of_q = heads_first(q, q.size(2), q.size(3), dtype);
  const at::Tensor of_k = heads_first(k, k.size(2), k.size(3), dtype);
  const at::Tensor of_v = heads_first(v, v.size(2), v.size(3), dtype);
  const auto [rows, columns] = attention_tile(q.size(2), k.size(2));
  const at::Tensor tiles = at::empty(
      {at::get_num_threads(), 2 * rows * columns},
      q.options().dtype(sum_type(q)));
  return {of_q, of_k, of_v};
}

/// index_select(self, dim, index)
Results index_select(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  if (x.dim() == 0) {
    return {at::empty({}, x.options())};
  }
  const int64_t dim = at::maybe_wrap_dim(call.integer(1), x.dim());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = call.tensor(2).numel();
  return {at::empty(sizes, x.options())};
}

/// embedding_dense_backward(grad, indices, num_weights, padding_idx, scaled)
Results embedding_backward(const DryCall& call) {
  const at::Tensor gradient = call.tensor(0).contiguous();
  const at::Tensor indices = call.tensor(1).contiguous();
  return {at::empty({call.integer(2), gradient.size(-1)}, gradient.options())};
}

/// A result like the first argument.
Results like_first(const DryCall& call) {
  return {at::empty_like(call.tensor(0))};
}

std::unordered_map<std::string, DryShape> make_shapes() {
  return {
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       attention_backward},
      {"aten::index_select", index_select},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::bernoulli", like_first},
  };
}

} // namespace

const std::unordered_map<std::string, DryShape>& dry_shapes() {
  static const auto* const shapes =
      new std::unordered_map<std::string, DryShape>(make_shapes());
  return *shapes;
}

} // namespace tessera::runtime
