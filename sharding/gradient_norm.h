// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms and limits of all of a pager's gradients, from this rank's shards.

#include "tessera/runtime/kernels/power_sum.h"
#include "tessera/sharding/model_ranks.h"
#include "tessera/sharding/pager.h"

#include <functional>
#include <memory>
#include <vector>

namespace tessera {

/// The power sums that norms of a pager's gradients are made of, group by
/// group: those that were asked for ahead, and the rest when a norm is wanted.
/// They are added up in one order, whenever they were computed: a norm has the
/// same bits.
class GradientSums {
 public:
  /// @param pager outlives this object.
  explicit GradientSums(const Pager& pager);

  /// Prepares the sums of group `g`'s gradients as they are now. @return the
  /// work, for any thread; all() may only be called when it has ended, and the
  /// gradients do not change before.
  std::function<void()> begin(size_t g, double p);
  /// Whether all() has nothing left to compute.
  bool knows_all(double p) const;
  /// To be called when the gradients of group `g` change.
  void forget(size_t g) {
    known_[g].reset();
  }

  struct Sum {
    double of_powers;
    double factor; ///< what the gradients are multiplied with
    at::Tensor parameter;
  };
  /// power_sum() of this rank's part of every gradient. Blocks.
  std::vector<Sum> all(double p);

 private:
  struct Group {
    double p = 2;
    std::vector<bool> has; ///< per run of the bucket, whether it has a sum
    PowerSums sums; ///< of those that have
  };
  bool knows(const GradientBucket& bucket, size_t g, double p) const;

  const Pager& pager_;
  std::vector<std::shared_ptr<Group>> known_;
};

/// The global p-norm of the settled gradients: every element of every gradient
/// counts once, whatever rank it lies on. Collective; blocks.
/// @param p above 0, infinity for the largest magnitude.
/// @param model where several ranks hold the model between them: the norm is
///   that of all of it. May be null.
/// @return the same on all ranks; NaN or infinity when a gradient has one.
double gradient_norm(
    Pager& pager,
    GradientSums& sums,
    double p,
    ModelRanks* model = nullptr);

/// True when every element of every settled gradient is finite, on all ranks.
/// Collective; blocks. @param model as above.
bool gradients_are_finite(
    Pager& pager,
    GradientSums& sums,
    ModelRanks* model = nullptr);

/// Limits every element of the settled gradients to [-limit, limit].
/// Not collective.
void clamp_gradients(Pager& pager, double limit);

} // namespace tessera
