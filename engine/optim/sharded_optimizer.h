// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizers of an engine, over the flat shards of its Pager.

#include "tessera/engine/optim/group_updates.h"
#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_plan.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/gradient_norm.h"
#include "tessera/sharding/pager.h"
#include "tessera/sharding/shard_user.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// Updates this rank's shards. Every trainable parameter belongs to one
/// optimizer; those without a gradient are left alone, as torch::optim leaves
/// them, and each counts its own steps.
///
/// With UpdateOverlap it works beside forward and backward too, on a thread of
/// its own ([Note: updates beside backward]). What has failed there throws in
/// the next function that needs its result.
class ShardedOptimizer : public ShardUser {
 public:
  /// Divides the parameters among the optimizers; keeps nothing allocated.
  /// @param pager outlives this object; so does `tiers`, which has planned the
  ///   pager's groups. @param rules of checked options.
  ///   Measures, and is collective then, as plan_updates() is.
  ShardedOptimizer(
      Pager& pager,
      StateTiers& tiers,
      const OptimizerRules& rules,
      const OffloadOptions& offload);
  ~ShardedOptimizer() override;
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Bytes that this rank needs: state, but for master weights, which are the
  /// pager's; and what it passes through.
  TierBytes planned_bytes() const;
  /// See update_table().
  std::string update_table() const;

  /// Makes the state; before the first step().
  void allocate_state(MemoryLedger& ledger);

  /// What OptimizerOptions::overlap has come to; not kAutomatic.
  UpdateOverlap overlap() const {
    return overlap_;
  }

  const UpdateStatistics& update_statistics() const {
    return updates_->statistics();
  }

  /// Before a backward. @param grad_scale what step() will be called with if
  /// nothing is clipped.
  void begin_backward(double grad_scale);

  /// The sums that a norm of the settled gradients is made of. Blocks until
  /// those that are being computed are there.
  /// @param p they are computed ahead for the norms of later steps too.
  GradientSums& gradient_sums(double p);

  /// One step with the settled gradients. Collective. With overlap, groups may
  /// still be updated when it returns.
  /// @param grad_scale gradients are multiplied by it first.
  /// @throws tessera::Error when state cannot be brought in or back. Some
  ///   groups are updated then, others not: everything after it throws.
  void step(double grad_scale = 1);

  /// In place of step() where gradients are not applied.
  void skip_step() {
    updates_->end_step();
  }

  /// Blocks until no update is under way any more.
  void finish_updates();

  // ShardUser
  bool on_final_gradients(size_t g) override;
  StreamMarks before_gradients_change(size_t g) override;
  StreamMarks before_shard_use(size_t g) override;

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
  at::Tensor load_master(size_t g);
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
  void make_shadows();
  void begin_update(OptimizedParameter& parameter, double grad_scale);
  /// The updates of elementwise methods, with what begin_update() has set.
  std::vector<PartUpdate> prepare(size_t g);
  void speculate(size_t g);
  void step_groups();
  /// Calls `work`; a failure is remembered, and the other ranks are told.
  void guarded(const std::function<void()>& work);

  UpdatePlan plan_;
  UpdateContext context_;
  UpdateOverlap overlap_;
  double lr_;
  int64_t steps_ = 0;
  std::vector<OptimizedParameter> parameters_;
  std::vector<size_t> first_parameters_; ///< per group, and the end
  std::vector<std::unique_ptr<UpdateMethod>> methods_;
  std::string damage_; ///< of an update that failed half-way; empty: none
  GradientSums sums_;
  double sums_p_ = 2; ///< of the last norm
  double speculated_scale_ = 1;
  std::unique_ptr<GroupUpdates> updates_; ///< last: it uses all of the above
};

} // namespace tessera
