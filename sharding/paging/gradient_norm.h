// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norm and clamping of all of a pager's gradients, computed from this rank's
// shards.

#include "tessera/runtime/kernels/power_sum.h"
#include "tessera/sharding/paging/pager.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding {

/// `GradientSums` holds the power sums from which norms of a pager's gradients
/// are computed, page by page: some are computed in advance, the rest when a
/// norm is requested. They are always added in the same order, so that a norm
/// has the same bits whenever they were computed.
class GradientSums {
 public:
  explicit GradientSums(size_t pages) : known_(pages) {}

  /// Prepares the sums of a page's current gradients.
  /// @return the work, which may run on any thread. all() must not be called,
  ///   and the gradients must not change, before it has finished.
  std::function<void()> begin(const Page& page, double p);
  /// Returns whether all() has nothing left to compute.
  bool knows_all(const PageTable& pages, double p) const;
  /// Must be called when the gradients of a page change.
  void forget(const Page& page) {
    known_[static_cast<size_t>(page.number())].reset();
  }
  /// As above, for all pages.
  void forget_all() {
    known_.assign(known_.size(), nullptr);
  }

  struct Sum {
    double of_powers;
    double factor; ///< by which the gradients are multiplied
    bool counts; ///< as PagedParameter::counts
    const PageSpec& page;
    size_t parameter; ///< index in the list of all
  };
  /// Returns the PowerSums of this rank's part of every gradient. Blocks.
  std::vector<Sum> all(const PageTable& pages, double p);
  /// The sum of those that count, of the pages whose sums go over `mesh` (for
  /// p = infinity, the largest), on an accelerator: [1] float64 there. Does not
  /// block.
  at::Tensor total_on_device(
      const Pager& pager,
      const MeshRanks& mesh,
      double p);

 private:
  struct Group {
    double p = 2;
    /// Per run of the bucket, whether it has a sum.
    std::vector<bool> has;
    runtime::PowerSums sums; ///< of the runs that have one
  };
  const std::shared_ptr<Group>& known(const Page& page) const {
    return known_[static_cast<size_t>(page.number())];
  }
  bool knows(const Page& page, double p) const;
  /// The p-norms of a page's runs that count, times the factor, on its device.
  std::vector<at::Tensor> norms_that_count(const Page& page, double p);

  std::vector<std::shared_ptr<Group>> known_; ///< per page
};

/// Returns the global p-norm of the settled gradients: every element of every
/// gradient counts once, whichever rank it is on. Collective; blocks.
/// If ranks divide the model, the norm is that of the whole model.
/// @param p above 0, infinity for the largest magnitude.
/// @return equal on all ranks; NaN or infinity when a gradient contains one.
double gradient_norm(Pager& pager, GradientSums& sums, double p);

/// As above, for gradients on an accelerator, without blocking: [] float64 on
/// the accelerator.
at::Tensor gradient_norm_on_device(Pager& pager, GradientSums& sums, double p);

/// Whether some gradient is not finite, and of which parameter.
struct NonfiniteGradients {
  bool any = false; ///< on any rank; the same on all of them
  /// The first parameter of this rank's part of the model with such a gradient;
  /// empty: only other parts have one.
  std::string parameter;
};

/// Looks at every element of every settled gradient. Collective; blocks.
NonfiniteGradients find_nonfinite_gradients(Pager& pager, GradientSums& sums);

/// Clamps every element of the settled gradients to [-limit, limit]. Not
/// collective.
void clamp_gradients(Pager& pager, double limit);

} // namespace tessera::sharding
