// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateMethod` is the arithmetic of an optimizer for ShardedOptimizer: it
// updates the runs of some parameters and keeps state for them.

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/shard_access.h"
#include "tessera/engine/optim/state_stage.h"
#include "tessera/engine/optim/state_tiers.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/kernels/update_runs.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/sharding/paging/pager.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// A trainable parameter with its settings and counters.
struct OptimizedParameter {
  const sharding::PagedParameter* paged = nullptr;
  size_t group = 0;
  size_t position = 0; ///< in the group's list
  ParameterSettings settings;
  int64_t steps = 0; ///< with a gradient, the current one included
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
struct ParameterRun {
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

/// One method's part of one group: its runs, and flat state for them.
struct ShardPart {
  size_t group = 0;
  std::vector<ParameterRun> runs; ///< ascending
  int64_t state_numel = 0;
  std::vector<runtime::RestingTensor> stored; ///< the state where it rests
  /// [state_numel] each: the state while a step uses it.
  std::vector<at::Tensor> state;
  bool fetched = false; ///< being fetched, or complete
  std::shared_ptr<StateStage::Buffer> buffer; ///< through which it passes
  std::vector<runtime::PendingTransfer> arriving;
};

/// The part of one page's shard that belongs to those of `parameters` that are
/// in the page.
ShardPart make_shard_part(
    const sharding::PageSpec& page,
    const std::vector<OptimizedParameter*>& parameters);

/// A part's tensors during an update.
struct PartTensors {
  ShardTensors shard;
  std::vector<at::Tensor> state; ///< as ShardPart::state
};

/// The values that all updates of one step share.
struct StepInput {
  double lr = 0;

  /// The learning rate of a parameter in this step.
  double lr_of(const OptimizedParameter& parameter) const {
    return parameter.steps <= parameter.settings.hold_steps
               ? 0
               : lr * parameter.settings.lr_scale;
  }
};

/// Visits all state of an optimizer, to save it or to overwrite it in place.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;

  /// State with one value per element of a parameter.
  /// @param state elements [offset, offset + run.numel) of it; outlives the
  ///   visitor.
  virtual void elements(
      const ParameterRun& run,
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
  virtual void opaque(
      const std::string& name,
      const std::function<at::Tensor()>& save,
      const std::function<void(const at::Tensor&)>& load) = 0;
};

/// The surroundings of a method.
struct UpdateContext {
  const std::vector<sharding::PageSpec> pages;
  const TierPlan tiers;
  const std::vector<bool> streams; ///< per page: updates go through `streamed`
  /// As in OptimizerOptions.
  const std::optional<at::ScalarType> moment_dtype;
  const bool stochastic_rounding;
  std::vector<std::optional<UpdateSite>> sites; ///< nothing: a frozen page
  StateStage stage;
  StreamedUpdate streamed;

  // From ShardedOptimizer::allocate_state() on:
  sharding::Pager* pager = nullptr;
  StateTiers* stores = nullptr;
  std::vector<std::unique_ptr<ShardAccess>> access; ///< null: a frozen page

  /// The device of the values that one step computes for all parameters, such
  /// as sums over them: the accelerator if all updates run there, so that none
  /// waits for it, else the CPU. The same on all ranks that have the same part
  /// of the model.
  c10::Device device_of_sums() const;
  /// The pages of a tensor with a row per parameter.
  std::vector<sharding::PageRows> rows_of(
      const std::vector<OptimizedParameter*>& parameters) const;
};

/// A stretch of a shard that one kernel call updates: one run, or joined runs
/// at the same step with the same settings.
struct UpdateSpan {
  const OptimizedParameter* parameter; ///< the first one's
  int64_t shard_offset;
  int64_t state_offset;
  int64_t numel;
};

/// The values of the update of such a stretch that change from step to step.
struct SpanUpdate {
  int64_t shard_offset = 0;
  int64_t state_offset = 0;
  int64_t numel = 0;
  int64_t steps = 0;
  double lr = 0;
  double grad_scale = 0;

