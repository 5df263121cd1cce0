// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mixed precision at the operator: arguments that fit the type of the sharded
// parameter beside them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace tessera {

/// Converts the floating-point tensor arguments of a call to `dtype`, so that
/// an operator on a bfloat16 weight takes float32 activations and the other way
/// round. Autograd records the conversions. What stays as it is: sharded
/// parameters, tensors the operator writes to, single numbers, and the
/// operators that are about types (to, type_as, copy_).
/// @return the type the results are to be given back in, for norm layers whose
///   arguments were converted.
std::optional<at::ScalarType> cast_arguments(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack);

/// Converts the floating-point results on the stack.
void cast_results(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack);

} // namespace tessera
