// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateMethod` is the arithmetic of an optimizer for ShardedOptimizer: it
// updates the runs of some parameters and keeps state for them.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/offload/placement/tier_stores.h"
#include "tessera/offload/updates/shard_access.h"
#include "tessera/offload/updates/shard_tensors.h"
#include "tessera/offload/updates/staging_buffers.h"
#include "tessera/offload/updates/state_access.h"
#include "tessera/offload/updates/streamed_update.h"
#include "tessera/offload/updates/update_site.h"
#include "tessera/runtime/kernels/update_segments.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/sharding/paging/pager.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// The state of every parameter begins at a multiple of this many elements, as
/// shards do.
inline constexpr int64_t kStateAlignment = 16;

/// A trainable parameter with its settings and counters.
struct OptimizedParameter {
  const sharding::PagedParameter* paged = nullptr;
  size_t group = 0;
  size_t position = 0; ///< in the group's list
  ParameterSettings settings;
  int64_t steps = 0; ///< with a gradient, the current one included
  bool has_gradient = false; ///< in the current step, to be applied
  /// For the current step: gradients are multiplied by both first, for the loss
  /// scale and for clipping. The second is [] float64 on the device of updates,
  /// see DeferredScalar; undefined: 1.
  double grad_scale = 1;
  at::Tensor grad_factor;

  const std::string& name() const {
    return paged->record.name();
  }
  /// Returns `gradient` multiplied by both.
  at::Tensor scaled(const at::Tensor& gradient) const {
    const at::Tensor scaled = gradient.mul(grad_scale);
    return grad_factor.defined() ? scaled.mul_(grad_factor) : scaled;
  }
};

/// The part of one parameter that lies in this rank's shard.
struct ParameterSegment {
  OptimizedParameter* parameter = nullptr;
  int64_t shard_offset = 0;
  int64_t numel = 0;
  /// Offset from the parameter's first element, in the order of memory.
  int64_t parameter_offset = 0;
  int64_t state_offset = 0; ///< in the method's state for the group
  /// Only padding lies between this run and the previous one, in the shard as
  /// in the state: one update may cover both.
  bool joined = false;
};

/// One method's part of one page: its runs, and the layout of state for them.
struct MethodShard {
  size_t group = 0;
  std::vector<ParameterSegment> segments; ///< ascending
  int64_t state_numel = 0;
  std::unique_ptr<offload::StateAccess> state; ///< set by UpdateMethod
};

/// The part of one page's shard that belongs to those of `parameters` that are
/// in the page.
MethodShard make_shard_part(
    const sharding::PageSpec& page,
    const std::vector<OptimizedParameter*>& parameters);

/// The values that all updates of one step share.
struct StepInput {
  double lr = 0;
  /// Has the settled gradients; null: one update is measured.
  sharding::Pager* pager = nullptr;

  /// The learning rate of a parameter in this step.
  double lr_of(const OptimizedParameter& parameter) const {
    return parameter.steps <= parameter.settings.frozen_steps
               ? 0
               : lr * parameter.settings.lr_scale;
  }
};

/// A kernel's step, with what a parameter has in the current one.
template <typename Step>
Step parameter_step(
    Step step,
    const OptimizedParameter& parameter,
    const StepInput& input) {
  step.lr = input.lr_of(parameter);
  step.weight_decay = parameter.settings.weight_decay;
  step.grad_scale = parameter.grad_scale;
  if constexpr (requires { step.step; }) {
    step.step = parameter.steps;
  }
  return step;
}

/// Visits all state of an optimizer, to save it or to overwrite it in place.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  /// State with one value per element of a parameter.
  /// @param state elements [offset, offset + run.numel) of it; outlives the
  ///   visitor.
  virtual void elements(
      const ParameterSegment& segment,
      const std::string& name,
      runtime::RestingTensor& state,
      int64_t offset) = 0;

  /// A tensor that is the same on all ranks.
  virtual void replicated(
      const OptimizedParameter& parameter,
      const std::string& name,
      const at::Tensor& values) = 0;

  /// Bytes that only this rank in this layout can load.
  /// @param save returns them: [n] uint8.
  /// @param load restores them.
  /// @param reset does without them, where a checkpoint of another layout has
  ///   none for this rank; null: such a checkpoint cannot be loaded.
  virtual void opaque(
      const std::string& name,
      const std::function<at::Tensor()>& save,
      const std::function<void(const at::Tensor&)>& load,
      const std::function<void()>& reset = {}) = 0;
};

