// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Pager` pages a module's parameters: it unshards groups when operators use
// them, reshards and reduces them as planned, and keeps the ranks in agreement.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/slot_arena.h"
#include "tessera/runtime/memory/stream_lane.h"
#include "tessera/sharding/page_key.h"
#include "tessera/sharding/page_spec.h"
#include "tessera/sharding/paged_group.h"
#include "tessera/sharding/pager_options.h"
#include "tessera/sharding/pager_statistics.h"
#include "tessera/sharding/plan_cursor.h"
#include "tessera/sharding/rank_agreement.h"
#include "tessera/sharding/shard_mesh.h"
#include "tessera/sharding/shard_stores.h"
#include "tessera/sharding/shard_user.h"
#include "tessera/sharding/slot_plan.h"
#include "tessera/sharding/transfer_waits.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// The parameters of one module, sharded over the ranks of a World.
///
/// [Note: streams] On a device with streams, all-gathers run on one lane and
/// reductions on another, over separate communicators, and the host waits for
/// neither. A stream that uses a page waits for its all-gather; the next
/// all-gather into the page's slot waits for every stream that used it.
/// Gradients are copied to their slot on the stream where backward runs, so
/// that their memory is free at once; from there the reduce lane takes them,
/// and only readers of the shards wait for it. The gather lane is ordered after
/// writes to the shards because every function that ends such writes makes it
/// wait.
///
/// Not thread-safe: forward and backward run on one thread at a time.
///
/// Collective functions must be called by all ranks in the same order.
class Pager : public PageFaultHandler {
 public:
  /// Shards the parameters; afterwards each rank holds only its shards. Call
  /// make_slots() next. Collective. `world`, `ledger` and the stores must
  /// outlive the pager.
  /// @param pages of plan_pages() for this module, options and world.
  /// @param stores per page; empty: everything is on the parameters' device.
  Pager(
      World& world,
      torch::nn::Module& module,
      const std::vector<PageSpec>& pages,
      const PagerOptions& options,
      MemoryLedger& ledger,
      std::vector<ShardStores> stores);
  /// As above, with everything on the parameters' device.
  Pager(
      World& world,
      torch::nn::Module& module,
      const PagerOptions& options,
      MemoryLedger& ledger);
  /// Without a prior unwrap(), the parameters' values are lost, and reading
  /// them is an error.
  ~Pager() override;
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  /// Allocates the arenas for unsharded groups and whole gradients, once.
  /// @param budget_bytes for both; by default what PagerOptions asks for.
  /// @throws tessera::Error when a group does not fit, with the minimum needed.
  void make_slots(std::optional<int64_t> budget_bytes = std::nullopt);
  const SlotPlan& slots() const {
    return slots_;
  }

  const PagerOptions& options() const {
    return options_;
  }
  /// Rank in the job.
  int rank() const {
    return agreement_.rank();
  }
  int world_size() const {
    return agreement_.size();
  }
  /// Which rank holds which shard.
  const ShardMesh& mesh() const {
    return mesh_;
  }
  bool is_divided() const {
    return mesh_.shard_size > 1;
  }
  /// Returns whether a single rank holds everything, so that nothing is paged
  /// or agreed on.
  bool is_alone() const {
    return slots_.is_alone();
  }

  const std::vector<std::unique_ptr<PagedGroup>>& groups() const {
    return groups_;
  }
  /// Returns the gradients of group `g`, or null when it is frozen.
  GradientBucket* bucket(size_t g) const {
    return groups_[g]->gradients.get();
  }

  /// The place of parameter number `index`.
  struct ParameterPlace {
    size_t group = 0;
    size_t position = 0; ///< in the group's parameter list
  };
  const std::vector<ParameterPlace>& parameters() const {
    return places_;
  }
  const PagedParameter& parameter(size_t index) const;
  /// Returns the index of a parameter by any of its names.
  /// @throws tessera::Error naming the nearest.
  size_t find_parameter(const std::string& name) const;
  /// Returns the index of a parameter by tensor.
  /// @throws tessera::Error when it is not one.
  size_t find_parameter(const at::Tensor& tensor) const;

