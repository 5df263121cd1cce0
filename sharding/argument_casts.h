// SPDX-License-Identifier: Apache-2.0
#pragma once
// `cast_arguments()` implements mixed precision at the operator: it casts
// arguments to the dtype of the sharded parameter in the same call.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace tessera::sharding {

/// Converts the floating-point tensor arguments of a call to `dtype`, so that
/// an operator on a bfloat16 weight accepts float32 activations and vice versa.
/// Autograd records the conversions. Not converted are sharded parameters,
/// tensors that the operator writes to, single numbers, and the arguments of
/// operators whose purpose is a type conversion (to, type_as, copy_).
/// @return the dtype in which to return the results, for norm layers whose
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

} // namespace tessera::sharding
