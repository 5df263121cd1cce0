// SPDX-License-Identifier: Apache-2.0
// The operators that have no Meta kernel in LibTorch's C++, or whose kernels
// for the CPU need temporary memory.
#include "tessera/runtime/dry_run/dry_call.h"

#include "tessera/runtime/memory/spent_gradients.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>

namespace tessera::runtime {

namespace dry_shape {

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
  const at::Tensor out = at::empty_like(q);
  const at::Tensor logsumexp =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(sums))
          .transpose(1, 2);
  const auto [rows, columns] = attention_tile(q.size(2), k.size(2));
  const int64_t threads = at::get_num_threads();
  const at::Tensor tiles = at::empty(
      {threads, rows * (columns + 2 + v.size(3))}, q.options().dtype(sums));
  // Weights, rounded for their product with the values.
  const at::Tensor rounded = at::empty(
      {sums == q.scalar_type() ? 0 : threads, rows * columns}, q.options());
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

/// A result like the second argument, as most backwards have.
Results like_second(const DryCall& call) {
  return {at::empty_like(call.tensor(1))};
}

Results flags_like_first(const DryCall& call) {
  return {at::empty_like(call.tensor(0), at::kBool)};
}

Results indices_like_first(const DryCall& call) {
  return {at::empty_like(call.tensor(0), at::kLong)};
}

/// Two results like the first argument.
Results two_like_first(const DryCall& call) {
  return {at::empty_like(call.tensor(0)), at::empty_like(call.tensor(0))};
}

/// native_dropout(input, p, train)
Results dropout(const DryCall& call) {
  return {
      at::empty_like(call.tensor(0)),
      at::empty_like(call.tensor(0), at::kBool)};
}

Results scalar_of_first(const DryCall& call) {
  return {at::empty({}, call.tensor(0).options())};
}

/// where.self(condition, self, other)
Results where(const DryCall& call) {
  const at::Tensor a = call.tensor(1);
  const at::Tensor b = call.tensor(2);
  const auto sizes = at::infer_size(
      call.tensor(0).sizes(), at::infer_size(a.sizes(), b.sizes()));
  const at::ScalarType dtype = at::result_type(a, b);
  const auto cast = [&](const at::Tensor& x) {
    return x.scalar_type() == dtype
               ? at::Tensor()
               : at::empty(x.sizes(), x.options().dtype(dtype));
  };
  const at::Tensor cast_a = cast(a);
  const at::Tensor cast_b = cast(b);
  return {at::empty(sizes, a.options().dtype(dtype))};
}

/// pixel_shuffle(self, factor): [.., C f f, H, W] to [.., C, H f, W f]
Results pixel_shuffle(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t factor = call.integer(1);
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t dims = sizes.size();
  sizes[dims - 3] /= factor * factor;
  sizes[dims - 2] *= factor;
  sizes[dims - 1] *= factor;
  return {at::empty(sizes, x.options())};
}

/// The inverse of pixel_shuffle.
Results pixel_unshuffle(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t factor = call.integer(1);
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t dims = sizes.size();
  sizes[dims - 3] *= factor * factor;
  sizes[dims - 2] /= factor;
  sizes[dims - 1] /= factor;
  return {at::empty(sizes, x.options())};
}

/// An operator on two tensors.
Results elementwise(const DryCall& call) {
  const at::Tensor a = call.tensor(0);
  const at::Tensor b = call.tensor(1);
  return {at::empty(
      at::infer_size(a.sizes(), b.sizes()),
      a.options().dtype(at::result_type(a, b)))};
}

/// mse_loss_backward(grad, self, target, reduction)
Results loss_backward(const DryCall& call) {
  return {at::empty(
      at::infer_size(call.tensor(1).sizes(), call.tensor(2).sizes()),
      call.tensor(1).options())};
}

/// self, dims or none, correction, keepdim
std::vector<int64_t> reduced_sizes(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  std::vector<int64_t> sizes = x.sizes().vec();
  std::vector<bool> goes(sizes.size(), true);
  if (!call.argument(1).isNone() && !call.ints(1).empty()) {
    std::fill(goes.begin(), goes.end(), false);
    for (const int64_t dim : call.ints(1)) {
      goes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = true;
    }
  }
  std::vector<int64_t> kept;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!goes[i]) {
      kept.push_back(sizes[i]);
    } else if (call.flag(3)) {
      kept.push_back(1);
    }
  }
  return kept;
}

