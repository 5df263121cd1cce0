// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that gives the operators of mixed_norm.h their
// kernels.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/norm_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <array>
#include <optional>

namespace tessera::runtime {

namespace {

void check(cudaError_t error, const NormRows& in) {
  TESSERA_CHECK(
      error == cudaSuccess,
      "mixed_norm: the CUDA kernel for {} rows of {} failed to launch: {}",
      in.rows,
      in.features,
      cudaGetErrorString(error));
}

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

NormRows rows_of(
    const at::Tensor& x,
    const NormLayout& layout,
    const at::Tensor& weight,
    bool centered) {
  return {
      .x = x.const_data_ptr(),
      .type = x.scalar_type() == at::kHalf ? LowPrecision::kFloat16
                                           : LowPrecision::kBFloat16,
      .weight = float_data(weight),
      .rows = x.numel() / layout.features,
      .features = layout.features,
      .centered = centered,
      .groups = layout.groups,
      .spatial = layout.spatial};
}

NormResults forward(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  const at::Tensor scale = contiguous_or_none(weight);
  const at::Tensor shift = contiguous_or_none(bias);
  const NormRows rows =
      rows_of(in, {features, groups, spatial}, scale, centered);
  const auto statistics = in.options().dtype(at::kFloat);
  at::Tensor y = at::empty(in.sizes(), in.options());
  at::Tensor mean = at::empty({centered ? rows.rows : 0}, statistics);
  at::Tensor rstd = at::empty({rows.rows}, statistics);
  check(
      launch_norm(
          {.in = rows,
           .bias = float_data(shift),
           .eps = static_cast<float>(eps),
           .y = y.mutable_data_ptr(),
           .mean = mean.mutable_data_ptr<float>(),
           .rstd = rstd.mutable_data_ptr<float>()},
          current_stream()),
      rows);
  return {y, mean, rstd};
}

NormResults backward(
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
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  const at::Tensor from = gradient.contiguous();
  const at::Tensor scale = contiguous_or_none(weight);
  const NormLayout layout{features, groups, spatial};
  const NormRows rows = rows_of(in, layout, scale, centered);
  const int64_t parts = norm_backward_parts(rows);
  const auto sums = [&](bool is_wanted) {
    return is_wanted ? at::empty({parts, layout.parameters()}, rstd.options())
                     : at::Tensor();
  };
  const auto total = [](const at::Tensor& parts_of_it) {
    return parts_of_it.defined() ? parts_of_it.sum({0}) : at::Tensor();
  };
  at::Tensor gradient_x;
  if (wanted[0]) {
    gradient_x = at::empty(in.sizes(), in.options());
  }
  const at::Tensor weights = sums(wanted[1]);
  const at::Tensor biases = sums(wanted[2]);
  check(
      launch_norm_backward(
          {.in = rows,
           .gradient = from.const_data_ptr(),
           .mean = float_data(mean),
           .rstd = float_data(rstd),
           .gradient_x = wanted[0] ? gradient_x.mutable_data_ptr() : nullptr,
           .gradient_weight = mutable_float_data(weights),
           .gradient_bias = mutable_float_data(biases),
           .parts = parts},
          current_stream()),
      rows);
  return {gradient_x, total(weights), total(biases)};
}

const bool kNormsRegistered = [] {
  register_device_kernels({.norm = &forward, .norm_backward = &backward});
  return true;
}();

} // namespace

} // namespace tessera::runtime

TORCH_LIBRARY_IMPL(tessera, CUDA, library) {
  library.impl("mixed_norm", &tessera::runtime::norm_cuda);
  library.impl("mixed_norm_backward", &tessera::runtime::norm_backward_cuda);
}
