// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rules of operators on DTensors ([Note: DTensors]), by kind. Each function
// registers its kernels under kDividedKey; a kernel passes on calls without a
// DTensor among the operands.

#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

namespace tessera::sharding {

/// While it exists, operators skip our kernels.
struct DTensorGuard {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::DispatchKeySet(c10::DispatchKey::DeferredInit)};
};

/// Calls `visit` with each tensor among the arguments of an operator, on top of
/// `stack`, and the number of the argument that it is or is an element of.
void for_each_tensor(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    c10::function_ref<void(const at::Tensor&, size_t argument)> visit);

/// Computes an operator that works element by element: every operand is divided
/// as the first that is divided; results are, too.
void elementwise_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// The same of operators that read, which do not support partitions of weights.
void checked_elementwise_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Computes any operator: element by element, by those of which it consists, or
/// on gathered operands.
void general_rule(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Calls an operator from within a rule, on DTensors, by the general rule.
/// @param name, overload as in its schema.
/// @param arguments among which is a DTensor.
torch::jit::Stack call_general(
    const char* name,
    const char* overload,
    torch::jit::Stack arguments);

/// @throws tessera::Error when `x` is a partition of a weight or a view of one,
///   which only some operators support.
void check_no_weight(const at::Tensor& x, const char* operation);

/// The same where autograd records what a model computes, and of wrapped
/// modules: a sum over a part of a weight would be taken for one over the
/// whole. Elsewhere partitions are copied, initialized and looked at.
void check_records_no_weight(const at::Tensor& x, const char* operation);

void register_view_rules(torch::Library& library);
void register_reduction_rules(torch::Library& library);
void register_attention_rule(torch::Library& library);
void register_random_rules(torch::Library& library);
void register_loss_rules(torch::Library& library);

} // namespace tessera::sharding