Results variance(const DryCall& call) {
  return {at::empty(reduced_sizes(call), call.tensor(0).options())};
}

Results variance_and_mean(const DryCall& call) {
  const auto sizes = reduced_sizes(call);
  const auto options = call.tensor(0).options();
  return {at::empty(sizes, options), at::empty(sizes, options)};
}

/// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
Results group_norm(const DryCall& call) {
  const at::Tensor x = call.tensor(0).contiguous();
  const at::Tensor weight = call.tensor(1);
  const auto statistics = x.options().dtype(
      weight.defined() ? weight.scalar_type() : x.scalar_type());
  const std::vector<int64_t> groups{call.integer(3), call.integer(6)};
  return {
      at::empty_like(x),
      at::empty(groups, statistics),
      at::empty(groups, statistics)};
}

/// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW,
/// group, output_mask)
Results group_norm_backward(const DryCall& call) {
  const at::Tensor x = call.tensor(1);
  const at::Tensor weight = call.tensor(4);
  const auto wanted = call.argument(9).toBoolList();
  const at::Tensor sums = at::empty(
      {2, call.integer(5), call.integer(6)}, call.tensor(2).options());
  return {
      wanted[0] ? c10::IValue(at::empty_like(x)) : c10::IValue(at::Tensor()),
      optional_result(wanted[1] && weight.defined(), weight),
      optional_result(wanted[2] && weight.defined(), weight)};
}

/// native_batch_norm(input, weight, bias, mean, variance, training, ...)
Results batch_norm(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  const at::Tensor weight = call.tensor(1);
  const std::vector<int64_t> channels{
      call.flag(5) && x.dim() > 1 ? x.size(1) : 0};
  const auto options = x.options().dtype(
      weight.defined() ? weight.scalar_type() : x.scalar_type());
  return {
      at::empty_like(x),
      at::empty(channels, options),
      at::empty(channels, options)};
}

/// native_batch_norm_backward(grad_out, input, weight, running_mean,
/// running_var, save_mean, save_invstd, train, eps, output_mask)
Results batch_norm_backward(const DryCall& call) {
  const at::Tensor x = call.tensor(1);
  const at::Tensor weight = call.tensor(2);
  const auto wanted = call.argument(9).toBoolList();
  return {
      wanted[0] ? c10::IValue(at::empty_like(x)) : c10::IValue(at::Tensor()),
      optional_result(wanted[1] && weight.defined(), weight),
      optional_result(wanted[2] && weight.defined(), weight)};
}

at::MemoryFormat format_of(const at::Tensor& x, const at::Tensor& weight) {
  return x.dim() == 4 &&
                 (x.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                  weight.suggest_memory_format() ==
                      at::MemoryFormat::ChannelsLast)
             ? at::MemoryFormat::ChannelsLast
             : at::MemoryFormat::Contiguous;
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed,
/// output_padding, groups)
Results convolution(const DryCall& call) {
  const at::Tensor x = call.tensor(0);
  const at::Tensor weight = call.tensor(1);
  const bool is_transposed = call.flag(6);
  std::vector<int64_t> sizes{
      x.size(0),
      is_transposed ? weight.size(1) * call.integer(8) : weight.size(0)};
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto i = static_cast<size_t>(dim - 2);
    const auto of = [&](size_t argument) {
      const std::vector<int64_t> list = call.ints(argument);
      return list.size() == 1 ? list[0] : list[i];
    };
    const int64_t reach = of(5) * (weight.size(dim) - 1) + 1;
    sizes.push_back(
        is_transposed ? (x.size(dim) - 1) * of(3) - 2 * of(4) + reach + of(7)
                      : (x.size(dim) + 2 * of(4) - reach) / of(3) + 1);
  }
  return {at::empty(sizes, x.options().memory_format(format_of(x, weight)))};
}