  bool operator==(const SpanUpdate&) const = default;
};

class UpdateMethod;

/// The complete description of the update of one part: later changes of
/// parameters, rates and flags do not affect it, so that any thread can run it.
struct PartUpdate {
  UpdateMethod* method = nullptr;
  ShardPart* part = nullptr;
  std::vector<SpanUpdate> spans;
  runtime::RestingTensor gradient; ///< the bucket's shard
  /// @param before null: tensors are updated in place; else see update_runs_().
  std::function<void(const PartTensors& tensors, const PartTensors* before)>
      run;
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
  /// Tells the StateStage what passes through it, before it is allocated.
  void announce_staging();
  virtual void allocate(MemoryLedger& ledger);

  /// Updates the parameters that have a gradient. Collective if the method
  /// needs sums or whole matrices.
  virtual void step(const StepInput& input) = 0;

  /// Whether each element is updated independently: step() then equals
  /// prepare() for all groups.
  virtual bool is_elementwise() const {
    return false;
  }
  /// The update of group `g` with its current gradients; nothing if it has
  /// none. For elementwise methods.
  virtual std::optional<PartUpdate> prepare(size_t g, const StepInput& input);

  virtual void visit_state(StateVisitor& visitor);

  /// One per group that has parameters of this method.
  std::vector<ShardPart>& parts() {
    return parts_;
  }
  const std::vector<std::string>& state_names() const {
    return state_names_;
  }
  /// The dtype of the flat state of a group.
  at::ScalarType state_dtype(size_t group) const;
  /// The bytes that a part takes of a buffer.
  int64_t stage_bytes(const ShardPart& part) const;

  // The following functions handle one part, on any thread, but only one at a
  // time over all methods.

  /// Begins to fetch its tensors, except the gradient, unless that has begun.
  void begin_fetch(ShardPart& part);
  /// The same including the gradient.
  /// @param gradient as in PartUpdate.
  void begin_fetch(ShardPart& part, const runtime::RestingTensor& gradient);
  /// Completes the fetch and returns the tensors. Blocks until they have
  /// arrived.
  PartTensors open(ShardPart& part, const runtime::RestingTensor& gradient);
  /// Copies what was written back to where it rests, in the background.
  /// @param written the stretches of the shard that were written.
  void close(
      ShardPart& part,
      const std::vector<runtime::FlatSpan>& written,
      bool writes_state);
  /// Ends the access without copying back.
  /// @param leaving transfers that still use the buffer.
  void discard(
      ShardPart& part,
      std::vector<runtime::PendingTransfer> leaving = {});

 protected:
  bool has_gradient(const OptimizedParameter& parameter) const;
  /// How the update of `span` in its current step rounds.
  runtime::StochasticRounding rounding_of(
      const ShardPart& part,
      const UpdateSpan& span) const;

  /// The tensors that a pass over a part changes.
  struct Writes {
    bool weights = true;
    bool state = true;
  };

  /// Calls `work` for each of the parts with its tensors in reach, while those
  /// of the next one are fetched and those of the previous one are copied back.
  void for_each_part(
      const std::vector<ShardPart*>& parts,
      const Writes& writes,
      const std::function<void(ShardPart&, const ShardTensors&)>& work);

  /// As above, with the current gradients of the bucket.
  ShardTensors open(ShardPart& part);
  void close(ShardPart& part, const Writes& writes);

  /// The parts of which some run has a gradient.
  std::vector<ShardPart*> active_parts();

  int64_t streamed_bytes(const ShardPart& part) const;
  void end_streaming(ShardPart& part);
  void give_back(
      ShardPart& part,
      std::vector<runtime::PendingTransfer> leaving);

  UpdateContext& context_;
  std::vector<ShardPart> parts_;
  std::vector<std::string> state_names_;
};

/// The stretches of `part` whose parameters have a gradient.
/// @param join false: every run separately.
std::vector<UpdateSpan> active_spans(
    const ShardPart& part,
    const sharding::GradientBucket& bucket,
    bool join = true);

/// The views that a kernel call for a stretch takes; the state is in the order
/// of UpdateTensors::states().
runtime::UpdateTensors tensors_of(
    const PartTensors& tensors,
    int64_t shard_offset,
    int64_t state_offset,
    int64_t numel);

} // namespace tessera::engine
