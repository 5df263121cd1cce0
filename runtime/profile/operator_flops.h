// SPDX-License-Identifier: Apache-2.0
#pragma once
// `operator_flops()` counts the arithmetic of an operator's call.

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

namespace tessera::runtime {

/// Floating-point operations of a call: two for each multiplication and
/// addition.
struct OperatorFlops {
  double all = 0;
  /// Of them: what a backward computes a second time because its forward did
  /// not keep it, as that of fused attention does with the scores.
  double repeated = 0;
  /// Of `all`: scores that a causal mask or a pattern hides. Fused kernels skip
  /// them; the usual counts of a model's FLOPs do not.
  double masked = 0;
};

/// Those of matrix products, convolutions and attention; zeros for other
/// operators.
/// @param name e.g. "aten::addmm".
/// @param arguments all of them, in the order of the operator's schema.
OperatorFlops operator_flops(
    std::string_view name,
    std::span<const c10::IValue> arguments);

} // namespace tessera::runtime