/// convolution_backward(grad_output, input, weight, bias_sizes, stride,
/// padding, dilation, transposed, output_padding, groups, output_mask)
Results convolution_backward(const DryCall& call) {
  const at::Tensor gradient = call.tensor(0).contiguous();
  const at::Tensor x = call.tensor(1);
  const at::Tensor weight = call.tensor(2);
  const auto wanted = call.argument(10).toBoolList();
  Results results{
      wanted[0] ? c10::IValue(at::empty_like(x)) : c10::IValue(at::Tensor()),
      wanted[1] ? c10::IValue(at::empty_like(weight))
                : c10::IValue(at::Tensor()),
      wanted[2] ? c10::IValue(at::empty(
                      {call.flag(7) ? weight.size(1) * call.integer(9)
                                    : weight.size(0)},
                      weight.options()))
                : c10::IValue(at::Tensor())};
  return results;
}

/// mkldnn_rnn_layer_backward(input, weights (4), hx, cx, ...)
Results rnn_layer_backward(const DryCall& call) {
  Results results;
  for (size_t i = 0; i < 7; ++i) {
    const at::Tensor like = call.tensor(i);
    results.emplace_back(at::empty(like.sizes(), like.options()));
  }
  return results;
}

/// _scaled_dot_product_flash_attention(query, key, value, ...), on CUDA
Results flash_attention(const DryCall& call) {
  const at::Tensor q = call.tensor(0);
  const auto numbers = q.options().dtype(at::kLong);
  return {
      at::empty_like(q),
      at::empty(
          {q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat)),
      at::Tensor(),
      at::Tensor(),
      q.size(2),
      call.tensor(1).size(2),
      at::empty({2}, numbers),
      at::empty({0}, numbers),
      at::empty({0}, q.options())};
}

/// _scaled_dot_product_flash_attention_backward(grad_out, query, key, value,
/// ...): sums of the queries' gradients are in float32.
Results flash_attention_backward(const DryCall& call) {
  const at::Tensor q = call.tensor(1);
  const at::Tensor k = call.tensor(2);
  const at::Tensor v = call.tensor(3);
  const at::ScalarType dtype = q.scalar_type();
  const auto upwards = [](int64_t count, int64_t unit) {
    return (count + unit - 1) / unit * unit;
  };
  const at::Tensor of_q = heads_first(q, q.size(2), q.size(3), dtype);
  const at::Tensor of_k = heads_first(k, k.size(2), k.size(3), dtype);
  const at::Tensor of_v = heads_first(v, v.size(2), v.size(3), dtype);
  const at::Tensor sums = at::empty(
      {q.size(0),
       q.size(1),
       upwards(q.size(2), 128),
       upwards(q.size(3), 32) + 1},
      q.options().dtype(at::kFloat));
  return {of_q, of_k, of_v};
}

/// _scaled_dot_product_efficient_attention(query, key, value, attn_bias,
/// compute_log_sumexp, ...), on CUDA
Results efficient_attention(const DryCall& call) {
  const at::Tensor q = call.tensor(0);
  const int64_t rows = call.flag(4) ? (q.size(2) + 31) / 32 * 32 : 0;
  const auto numbers = q.options().dtype(at::kLong);
  return {
      heads_first(q, q.size(2), call.tensor(2).size(3), q.scalar_type()),
      at::empty({q.size(0), q.size(1), rows}, q.options().dtype(at::kFloat)),
      at::empty({}, numbers),
      at::empty({}, numbers)};
}

