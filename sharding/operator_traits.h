// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the fallback must know of an operator before it runs.

#include <ATen/core/dispatch/Dispatcher.h>

namespace tessera {

enum class OperatorKind {
  kReadsData, ///< pages are brought in first
  kMetadata, ///< views, sizes, flags: touches no element
  kInplaceAdd, ///< add_: accumulates on a gradient token
  kAdd, ///< add: autograd's accumulation under create_graph
  kInplaceZero, ///< zero_: resets a gradient token
};

/// The kind of `op`; looked up by name once, then cached per operator.
OperatorKind kind_of(const c10::OperatorHandle& op);

} // namespace tessera
