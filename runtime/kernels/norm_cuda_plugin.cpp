// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA plugin that gives the operators of mixed_norm.h their
// kernels.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/norm_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace tessera::runtime {

namespace {

using Tensors3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

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

/// A contiguous tensor of a parameter, undefined for None.
at::Tensor contiguous(const std::optional<at::Tensor>& parameter) {
  return parameter && parameter->defined() ? parameter->contiguous()
                                           : at::Tensor();
}

const float* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

NormRows rows_of(
    const at::Tensor& x,
    int64_t features,
    const at::Tensor& weight,
    bool centered) {
  return {
      .x = x.const_data_ptr(),
      .type = x.scalar_type() == at::kHalf ? LowPrecision::kFloat16
                                           : LowPrecision::kBFloat16,
      .weight = data_of(weight),
      .rows = x.numel() / features,
      .features = features,
      .centered = centered};
}

Tensors3 forward(
    const at::Tensor& x,
    int64_t features,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  const at::Tensor scale = contiguous(weight);
  const at::Tensor shift = contiguous(bias);
  const NormRows rows = rows_of(in, features, scale, centered);
  const auto statistics = in.options().dtype(at::kFloat);
  at::Tensor y = at::empty(in.sizes(), in.options());
  at::Tensor mean = at::empty({centered ? rows.rows : 0}, statistics);
  at::Tensor rstd = at::empty({rows.rows}, statistics);
  check(
      launch_norm(
          {.in = rows,
           .bias = data_of(shift),
           .eps = static_cast<float>(eps),
           .y = y.mutable_data_ptr(),
           .mean = mean.mutable_data_ptr<float>(),
           .rstd = rstd.mutable_data_ptr<float>()},
          current_stream()),
      rows);
  return {y, mean, rstd};
}

Tensors3 backward(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor in = x.contiguous();
  const at::Tensor from = gradient.contiguous();
  const at::Tensor scale = contiguous(weight);
  const NormRows rows = rows_of(in, features, scale, centered);
  const int64_t parts = norm_backward_parts(rows.rows);
  const auto sums = [&](bool is_wanted) {
    return is_wanted ? at::empty({parts, features}, rstd.options())
                     : at::Tensor();
  };
  const auto pointer = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
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
           .mean = data_of(mean),
           .rstd = data_of(rstd),
           .gradient_x = wanted[0] ? gradient_x.mutable_data_ptr() : nullptr,
           .gradient_weight = pointer(weights),
           .gradient_bias = pointer(biases),
           .parts = parts},
          current_stream()),
      rows);
  return {gradient_x, total(weights), total(biases)};
}

} // namespace

} // namespace tessera::runtime

TORCH_LIBRARY_IMPL(tessera, CUDA, library) {
  library.impl("mixed_norm", &tessera::runtime::forward);
  library.impl("mixed_norm_backward", &tessera::runtime::backward);
}