/// _scaled_dot_product_efficient_attention_backward(grad_out, query, key,
/// value, attn_bias, out, ..., grad_input_mask, ...)
Results efficient_attention_backward(const DryCall& call) {
  const at::Tensor q = call.tensor(1);
  const at::Tensor k = call.tensor(2);
  const at::Tensor v = call.tensor(3);
  const at::Tensor bias = call.tensor(4);
  const at::ScalarType dtype = q.scalar_type();
  const auto wanted = call.argument(10).toBoolList();
  const at::Tensor of_q = heads_first(q, q.size(2), q.size(3), dtype);
  const at::Tensor of_k = heads_first(k, k.size(2), k.size(3), dtype);
  const at::Tensor of_v = heads_first(v, v.size(2), v.size(3), dtype);
  const at::Tensor sums = at::empty(
      {q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  return {
      of_q,
      of_k,
      of_v,
      bias.defined() && wanted[3]
          ? c10::IValue(at::empty(bias.sizes(), bias.options()))
          : c10::IValue(at::Tensor())};
}

/// Backward of softmax and activation functions.
Results over_gradient(const DryCall& call, const std::string& node) {
  // Autograd's engine and the boxed arguments hold it.
  constexpr int64_t kHolders = 2;
  const at::Tensor& gradient = call.argument(0).toTensor();
  const at::Tensor kept = call.tensor(1);
  const bool takes_dtype = call.count() > 3;
  const at::ScalarType dtype =
      takes_dtype ? call.argument(3).toScalarType() : kept.scalar_type();
  const bool is_reused = reuses_spent_gradients() &&
                         is_spent(gradient, kept, dtype, node, kHolders);
  return {is_reused ? gradient : at::empty_like(kept, dtype)};
}

std::unordered_map<std::string, DryShape> make_shapes() {
  std::unordered_map<std::string, DryShape> shapes{
      {"native_layer_norm", layer_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"_scaled_dot_product_flash_attention_for_cpu", attention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward",
       attention_backward},
      {"_scaled_dot_product_flash_attention", flash_attention},
      {"_scaled_dot_product_flash_attention_backward",
       flash_attention_backward},
      {"_scaled_dot_product_efficient_attention", efficient_attention},
      {"_scaled_dot_product_efficient_attention_backward",
       efficient_attention_backward},
      {"index_select", index_select},
      {"embedding_dense_backward", embedding_backward},
      {"native_dropout", dropout},
      {"native_dropout_backward", like_first},
      {"pixel_shuffle", pixel_shuffle},
      {"pixel_unshuffle", pixel_unshuffle},
      {"where.self", where},
      {"native_group_norm", group_norm},
      {"native_group_norm_backward", group_norm_backward},
      {"native_batch_norm", batch_norm},
      {"native_batch_norm_backward", batch_norm_backward},
      {"convolution", convolution},
      {"convolution_backward", convolution_backward},
      {"mkldnn_rnn_layer_backward", rnn_layer_backward},
      {"log_sigmoid_forward", two_like_first},
      {"var.correction", variance},
      {"std.correction", variance},
      {"var_mean.correction", variance_and_mean},
      {"std_mean.correction", variance_and_mean},
      {"isnan", flags_like_first},
      {"searchsorted.Tensor",
       [](const DryCall& call) -> Results {
         return {at::empty_like(call.tensor(1), at::kLong)};
       }},
      {"bucketize.Tensor", indices_like_first}};
  for (const char* name :
       {"bernoulli",
        "relu",
        "hardtanh",
        "hardswish",
        "flip",
        "roll",
        "logit"}) {
    shapes.emplace(name, like_first);
  }
  for (const char* name :
       {"mish_backward",
        "hardtanh_backward",
        "hardswish_backward",
        "log_sigmoid_backward",
        "binary_cross_entropy_backward"}) {
    shapes.emplace(name, like_second);
  }
  for (const char* name :
       {"floor_divide",
        "rsub.Tensor",
        "_prelu_kernel",
        "__lshift__.Tensor",
        "__rshift__.Tensor"}) {
    shapes.emplace(name, elementwise);
  }
  for (const char* name :
       {"max", "min", "prod", "nansum", "median", "dot", "vdot", "trace"}) {
    shapes.emplace(name, scalar_of_first);
  }
  shapes.emplace("mse_loss_backward", loss_backward);
  std::unordered_map<std::string, DryShape> named;
  for (auto& [name, shape] : shapes) {
    named.emplace("aten::" + name, std::move(shape));
  }
  for (const auto& [name, node] : operators_over_gradients()) {
    named.emplace(name, [node](const DryCall& call) {
      return over_gradient(call, node);
    });
  }
  return named;
}

} // namespace

} // namespace dry_shape

const std::unordered_map<std::string, DryShape>& dry_shapes() {
  static const auto* const shapes =
      new std::unordered_map<std::string, DryShape>(dry_shape::make_shapes());
  return *shapes;
}

} // namespace tessera::runtime
