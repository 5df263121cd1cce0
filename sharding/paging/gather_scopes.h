// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatherScopes` gives whole weights and gradients to code outside of
// operators, and takes over what it has written to weights.

#include "tessera/sharding/paging/gradient_reducer.h"
#include "tessera/sharding/paging/pager_context.h"
#include "tessera/sharding/paging/unsharder.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::sharding {

class GatherScopes {
 public:
  /// All must outlive this object.
  GatherScopes(
      PagerContext& context,
      Unsharder& unsharder,
      GradientReducer& reducer)
      : context_(context), unsharder_(unsharder), reducer_(reducer) {}

  /// See the functions of Pager with these names.
  void pin(const std::vector<size_t>& groups, bool writable);
  void unpin(const std::vector<size_t>& groups, bool writable) noexcept;
  at::Tensor whole_master(size_t g);
  at::Tensor master_shard(size_t g);
  at::Tensor whole_gradient(size_t parameter);

  /// Gives all parameters their whole values and memory back. Collective; the
  /// ranks have agreed on it.
  /// @throws tessera::Error while a page is pinned.
  void restore_all();

 private:
  void write_back(PagedGroup& page) noexcept;
  at::Tensor gather_master(size_t g);
  /// @return `shard` itself if the page is not divided.
  at::Tensor gather(
      const PagedGroup& page,
      const at::Tensor& shard,
      const std::string& what);

  PagerContext& context_;
  Unsharder& unsharder_;
  GradientReducer& reducer_;
};

} // namespace tessera::sharding
