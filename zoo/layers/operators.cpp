// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/operators.h"

#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/kernels/gated_activation.h"
#include "tessera/runtime/kernels/rotary_heads.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

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

} // namespace

const LayerOperators& operators() {
  static constexpr LayerOperators kByKernels{
      .gated = &gated_by_kernel, .rotated = &rotated_by_kernel};
  static constexpr LayerOperators kByLibTorch{
      .gated = &gated_by_libtorch, .rotated = &rotated_by_libtorch};
  return runtime::uses_fused_operators() ? kByKernels : kByLibTorch;
}

} // namespace tessera::zoo
