// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardedOptimizer` runs the optimizers of an engine over the flat shards of
// its pages.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_plan.h"
#include "tessera/engine/optim/weight_averages.h"
#include "tessera/offload/updates/page_updates.h"
#include "tessera/runtime/core/option_texts.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/paging/gradient_norm.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/update_scheduler.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera::engine {

/// Updates this rank's shards. Every trainable parameter belongs to one
/// optimizer; those without a gradient are not updated, as in torch::optim, and
/// each parameter counts its own steps.
///
/// With UpdateOverlap it also works during forward and backward, on a thread of
/// its own ([Note: updates beside backward]). What fails there throws in the
/// next function that needs its result.
class ShardedOptimizer : public sharding::UpdateScheduler {
 public:
  /// Assigns the parameters to the optimizers and plans their state; allocates
  /// nothing.
  /// @param pages of plan_pages().
  /// @param tiers of these pages.
  /// @param ranks that have these pages; must outlive this object.
  /// @param rules made of checked options.
  ShardedOptimizer(
      const std::vector<sharding::PageSpec>& pages,
      sharding::PageRanks& ranks,
      const offload::TierPlan& tiers,
      const UpdatePlan& updates,
      const OptimizerRules& rules,
      const OffloadOptions& offload);
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Bytes that this rank needs: state, except master weights, which belong to
  /// the pages, and staging buffers.
  TierBytes planned_bytes() const;

  /// Allocates the state. Call it once, before all functions below.
  /// @param shards of the pages, per page; none: it is frozen. What they refer
  ///   to, stores and ledger must outlive this object.
  void allocate_state(
      const std::vector<std::optional<offload::RestingShards>>& shards,
      offload::TierStores& stores,
      MemoryLedger& ledger);

  /// Whether all gradients, state and updates are on an accelerator, where each
  /// step ends before the next forward; the same on all ranks that have the
  /// same part of the model. Factors of gradients may then be deferred.
  bool is_all_on_device() const {
    return is_all_on_device_;
  }

  const UpdateStatistics& update_statistics() const {
    return updates_->statistics();
  }

  /// Call it before each backward.
  /// @param pages whose gradients it computes.
  /// @param grad_scale the argument of step() if nothing is clipped.
  void begin_backward(const sharding::PageTable& pages, double grad_scale);
  /// Whether it was called since the last step.
  bool began_backward() const {
    return began_backward_;
  }

  /// The sums from which norms of the settled gradients are computed. Blocks
  /// until those in progress are complete.
  /// @param p the norm; later steps compute its sums ahead.
  sharding::GradientSums& gradient_sums(
      const sharding::PageTable& pages,
      double p);

  /// All ranks are about to clip gradients at `value`, or to multiply them by
  /// it, by Engine's function of this name.
  void note_clipping(const char* function, double value);
  /// The calls that note_clipping() had in this step; empty: none.
  const std::string& clipping() const {
    return clipping_;
  }
  /// Learning rate, hyperparameters of parameters, and what was noted of
  /// clipping since the last step, for ranks that compare them.
  runtime::OptionTexts settings() const;
  /// Stands for settings(): equal where these are.
  int64_t hash_of_settings();

  /// Call it before step(), with settled gradients that stay until then. In the
  /// first steps, and in some of the later ones, does what
  /// check_tensor_rank_gradients() does, for which they are read once more.
  /// Collective; only where tensor-parallel ranks divide the model.
  void check_tensor_ranks(sharding::Pager& pager);

  /// Makes one step with the settled gradients. Collective. With overlap, pages
  /// may still be updated when it returns.
  /// @param pager that has the gradients.
  /// @param grad_scale gradients are multiplied by it first.
  /// @throws tessera::Error if state cannot be fetched or stored. Some pages
  ///   are then updated and others not: everything afterwards throws.
  void step(sharding::Pager& pager, double grad_scale);

  /// Call it instead of step() if gradients are not applied.
  void skip_step() {
    end_settings();
    updates_->end_step();
  }

