// SPDX-License-Identifier: Apache-2.0
#pragma once
// How an operator is treated while a module is built lazily.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

namespace tessera {

/// True for the types of weights.
bool is_deferrable(at::ScalarType dtype);

bool is_allocation(const c10::OperatorHandle& op);

/// Made of others that are seen in turn: an allocation and an initialiser, a
/// copy, or whatever a composite operator calls.
/// @param has_lazy_arguments without them only factories are looked into: the
///   inner operators of others may write by pointer.
bool is_made_of_others(const c10::OperatorHandle& op, bool has_lazy_arguments);

/// Reads or writes sizes, strides and flags only.
bool is_metadata_only(const c10::OperatorHandle& op);

/// What it leaves behind is not the tensor that it was given.
bool replaces_storage(const c10::OperatorHandle& op);

/// Returns a tensor, or several, one by one.
bool returns_tensors(const c10::OperatorHandle& op);

} // namespace tessera
