// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizers of an engine, over the flat shards of its Pager.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_plan.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pager.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// Updates this rank's shards. Every trainable parameter belongs to one
/// optimizer; those without a gradient are left alone, as torch::optim leaves
/// them, and each counts its own steps.
class ShardedOptimizer {
 public:
  /// Divides the parameters among the optimizers; keeps nothing allocated.
  /// @param pager outlives this object; so does `tiers`, which has planned the
  ///   pager's groups. @param options checked.
  ///   Measures, and is collective then, as plan_updates() is.
  ShardedOptimizer(
      Pager& pager,
      StateTiers& tiers,
      const OptimizerOptions& options,
      const OffloadOptions& offload);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Bytes that this rank needs: state, but for master weights, which are the
  /// pager's; and what it passes through.
  TierBytes planned_bytes() const;
  /// See update_table().
  std::string update_table() const;

  /// Makes the state; before the first step().
  void allocate_state(MemoryLedger& ledger);

  /// One step with the settled gradients. Collective.
  /// @param grad_scale gradients are multiplied by it first.
  /// @throws tessera::Error when state cannot be brought in or back. Some
  ///   groups are updated then, others not: everything after it throws.
  void step(double grad_scale = 1);

  /// The part of step() for one group, ahead of it and for no other: step()
  /// then finds no gradient there. Not collective. Only for optimizers of which
  /// updates_elements_alone() is true.
  void update_group(size_t g);

  /// @throws tessera::Error after an update that failed half-way.
  void check_whole() const;

  /// The rate before the parameters' own factors.
  double learning_rate() const {
    return lr_;
  }
  void set_learning_rate(double lr) {
    lr_ = lr;
  }

  /// Calls of step() since the beginning of the run.
  int64_t steps() const {
    return steps_;
  }
  void set_steps(int64_t steps) {
    steps_ = steps;
  }

  /// The most precise values of group `g`'s shard in memory: [shard_numel].
  /// Trained or not. What is written to them counts after store_master(). Both
  /// block.
  at::Tensor load_master(size_t g) const;
  void store_master(size_t g, const at::Tensor& values);

  /// All trainable parameters, in the pager's order. Their step counts may be
  /// changed, to go on from saved state.
  std::vector<OptimizedParameter>& parameters() {
    return parameters_;
  }
  const std::vector<OptimizedParameter>& parameters() const {
    return parameters_;
  }

  /// Shows all state to `visitor`, which may overwrite it.
  void visit_state(StateVisitor& visitor);

 private:
  void begin_update(OptimizedParameter& parameter, double grad_scale);
  /// Calls `update` for all methods; a failure is remembered.
  void apply(const std::function<void(UpdateMethod&)>& update);

  UpdatePlan plan_;
  UpdateContext context_;
  double lr_;
  int64_t steps_ = 0;
  std::vector<OptimizedParameter> parameters_;
  std::vector<std::unique_ptr<UpdateMethod>> methods_;
  std::string damage_; ///< of an update that failed half-way; empty: none
};

} // namespace tessera
