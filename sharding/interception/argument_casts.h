// SPDX-License-Identifier: Apache-2.0
#pragma once
// `cast_arguments()` implements mixed precision at the operator: it casts
// arguments to the dtype of the sharded parameter in the same call.
// `call_mixed_norm()` does without casts what some norm layers would get.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace tessera::sharding {

/// LayerNorm and RMSNorm of a bfloat16 or float16 activation with float32
/// parameters, and GroupNorm where that is not on the CPU: runs the function of
/// [Note: mixed norms] in place of the operator, if this is such a call.
/// @return true if the call is complete, with its result on the stack.
bool call_mixed_norm(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack);

/// Converts the floating-point tensor arguments of a call to `dtype`, so that
/// an operator on a bfloat16 weight accepts float32 activations and vice versa.
/// Autograd records the conversions. Not converted are sharded parameters,
/// tensors that the operator writes to, single numbers, the arguments of
/// operators whose purpose is a type conversion (to, type_as, copy_), and the
/// activation of a norm that LibTorch computes with float32 parameters as it
/// is.
/// @return the dtype in which to return the activation, or its gradient, for
///   norm layers whose arguments were converted.
std::optional<at::ScalarType> cast_arguments(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack);

/// Converts the first result on the stack, if it is floating-point. Statistics
/// of norms and gradients of their parameters, which follow it, keep the
/// parameters' dtype, as LibTorch has them for such calls.
void cast_activation(
    const c10::OperatorHandle& op,
    at::ScalarType dtype,
    torch::jit::Stack& stack);

} // namespace tessera::sharding
