// SPDX-License-Identifier: Apache-2.0
#pragma once
// Classifies operators for lazy construction.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

namespace tessera::sharding {

/// Returns whether tensors of `dtype`, a type that weights can have, are
/// deferred.
bool is_deferrable(at::ScalarType dtype);

bool is_allocation(const c10::OperatorHandle& op);

/// Returns whether the operator calls other operators that the recorder sees:
/// an allocation and an initializer, a copy, or the operators that a composite
/// operator consists of.
/// @param has_lazy_arguments if false, only for factories: the inner operators
///   of others may write by pointer.
bool is_made_of_others(const c10::OperatorHandle& op, bool has_lazy_arguments);

/// Returns whether the operator accesses only sizes, strides and flags.
bool is_metadata_only(const c10::OperatorHandle& op);

/// Returns whether the operator replaces the storage of its argument.
bool replaces_storage(const c10::OperatorHandle& op);

/// Returns whether the operator returns one or more tensors, but no list of
/// tensors.
bool returns_tensors(const c10::OperatorHandle& op);

} // namespace tessera::sharding
