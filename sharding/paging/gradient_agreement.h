// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GradientAgreement` makes gradients final: it reduces what backward left
// over, and the ranks agree which parameters have a gradient.

#include "tessera/sharding/paging/gradient_reducer.h"
#include "tessera/sharding/paging/pager_context.h"

#include <ATen/core/Tensor.h>

namespace tessera::sharding {

class GradientAgreement {
 public:
  /// @param context, reducer must outlive this object.
  GradientAgreement(PagerContext& context, GradientReducer& reducer)
      : context_(context), reducer_(reducer) {}

  /// See Pager::settle_gradients().
  void settle(const RankIntent& intent);

  /// Reduces what some rank has collected, except what is kept whole.
  /// Collective.
  void reduce_leftovers() {
    reduce_collected(/*all=*/false);
  }

  /// Forgets what was agreed on: a step has ended.
  void reset() {
    settled_flags_ = at::Tensor();
  }

 private:
  /// Flags of the pages with collected gradients, and of the parameters with a
  /// gradient, on this rank: [pages + parameters] uint8.
  /// @param all also pages whose gradients are kept whole.
  at::Tensor flags(bool all) const;
  /// Whether this rank's flags are those that the ranks have agreed on, with
  /// nothing left to reduce.
  bool is_settled() const;
  void collect_all_pending();
  /// Reduces collected gradients, those that are kept whole only if `all`.
  /// @return flags() of all ranks, before that.
  at::Tensor reduce_collected(bool all);
  /// @param flags of all ranks, whose pages are reduced.
  void adopt(const at::Tensor& flags);

  PagerContext& context_;
  GradientReducer& reducer_;
  /// flags() of all ranks when they were settled last in this step; undefined:
  /// they were not.
  at::Tensor settled_flags_;
};

} // namespace tessera::sharding