  /// Blocks until no update is in progress.
  void finish_updates();

  // UpdateScheduler:
  bool on_final_gradients(sharding::Page& page) override;
  runtime::StreamMarks before_gradients_change(
      const sharding::Page& page) override;
  runtime::StreamMarks before_shard_use(const sharding::Page& page) override;
  bool is_updating(const sharding::Page& page) const override {
    return updates_->is_updating(static_cast<size_t>(page.number()));
  }

  /// @throws tessera::Error after an update that failed half-way.
  void check_full() const;

  /// The learning rate without the factors of parameters.
  double learning_rate() const {
    return lr_;
  }
  void set_learning_rate(double lr) {
    lr_ = lr;
  }

  /// Changes the hyperparameters of one parameter; unset fields change nothing,
  /// and the pattern is not used. Options of a rule are those of the optimizer
  /// that the parameter has.
  /// @param rule_version equal for equal options of `rule`.
  /// @throws tessera::Error if no optimizer has the parameter, or the rule is
  ///   of another one or needs other state.
  void set_parameter_options(
      const at::Tensor& parameter,
      const ParameterRule& rule,
      size_t rule_version);

  /// Calls of step() since the beginning of the run.
  int64_t steps() const {
    return steps_;
  }
  void set_steps(int64_t steps) {
    steps_ = steps;
  }

  /// All trainable parameters, in the order of the pages. Their step counts may
  /// be changed to resume from saved state.
  std::vector<OptimizedParameter>& parameters() {
    return parameters_;
  }
  const std::vector<OptimizedParameter>& parameters() const {
    return parameters_;
  }

  /// Shows all state to `visitor`, which may overwrite it.
  void visit_state(StateVisitor& visitor);

  /// The averages of the weights; null: none are kept.
  WeightAverages* averages() {
    return averages_.get();
  }
  const WeightAverages* averages() const {
    return averages_.get();
  }
  /// Exchanges weights and averages, for which gradients must have been reset.
  /// Collective; blocks.
  void exchange_averages(sharding::Pager& pager);

 private:
  /// Their hyperparameters.
  runtime::OptionTexts parameter_settings() const;
  void end_settings() {
    clipping_.clear();
    began_backward_ = false;
  }
  void add_speculation();
  /// The trainable parameters of a page.
  std::span<OptimizedParameter> parameters_of(const sharding::Page& page);
  void begin_update(
      const sharding::Page& page,
      OptimizedParameter& parameter,
      double grad_scale);
  /// The updates of elementwise methods, with the settings of begin_update().
  std::vector<offload::StateUpdate> prepare(const sharding::Page& page);
  void speculate(const sharding::Page& page);
  /// @param average_factor of WeightAverages::begin_step().
  void step_pages(const StepInput& input, double average_factor);
  /// Calls `work`; a failure is recorded and reported to the other ranks.
  void guarded(const std::function<void()>& work);

  UpdateContext context_;
  /// Per page; null: it is frozen.
  std::vector<std::unique_ptr<offload::ShardAccess>> access_;
  UpdateOverlap overlap_;
  bool is_all_on_device_ = false;
  double lr_;
  int64_t steps_ = 0;
  std::vector<OptimizedParameter> parameters_;
  std::vector<size_t> first_parameters_; ///< per page, and the end
  std::vector<std::unique_ptr<UpdateMethod>> methods_;
  std::unique_ptr<WeightAverages> averages_; ///< null: none
  std::string damage_; ///< of an update that failed half-way; empty: none
  sharding::GradientSums sums_;
  double sums_p_ = 2; ///< of the last norm
  double speculated_scale_ = 1;
  bool began_backward_ = false;
  int64_t checked_steps_ = 0; ///< calls of check_tensor_ranks()
  std::string clipping_; ///< what was noted of it
  std::optional<size_t> parameter_hash_; ///< of parameter_settings()
  std::unique_ptr<offload::PageUpdates>
      updates_; ///< last member: it uses the others
};

} // namespace tessera::engine
