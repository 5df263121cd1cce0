// SPDX-License-Identifier: Apache-2.0
#pragma once
// `kind_of()` tells the page key's fallback what an operator does with its
// arguments.

#include <ATen/core/dispatch/Dispatcher.h>

namespace tessera::sharding {

enum class OperatorKind {
  kReadsData, ///< pages are unsharded first
  kMetadata, ///< views, sizes, flags: accesses no element
  kInplaceAdd, ///< add_: accumulates on a gradient token
  kAdd, ///< add: autograd's accumulation under create_graph
  kInplaceZero, ///< zero_: resets a gradient token
};

/// Returns the kind of `op`; looked up by name once, then cached per operator.
OperatorKind kind_of(const c10::OperatorHandle& op);

} // namespace tessera::sharding
