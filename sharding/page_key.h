// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page key tells the engine that an operator is about to use a sharded
// parameter.
//
// [Note: page key] Each sharded parameter carries one extra dispatch key of the
// highest priority, above autograd and autocast. The fallback registered on it
// sees every operator that takes such a tensor or a view of one (views inherit
// the key), pages the data in, and calls the operator again with the key
// excluded. The key is TESTING_ONLY_GenericWrapper, the only one that LibTorch
// leaves unused; its registration is process-wide, so it lives in this file
// only.

#include "tessera/sharding/paged_storage.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace tessera::sharding {

/// A page among an operator's arguments.
struct PageAccess {
  PagedStorage* page = nullptr;
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

void add_page_key(const at::Tensor& tensor);
void remove_page_key(const at::Tensor& tensor);
bool has_page_key(const at::Tensor& tensor);

} // namespace tessera::sharding