  /// Makes the gradients final: reduces what backward left over and agrees
  /// which parameters have one. If they were settled before in this step and no
  /// rank has changed them since, the ranks only agree on the intent.
  /// Collective.
  /// @param intent the operation that follows, on which all ranks must agree.
  void settle_gradients(
      const RankIntent& intent = {RankIntent::Kind::kStep, -1, -1});

  /// Tells the other ranks that this one has failed, and why: they end with an
  /// error instead of waiting for it. The module cannot be trained afterwards.
  void abandon(const std::string& reason) noexcept;

  /// Sums a small CPU tensor over the ranks, in place. Collective.
  void sum_over_ranks(const at::Tensor& values);
  /// Sums a small tensor over the ranks that shard one replica, in place.
  /// Collective, as part of an operation that the ranks have agreed on. Does
  /// not block if the tensor is on the parameters' device and that is an
  /// accelerator.
  void sum_over_shards(const at::Tensor& values);
  /// Takes the maximum over the ranks, in place. Collective.
  void max_over_ranks(const at::Tensor& values);

  /// All-gathers flat tensors that are sharded like a group. Collective.
  /// @param whole [mesh().shard_size * n].
  /// @param shard [n], of the same dtype, both on the parameters' device.
  /// @param what names it in errors.
  void all_gather_shards(
      const at::Tensor& whole,
      const at::Tensor& shard,
      const std::string& what);

  /// Multiplies all settled gradients; the multiplication is deferred to the
  /// next reader.
  void multiply_gradients(const DeferredScalar& factor);

  /// Adds a whole gradient of this rank to a parameter's, as backward would.
  /// Collective.
  void add_gradient(size_t parameter, const at::Tensor& gradient);

  /// True when some parameter has got a gradient, on any rank.
  bool any_gradient() const;

  /// Must be called right after construction if
  /// PagerOptions::update_in_backward is set or `user` wants to be notified.
  /// @param user must outlive the last use of the pager.
  void set_shard_user(ShardUser* user) {
    shard_user_ = user;
  }
  /// Notifies the ShardUser before gradients of a group are changed.
  void before_gradients_change(size_t g);
  /// Returns whether a group was updated since the last begin_next_step().
  bool updated_in_backward() const;

  /// Returns the whole settled gradient of a parameter, or an undefined tensor.
  /// Collective.
  at::Tensor whole_gradient(size_t parameter);

  /// Returns the whole values of a group as the optimizer has them
  /// ([padded_numel], of its master's dtype): more precise than what operators
  /// see if there are master weights. Collective; unplanned.
  at::Tensor whole_master(size_t group);

  /// Must be called after the optimizer has written the shards. Pages still
  /// unsharded are stale and dropped, gradients are reset, and the plan is made
  /// or rewound and its first all-gathers are issued. Collective.
  void begin_next_step();

  /// Makes the current stream wait for all-gathers under way. Must be called
  /// before shards are written outside of a step.
  void wait_for_gather_lane() const {
    gather_lane_.mark().block_current(gather_lane_.device());
  }

  /// Must be called after the shards were written outside of a step. Pages
  /// still unsharded are stale and dropped, gradients (settled before) are
  /// reset. Collective.
  void invalidate();

  /// Unshards groups and holds them until unpin(). Collective.
  void pin(const std::vector<size_t>& groups, bool writable);
  /// Releases them; the shards of `writable` ones take over what was written.
  /// Not collective. Does not throw.
  void unpin(const std::vector<size_t>& groups, bool writable) noexcept;

  /// Gives every parameter its whole value and its memory back. Afterwards the
  /// pager can only be destroyed. Collective.
  void unwrap();
  bool unwrapped() const {
    return unwrapped_;
  }

  /// @throws tessera::Error when a parameter's storage was replaced.
  void check_identity() const;

  const PagerStatistics& statistics() const {
    return statistics_;
  }
  /// Records where compute waits for this pager's transfers.
  TransferWaits& transfer_waits() {
    return transfer_waits_;
  }

