// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/operators.h"

#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/kernels/gated_activation.h"
#include "tessera/runtime/kernels/residual_norm.h"
#include "tessera/runtime/kernels/rotary_heads.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <torch/types.h>

#include <optional>

namespace tessera::zoo {

namespace {

at::Tensor gated_by_libtorch(
    Activation activation,
    const at::Tensor& gate,
    const at::Tensor& up) {
  return activation(gate) * up;
}

std::pair<at::Tensor, at::Tensor> rotated_by_libtorch(
    const at::Tensor& query,
    const at::Tensor& key,
    const RotaryTables& tables) {
  return {rotate(query, tables), rotate(key, tables)};
}

bool is_fused_type(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ||
         c10::isReducedFloatingType(x.scalar_type());
}

/// The function, if there is a kernel for it.
std::optional<runtime::GateFunction> gate_function(Activation function) {
  struct Row {
    const char* name;
    runtime::GateFunction function;
  };
  constexpr Row kRows[] = {
      {"silu", runtime::GateFunction::kSilu},
      {"gelu", runtime::GateFunction::kGelu},
      {"gelu_new", runtime::GateFunction::kTanhGelu}};
  for (const Row& row : kRows) {
    if (activation(row.name) == function) { // other names have the same
      return row.function;
    }
  }
  return std::nullopt;
}

at::Tensor gated_by_kernel(
    Activation activation,
    const at::Tensor& gate,
    const at::Tensor& up) {
  const auto function = gate_function(activation);
  if (!function || !is_fused_type(gate) ||
      gate.scalar_type() != up.scalar_type() || gate.sizes() != up.sizes()) {
    return gated_by_libtorch(activation, gate, up);
  }
  return runtime::gated_activation(gate, up, *function);
}

std::pair<at::Tensor, at::Tensor> rotated_by_kernel(
    const at::Tensor& query,
    const at::Tensor& key,
    const RotaryTables& tables) {
  const auto is_taken = [&](const at::Tensor& x) {
    return !is_dtensor(x) && is_fused_type(x) &&
           x.scalar_type() == tables.cosines.scalar_type() && x.dim() == 4 &&
           x.size(0) == query.size(0) && x.size(2) == query.size(2) &&
           x.size(2) == tables.cosines.size(2) &&
           (tables.cosines.size(0) == 1 ||
            tables.cosines.size(0) == x.size(0)) &&
           2 * tables.cosines.size(-1) <= x.size(3) &&
           x.size(3) == query.size(3);
  };
  return is_taken(query) && is_taken(key)
             ? runtime::rotate_heads(
                   query,
                   key,
                   tables.cosines,
                   tables.sines,
                   tables.layout == RotaryLayout::kPairs)
             : rotated_by_libtorch(query, key, tables);
}

at::Tensor norm_by_libtorch(const at::Tensor& x, const NormCall& norm) {
  const NormOptions& options = norm.options;
  const at::Tensor& weight = norm.weight;
  const bool is_offset = weight.defined() && options.weight_offset != 0;
  if (options.kind == NormKind::kLayerNorm) {
    return at::layer_norm(
        x,
        {options.features},
        is_offset ? weight + options.weight_offset : weight,
        norm.bias,
        options.eps);
  }
  const bool is_divided =
      is_dtensor(x) && local_tensor(x).size(-1) != options.features;
  if (!is_divided && !is_offset) {
    return at::rms_norm(
        x,
        {options.features},
        weight.defined() ? std::optional<at::Tensor>(weight) : std::nullopt,
        options.eps);
  }
  // The kernel would need all features; and 1 + w is not exact in 16 bits.
  const auto type = at::promote_types(x.scalar_type(), at::kFloat);
  const at::Tensor wide = x.to(type);
  at::Tensor normed =
      wide * at::rsqrt(wide.square().mean(-1, true) + options.eps);
  if (weight.defined()) {
    normed = normed * (weight.to(type) + options.weight_offset);
  }
  return normed.to(x.scalar_type());
}

ResidualNorm residual_norm_by_libtorch(
    const LayerContext& context,
    const Residual& residual,
    const NormCall& norm) {
  at::Tensor sum = residual.x;
  if (residual.branch.defined()) {
    const at::Tensor kept =
        context.dropout(residual.branch, residual.dropout, /*train=*/true);
    sum = sum + (residual.scale == 1 ? kept : kept * residual.scale);
  }
  return {sum, norm_by_libtorch(sum, norm)};
}

ResidualNorm residual_norm_by_kernel(
    const LayerContext& context,
    const Residual& residual,
    const NormCall& norm) {
  const at::Tensor& x = residual.x;
  const at::Tensor& branch = residual.branch;
  const bool is_taken =
      !is_dtensor(x) && runtime::takes_residual_norm(x) &&
      x.size(-1) == norm.options.features &&
      !at::autocast::is_autocast_enabled(at::kCPU) &&
      (!branch.defined() ||
       (!is_dtensor(branch) && branch.scalar_type() == x.scalar_type() &&
        branch.sizes() == x.sizes() && branch.is_contiguous() &&
        residual.dropout < 1));
  if (!is_taken) {
    return residual_norm_by_libtorch(context, residual, norm);
  }
  at::Tensor mask;
  double scale = residual.scale;
  if (branch.defined() && residual.dropout > 0) {
    mask = context.dropout_mask(branch, residual.dropout);
    scale /= 1 - residual.dropout;
  }
  const runtime::ResidualNorm result = runtime::residual_norm(
      x,
      branch,
      mask,
      norm.weight,
      norm.bias,
      {.eps = norm.options.eps,
       .centered = norm.options.kind == NormKind::kLayerNorm,
       .weight_offset = norm.weight.defined() ? norm.options.weight_offset : 0,
       .branch_scale = scale});
  return {result.sum, result.normed};
}

} // namespace

const LayerOperators& operators() {
  static constexpr LayerOperators kByKernels{
      .gated = &gated_by_kernel,
      .rotated = &rotated_by_kernel,
      .residual_norm = &residual_norm_by_kernel};
  static constexpr LayerOperators kByLibTorch{
      .gated = &gated_by_libtorch,
      .rotated = &rotated_by_libtorch,
      .residual_norm = &residual_norm_by_libtorch};
  return runtime::uses_fused_operators() ? kByKernels : kByLibTorch;
}

} // namespace tessera::zoo
