// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/operator_norms.h"

#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/operator_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>

namespace tessera::runtime {

namespace {

at::Tensor mean_of_rows(const at::Tensor& values) {
  return values.mean({2, 3}, /*keepdim=*/true);
}

/// [groups, parameters of a group, 1], to be broadcast over rows.
at::Tensor by_group(const at::Tensor& parameter, const at::Tensor& rows) {
  return parameter.reshape({rows.size(1), rows.size(2), 1});
}

/// Memory of the device alone: a parameter may have the page key, and its page
/// is in memory already.
at::Tensor memory_of(const std::optional<at::Tensor>& parameter) {
  const at::Tensor local = contiguous_or_none(parameter);
  return local.defined()
             ? detail::array_tensor(
                   local.const_data_ptr(), local.numel(), at::kFloat)
             : local;
}

/// Calls body(first, count) for ranges of samples.
template <typename Body>
void for_samples(const at::Tensor& rows, const Body& body) {
  const int64_t samples = rows.size(0);
  const int64_t per_sample = rows.numel() / std::max<int64_t>(samples, 1);
  const int64_t chunk =
      std::max<int64_t>(detail::kOperatorChunk / (per_sample + 1), 1);
  for (int64_t first = 0; first < samples; first += chunk) {
    body(first, std::min(chunk, samples - first));
  }
}

} // namespace

at::Tensor norm_rows(const at::Tensor& x, const NormLayout& layout) {
  return x.reshape(
      {x.numel() / (layout.groups * layout.features),
       layout.groups,
       layout.features / layout.spatial,
       layout.spatial});
}

NormedRows normed_rows(const at::Tensor& rows, double eps, bool centered) {
  NormedRows result;
  at::Tensor values = rows.to(at::kFloat);
  if (centered) {
    result.mean = mean_of_rows(values);
    values = values - result.mean;
  }
  result.rstd = (mean_of_rows(values.square()) + eps).rsqrt();
  result.normed = values * result.rstd;
  return result;
}

NormGradients norm_gradients(
    const at::Tensor& gradient,
    const NormedRows& saved,
    const at::Tensor& weight,
    bool centered) {
  const at::Tensor from = gradient.to(at::kFloat);
  const at::Tensor scaled =
      weight.defined() ? from * by_group(weight, from) : from;
  at::Tensor gradient_x =
      scaled - saved.normed * mean_of_rows(scaled * saved.normed);
  if (centered) {
    gradient_x = gradient_x - mean_of_rows(scaled);
  }
  return {
      gradient_x * saved.rstd,
      (from * saved.normed).sum(at::IntArrayRef({0, 3})),
      from.sum(at::IntArrayRef({0, 3}))};
}

NormResults detail::norm_by_operators(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  const PlainOperators plain;
  const NormLayout layout{features, groups, spatial};
  const at::Tensor in = norm_rows(x.contiguous(), layout);
  const at::Tensor scale = memory_of(weight);
  const at::Tensor shift = memory_of(bias);
  const auto statistics = in.options().dtype(at::kFloat);
  const int64_t rows = in.size(0) * groups;
  const at::Tensor y = at::empty(x.sizes(), in.options());
  const at::Tensor mean = at::empty({centered ? rows : 0}, statistics);
  const at::Tensor rstd = at::empty({rows}, statistics);
  for_samples(in, [&](int64_t first, int64_t count) {
    const auto put = [&](const at::Tensor& into, const at::Tensor& from) {
      into.narrow(0, first * groups, count * groups).copy_(from.flatten());
    };
    const NormedRows local =
        normed_rows(in.narrow(0, first, count), eps, centered);
    at::Tensor result = local.normed;
    result = scale.defined() ? result * by_group(scale, in) : result;
    result = shift.defined() ? result + by_group(shift, in) : result;
    y.view(in.sizes()).narrow(0, first, count).copy_(result);
    put(rstd, local.rstd);
    if (centered) {
      put(mean, local.mean);
    }
  });
  return {y, mean, rstd};
}

NormResults detail::norm_backward_by_operators(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  const PlainOperators plain;
  const NormLayout layout{features, groups, spatial};
  const at::Tensor in = norm_rows(x.contiguous(), layout);
  const at::Tensor from = norm_rows(gradient.contiguous(), layout);
  const at::Tensor scale = memory_of(weight);
  const at::Tensor gradient_x = at::empty(x.sizes(), in.options());
  const auto zeros = [&] {
    return at::zeros({layout.parameters()}, rstd.options());
  };
  at::Tensor gradient_weight = zeros();
  at::Tensor gradient_bias = zeros();
  for_samples(in, [&](int64_t first, int64_t count) {
    const auto by_row = [&](const at::Tensor& statistics) {
      return statistics.view({in.size(0), groups, 1, 1})
          .narrow(0, first, count);
    };
    NormedRows saved{.mean = {}, .rstd = by_row(rstd), .normed = {}};
    const at::Tensor values = in.narrow(0, first, count).to(at::kFloat);
    saved.normed = (centered ? values - by_row(mean) : values) * saved.rstd;
    const NormGradients local =
        norm_gradients(from.narrow(0, first, count), saved, scale, centered);
    gradient_x.view(in.sizes()).narrow(0, first, count).copy_(local.x);
    gradient_weight.add_(local.weight.flatten());
    gradient_bias.add_(local.bias.flatten());
  });
  const auto if_wanted = [&](size_t number, const at::Tensor& result) {
    return wanted[number] ? result : at::Tensor();
  };
  return {
      if_wanted(0, gradient_x),
      if_wanted(1, gradient_weight),
      if_wanted(2, gradient_bias)};
}

} // namespace tessera::runtime