/// The surroundings of a method.
struct UpdateContext {
  const std::vector<sharding::PageSpec> pages;
  sharding::PageRanks& ranks; ///< that have the same part of the model
  const bool stochastic_rounding; ///< as in OptimizerOptions
  std::vector<std::optional<offload::UpdateSite>> sites; ///< none: frozen page
  offload::StagingBuffers staging;
  offload::StreamedUpdate streamed;

  /// The device of the values that one step computes for all parameters, such
  /// as sums over them: the accelerator if all updates run there, so that none
  /// waits for it, else the CPU. The same on all ranks that have the same part
  /// of the model.
  c10::Device device_of_sums() const;
  /// The pages of a tensor with a row per parameter.
  std::vector<sharding::PageRows> rows_of(
      const std::vector<OptimizedParameter*>& parameters) const;
};

/// The memory in which state is allocated, and the shards that it is for.
struct StateMemory {
  offload::TierStores& stores;
  MemoryLedger& ledger;
  /// Per page; null: it is frozen. What they refer to outlives the optimizer.
  const std::vector<std::unique_ptr<offload::ShardAccess>>& shards;
};

/// A stretch of a shard that one kernel call updates: one run, or joined runs
/// at the same step with the same settings.
struct ActiveSpan : offload::StateSpan {
  const OptimizedParameter* parameter = nullptr; ///< the first one's
};

/// The updates of one optimizer for its parameters. ShardedOptimizer keeps the
/// step counts. Up to allocate(), it is a plan of its state and needs no pages.
class UpdateMethod {
 public:
  /// @param state_names one flat state tensor per name and group; none for
  ///   methods that keep their state otherwise.
  UpdateMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      std::vector<std::string> state_names);
  virtual ~UpdateMethod() = default;
  UpdateMethod(const UpdateMethod&) = delete;
  UpdateMethod& operator=(const UpdateMethod&) = delete;

  /// Adds the bytes of state on this rank.
  virtual void add_state_bytes(TierBytes& bytes) const;
  virtual void allocate(const StateMemory& memory);

  /// Called before each backward.
  virtual void begin_backward(const sharding::PageTable& /*pages*/) {}

  /// Updates the parameters that have a gradient. Collective if the method
  /// needs sums or whole matrices.
  virtual void step(const StepInput& input) = 0;

  /// Whether each element is updated independently: step() then equals
  /// prepare() for all groups.
  virtual bool is_elementwise() const {
    return false;
  }
  /// The update of a page with its current gradients; nothing if it has none.
  /// For elementwise methods.
  virtual std::optional<offload::StateUpdate> prepare(
      const sharding::Page& page,
      const StepInput& input);

  virtual void visit_state(StateVisitor& visitor);

  /// One per group that has parameters of this method.
  std::vector<MethodShard>& parts() {
    return parts_;
  }

 protected:
  /// How the update of `span` in its current step rounds.
  runtime::StochasticRounding rounding_of(
      const MethodShard& part,
      const ActiveSpan& span) const;

  /// The tensors that a pass over a part changes.
  struct Writes {
    bool weights = true;
    bool state = true;
  };

  /// Calls `work` for each of the parts with its tensors in reach, while those
  /// of the next one are fetched and those of the previous one are copied back.
  static void for_each_part(
      const StepInput& input,
      const std::vector<MethodShard*>& parts,
      const Writes& writes,
      const std::function<void(MethodShard&, const offload::ShardTensors&)>&
          work);

  /// As above, with the current gradients of the bucket.
  static offload::ShardTensors open(const StepInput& input, MethodShard& part);
  static void close(MethodShard& part, const Writes& writes);

  /// The parts of which some run has a gradient.
  std::vector<MethodShard*> active_parts();

  UpdateContext& context_;
  std::vector<MethodShard> parts_;
};

/// The stretches of `part` whose parameters have a gradient.
/// @param join false: every run separately.
std::vector<ActiveSpan> active_spans(const MethodShard& part, bool join = true);

} // namespace tessera::engine
