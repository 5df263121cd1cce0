// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageFaultHandler` pages in what an operator is about to use. The fallback
// behind the page key calls it ([Note: page key]).

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>

namespace tessera::sharding {

class PagedStorage;

/// A sharded parameter among an operator's arguments.
struct PageAccess {
  PagedStorage* storage = nullptr;
  bool is_write = false;
};

/// Pages data in. Called by the fallback, on the thread that runs the operator.
class PageFaultHandler {
 public:
  virtual ~PageFaultHandler() = default;

  /// When it returns, every page of `accesses` (all belong to this handler) is
  /// readable until the operator ends.
  /// @param op_name for errors, e.g. "aten::linear".
  virtual void on_access(
      c10::ArrayRef<PageAccess> accesses,
      const char* op_name) = 0;

  /// Called before an operator that accesses no element, such as a view or
  /// detach(), gets a storage that forbids reads for now: who takes a view may
  /// read its memory without an operator.
  virtual void on_view(const PagedStorage& /*storage*/) {}

  /// Adds `gradient` to the gradient that the token of parameter `parameter`
  /// stands for.
  virtual void on_token_add(size_t parameter, const at::Tensor& gradient) = 0;

  /// Sets the token's gradient to zero; it stays defined.
  virtual void on_token_zero(size_t parameter) = 0;
};

/// Registers the fallback and checks on a small tensor that it is called.
/// Idempotent, thread-safe.
/// @throws tessera::Error when another library uses the key.
void ensure_page_key_registered();

} // namespace tessera::sharding