  /// The group for small collectives on CPU tensors (norms, flags).
  Communicator& control() {
    return agreement_.control();
  }
  WaitCheck watch_failures() {
    return agreement_.watch_failures();
  }

  // PageFaultHandler
  void on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name)
      override;
  void on_token_add(size_t parameter, const at::Tensor& gradient) override;
  void on_token_zero(size_t parameter) override;

  /// Autograd has accumulated into parameter.grad(). Called by the hook.
  void on_gradient(size_t parameter);

 private:
  // pager.cpp
  std::string describe(const RankIntent& intent) const;

  // pager_setup.cpp
  void check_same_on_all_ranks(const std::vector<PageSpec>& pages);
  void broadcast_seeds(const torch::nn::Module& module);
  void broadcast_module(
      torch::nn::Module& module,
      const std::vector<PageSpec>& pages);
  void install_hooks();
  void remove_hooks();

  // pager_slots.cpp
  PlanLimits plan_limits() const {
    return slots_.limits(gather_arena_.capacity_bytes(), has_budget_);
  }
  std::optional<ResidencyPlan> make_plan(const std::vector<PlanEvent>& events);

  // pager_scopes.cpp
  void write_back(PagedGroup& group) noexcept;
  at::Tensor gather_master(size_t group);

  // pager_faults.cpp
  PagedGroup& group_of(const PageAccess& access) const {
    return *groups_[static_cast<size_t>(access.page->group().number())];
  }
  void touch(std::vector<int> groups, const PageAccess& cause);
  void enter_phase(PlanPhase phase);
  void leave_phase();
  void follow(PlanCursor::Range range, bool wait_for_last);
  /// @param entry the plan's entry that it belongs to.
  void perform(
      const PlanAction& action,
      bool exposed,
      std::optional<size_t> entry = std::nullopt);
  void unshard_planned(
      int group,
      runtime::OffsetAllocator::End end,
      bool exposed);
  void unshard_on_demand(int group);
  void begin_unshard(PagedGroup& group, runtime::Slot slot);
  /// Runs `use_of_stores`; if it throws, tells the other ranks, so that they
  /// need not wait for this one.
  void or_abandon(const std::function<void()>& use_of_stores);
  /// Issues the all-gathers that wait for reads of files, in the order of their
  /// begin_unshard(), up to and including the group's; all if no group is
  /// given.
  void issue_gathers(std::optional<int> up_to = std::nullopt);
  RankIntent intent_to_read(int group) const;
  void wait_ready(int group);
  runtime::Slot take_gather_slot(
      int group,
      runtime::OffsetAllocator::End end = runtime::OffsetAllocator::End::kLow);
  void reshard(int group);
  /// Orders the gather lane and the current stream after the ShardUser's work
  /// on the shard. Blocks.
  void settle_shard(size_t group);
  /// @return whether all ranks have stated that they are settled.
  bool agree_joining_reductions(const RankIntent& intent);
  WaitCheck watch(int group);
  PlanCursor& cursor() {
    return cursors_[static_cast<size_t>(phase_)];
  }

  // pager_gradients.cpp
  void note_arrival(size_t parameter);
  void open_bucket(size_t group);
  /// Takes gradients that arrived without a call of the hook: set by hand, or
  /// because the user has replaced our hook.
  void take_untaken(size_t group);
  void take_all_untaken();
  /// @param is_final nothing reads the group or adds to its gradients until the
  ///   step.
  void begin_reduce(size_t group, bool is_final = false);
  /// Ends reductions for the host: final gradients are handed over, slots are
  /// released or held, except those that are being written to files.
  void finish_reductions();
  /// @return whether they are still being read from the slot.
  bool hand_over_gradients(size_t group);
  runtime::Slot take_reduce_slot(
      const PagedGroup& group,
      const GradientBucket& bucket);
  /// Gives back the slot that has been held for longest. Blocks.
  void release_held_slot();
  /// Releases the slots that are being written to files. Blocks.
  void finish_storing();
  void release_reduce_slot(size_t group);
  /// @throws tessera::Error when the group was updated in this step already.
  void check_not_updated(size_t group, const char* what) const;
  /// Makes the current stream wait for the reduce lane.
  void wait_for_reduce_lane() const {
    reduce_lane_.mark().block_current(reduce_lane_.device());
  }
  void on_backward_end();
  /// Flags of the groups with collected gradients, and of the parameters with a
  /// gradient, on this rank: [groups + parameters] uint8.
  /// @param all also groups whose gradients are kept whole.
  at::Tensor gradient_flags(bool all) const;
  /// Whether this rank's flags are those that the ranks have agreed on, with
  /// nothing left to reduce.
  bool is_settled() const;
  /// Reduces collected gradients, those that are kept whole only if `all`.
  /// @return gradient_flags() of all ranks, before that.
  at::Tensor reduce_leftovers(bool all);
  /// @param flags gradient_flags() of all ranks, whose groups are reduced.
  void agree_on_gradients(const at::Tensor& flags);

  // pager_steps.cpp
  /// Drops pages and gradients.
  /// @param why for the error when a group is held.
  void drop_values(const char* why);
  /// Performs the start actions of the phase's plan.
  void start_plan();
  void count_arrivals();
  void adopt_plans();
  /// Of the train plan, to the groups.
  void note_final_reductions();

  PagerOptions options_;
  std::vector<std::unique_ptr<PagedGroup>> groups_;
  std::vector<ParameterPlace> places_;
  /// Index in places_, under each name that a parameter is registered under.
  std::unordered_map<std::string, size_t> by_name_;
  ShardMesh mesh_;
  SlotPlan slots_;
  RankAgreement agreement_;
  runtime::StreamLane gather_lane_;
  runtime::StreamLane reduce_lane_;
  std::unique_ptr<Communicator> data_; ///< of the ranks that shard one replica
  /// A second communicator over the same ranks, so that all-gathers do not
  /// queue behind reductions; null where there are no lanes.
  std::unique_ptr<Communicator> reductions_;
  /// of the ranks that hold the same shard
  std::unique_ptr<Communicator> replicas_;
  runtime::SlotArena gather_arena_;
  runtime::SlotArena reduce_arena_;
  runtime::OffsetAllocator::End reduce_slot_end_ =
      runtime::OffsetAllocator::End::kLow;
  /// Per parameter, the hook that ours replaced, maybe null; std::nullopt if
  /// there is no hook of ours (requires_grad may change after wrap).
  std::vector<
      std::optional<std::unique_ptr<torch::autograd::PostAccumulateGradHook>>>
      user_hooks_;

  std::array<PlanCursor, kPlanPhaseCount> cursors_;
  PlanPhase phase_ = PlanPhase::kTrain;
  const PagedStorage* reading_ = nullptr; ///< in the touch in progress
  std::deque<int> reading_groups_; ///< see issue_gathers()
  std::vector<size_t> reducing_; ///< groups, in issue order
  /// groups whose slots are being written to files
  std::vector<size_t> storing_;
  ShardUser* shard_user_ = nullptr;
  /// [Note: held slots] Gradients that are applied in backward stay in their
  /// slot while the update reads them, concurrently with the rest of backward.
  /// A group that finds no room waits for the update that began first: slots
  /// take no more memory than without overlap, and backward is at most about
  /// one group ahead.
  struct HeldSlot {
    size_t group;
    runtime::Slot slot;
  };
  std::deque<HeldSlot> held_slots_;
  /// gradient_flags() of all ranks when they were settled last in this step;
  /// undefined: they were not.
  at::Tensor settled_flags_;
  uint64_t epoch_ = 1; ///< of the touch in progress
  /// Number, in autograd, of the backward at whose end gradients are flushed.
  int backward_to_flush_ = -1;
  bool warned_outside_ = false;
  bool has_budget_ = false; ///< for gather slots
  bool unwrapped_ = false;
  PagerStatistics statistics_;
  TransferWaits transfer_waits_;
};

} // namespace tessera::sharding
