// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GatherScopes` gives weights and gradients to code outside of operators, and
// takes over what it has written to weights: whole ones for scopes, and the
// values that the optimizer has, by shard or whole.

#include "tessera/sharding/pages/value_hashes.h"
#include "tessera/sharding/paging/gradient_reducer.h"
#include "tessera/sharding/paging/pager_context.h"
#include "tessera/sharding/paging/unsharder.h"

#include <ATen/core/Tensor.h>

#include <optional>
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

  /// Unshards pages and holds them until unpin(). Collective.
  void pin(const std::vector<Page*>& pages, bool writable);
  /// Releases them; the shards of `writable` ones take over what was written.
  /// Not collective. Does not throw: check_written(), or the next agreement of
  /// the ranks, finds that they have written other values.
  /// @param on_all_stages see WrittenValues.
  void unpin(
      const std::vector<Page*>& pages,
      bool writable,
      bool on_all_stages) noexcept;

  /// Checks that the ranks have written the same values to parameters since
  /// they last agreed. Collective.
  /// @param on_all_stages whether the ranks of all pipeline stages call it, or
  ///   those of this one.
  /// @throws tessera::Error on all of them if they have not, naming a
  /// parameter.
  void check_written(bool on_all_stages) {
    reducer_.check_written(on_all_stages);
  }
  /// Compares values that all ranks are to have alike. Collective.
  std::optional<ValueDifference> compare(const ValueHashes& values) {
    return reducer_.compare(values);
  }
  /// Adds hashes of a page's whole values ([padded_numel]), which all ranks
  /// that have it write alike. Does nothing where one rank alone has it.
  void add_hashes(
      const Page& page,
      const at::Tensor& full,
      WrittenValues& written) const;

  /// Returns this rank's shard of a page's values as the optimizer has them, in
  /// memory on the parameters' device: [shard_numel], of its master's dtype.
  /// More precise than what operators see if there are master weights. The
  /// tensor itself, or a copy: changes take effect with write_master(). Blocks
  /// until the page is not under update.
  at::Tensor read_master(Page& page);
  /// Stores such values, and rounds them into the weights. For pages that
  /// nothing updates; Pager::invalidate() must be called afterwards. Blocks.
  static void write_master(Page& page, const at::Tensor& values);
  /// The same values of all ranks: [padded_numel]. Collective; unplanned.
  at::Tensor full_master(Page& page);

  /// Returns the whole settled gradient of a parameter, or an undefined tensor.
  /// Collective.
  at::Tensor full_gradient(size_t parameter);

  /// Gives all parameters their whole values and memory back. Collective; the
  /// ranks have agreed on it.
  /// @throws tessera::Error while a page is pinned.
  void restore_all();

 private:
  void write_back(Page& page) noexcept;
  at::Tensor gather_master(Page& page);
  /// @return `shard` itself if the page is not divided.
  at::Tensor gather(
      const Page& page,
      const at::Tensor& shard,
      const std::string& label);

  PagerContext& context_;
  Unsharder& unsharder_;
  GradientReducer& reducer_;
};

} // namespace tessera::sharding
