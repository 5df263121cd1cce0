// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizers of an engine, over the flat shards of its Pager.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/pager.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

/// Updates this rank's shards. Every trainable parameter belongs to one
/// optimizer; those without a gradient are left alone, as torch::optim leaves
/// them, and each counts its own steps.
class ShardedOptimizer {
 public:
  /// Divides the parameters among the optimizers; allocates nothing.
  /// @param pager outlives this object. @param options checked.
  ShardedOptimizer(Pager& pager, const OptimizerOptions& options);
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Bytes of state that this rank needs.
  int64_t state_bytes() const;
  /// Makes the state; before the first step().
  void allocate_state(MemoryLedger& ledger);

  /// One step with the settled gradients. Collective.
  /// @param grad_scale gradients are multiplied by it first.
  void step(double grad_scale = 1);

  /// The part of step() for one group, ahead of it and for no other: step()
  /// then finds no gradient there. Not collective. Only for optimizers of which
  /// updates_elements_alone() is true.
  void update_group(size_t g);

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

  /// The most precise values of group `g`'s shard: [shard_numel]. Trained or
  /// not.
  const at::Tensor& master(size_t g) const;
  /// To be called after they were written from outside.
  void masters_were_written();

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

  UpdateContext context_;
  double lr_;
  int64_t steps_ = 0;
  std::vector<OptimizedParameter> parameters_;
  std::vector<std::unique_ptr<UpdateMethod>> methods_;
};

} // namespace tessera
