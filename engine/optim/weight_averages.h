// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WeightAverages` keeps an exponential moving average (EMA) of this rank's
// shards of the trained weights.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/offload/updates/shard_access.h"
#include "tessera/offload/updates/state_access.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::engine {

/// [Note: weight averages] One flat tensor per trained page, of the precision
/// and on the tier of the master weights' optimizer state. After step n,
/// counted from 0,
///
///     average = decay(n) * average + (1 - decay(n)) * weights
///
/// with decay(0) = 0, so that the average begins as the weights after the first
/// step (torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn), and
/// decay(n) = OptimizerOptions::ema_decay afterwards, or with ema_warmup
/// min(ema_decay, (1 + n) / (10 + n)). The weights are those that the optimizer
/// updates: master weights where there are any. It is computed where state
/// rests, on the CPU if that is not the parameters' device.
class WeightAverages {
 public:
  /// Plans them; allocates nothing.
  /// @param context with the sites of all pages; must outlive this object.
  /// @param parameters all trained ones; must outlive this object.
  /// @param tiers of the pages.
  WeightAverages(
      UpdateContext& context,
      std::vector<OptimizedParameter>& parameters,
      const std::vector<runtime::ShardTiers>& tiers,
      const OptimizerOptions& options);

  void add_state_bytes(TierBytes& bytes) const;
  void allocate(const StateMemory& memory);

  /// Begins a step.
  /// @return the factor of the weights in it, 1 - decay(n), for update().
  double begin_step();
  /// Takes the updated weights of page `g`, if it is trained. On the thread
  /// that has updated them.
  void update(size_t g, double factor);

  /// The steps that the averages are of.
  int64_t steps() const {
    return steps_;
  }
  /// Of loaded averages; 0: the next step begins anew.
  void set_steps(int64_t steps) {
    steps_ = steps;
  }
  void visit_state(StateVisitor& visitor);

  /// Whether the averages are in the place of the weights.
  bool are_in_use() const {
    return are_in_use_;
  }
  /// Exchanges weights and averages. Nothing may be updating or reading shards
  /// meanwhile. Needs memory for one shard, and for 16-bit weights that cannot
  /// be computed again (without master weights, or rounded stochastically) for
  /// a copy of them on the host. Blocks.
  void exchange(sharding::Pager& pager);

 private:
  struct Average {
    std::unique_ptr<offload::UpdateSite> site;
    std::unique_ptr<offload::ShardAccess> access; ///< from allocate() on
    MethodShard part;
    at::Tensor weights; ///< as they were, while the average is in their place
  };

  void use(Average& average, sharding::Page& page, sharding::Pager& pager);
  static void give_back(
      Average& average,
      sharding::Page& page,
      sharding::Pager& pager);

  UpdateContext& context_;
  double decay_;
  bool warmup_;
  int64_t steps_ = 0;
  bool are_in_use_ = false;
  std::vector<std::optional<Average>> averages_; ///< per page; none: frozen
};

} // namespace tessera::engine
