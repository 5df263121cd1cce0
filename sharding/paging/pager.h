// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Pager` pages a module's parameters: it unshards groups when operators use
// them, reshards and reduces them as planned, and keeps the ranks in agreement.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/shard_tiers.h"
#include "tessera/sharding/interception/gradient_hooks.h"
#include "tessera/sharding/interception/page_faults.h"
#include "tessera/sharding/pages/page_spec.h"
#include "tessera/sharding/pages/pager_options.h"
#include "tessera/sharding/paging/gather_scopes.h"
#include "tessera/sharding/paging/gradient_agreement.h"
#include "tessera/sharding/paging/gradient_reducer.h"
#include "tessera/sharding/paging/pager_context.h"
#include "tessera/sharding/paging/step_executor.h"
#include "tessera/sharding/paging/step_planner.h"
#include "tessera/sharding/paging/unsharder.h"

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

/// What is decided of a module's pages before they have memory.
struct PagingPlan {
  std::vector<PageSpec> pages; ///< of plan_pages()
  SlotPlan slots;
  SlotRoom room;
};

/// The parameters of one module, sharded over the ranks of a World. It owns the
/// parts that do the work, and calls them:
///
/// - PageTable: the pages and their parameters; PageRanks: the ranks.
/// - Unsharder: slots of unsharded pages, all-gathers, resharding.
/// - GradientReducer: slots of gradients, reductions.
/// - GradientAgreement: which parameters have a gradient on any rank.
/// - StepPlanner: records of steps, and plans made from them.
/// - StepExecutor: page faults and gradients, as planned or on demand.
/// - GatherScopes: whole values outside of operators.
///
/// Each uses those above it only.
///
/// [Note: streams] On a device with streams, all-gathers run on one lane and
/// reductions on another, over separate communicators, and the host waits for
/// neither. Updates run on further lanes, of lower priority. A stream that uses
/// a page waits for its all-gather; the next all-gather into the page's slot
/// waits for every stream that used it. Gradients are copied to their slot on
/// the stream where backward runs, so that their memory is free at once; from
/// there the reduce lane takes them, and only readers of the shards wait for
/// it. The gather lane is ordered after writes to the shards because every
/// function that ends such writes makes it wait.
///
/// Not thread-safe: forward and backward run on one thread at a time.
///
/// Collective functions must be called by all ranks in the same order.
class Pager : public PageFaultHandler {
 public:
  /// Shards the parameters, so that each rank holds only its shards, and
  /// allocates the slots. Collective. What is given by reference or pointer
  /// must outlive the pager.
  /// @param ranks connected for the plan's pages.
  /// @param stores per page; empty: everything is on the parameters' device.
  /// @param scheduler null: nothing works on shards beside forward and
  ///   backward. Not called by the destructor.
  Pager(
      std::unique_ptr<PageRanks> ranks,
      torch::nn::Module& module,
      const PagingPlan& plan,
      const PagerOptions& options,
      MemoryLedger& ledger,
      std::vector<runtime::ShardStores> stores,
      UpdateScheduler* scheduler);
  /// Plans, connects the ranks, and has everything on the parameters' device.
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

  const PagerOptions& options() const {
    return context_.options;
  }
  /// Among the ranks that have the same part of the model.
  int rank() const {
    return context_.ranks->rank();
  }
  int world_size() const {
    return context_.ranks->size();
  }
  /// Which rank holds which shard of the module; pages of divided experts
  /// differ (PageSpec::mesh).
  const DeviceMesh& mesh() const {
    return context_.ranks->of_module().mesh();
  }

  const std::vector<std::unique_ptr<PagedGroup>>& groups() const {
    return context_.pages.pages();
  }
  /// Returns the gradients of group `g`, or null when it is frozen.
  GradientBucket* bucket(size_t g) const {
    return context_.pages.bucket(g);
  }

  /// The place of each parameter, by its index. None after unwrap().
  const std::vector<ParameterPlace>& parameters() const {
    return context_.pages.places();
  }
  const PagedParameter& parameter(size_t index) const {
    return context_.pages.parameter(index);
  }
  /// See PageTable::find().
  size_t find_parameter(const std::string& name) const {
    return context_.pages.find(name);
  }
  size_t find_parameter(const at::Tensor& tensor) const {
    return context_.pages.find(tensor);
  }

  /// Makes the gradients final: reduces what backward left over and agrees
  /// which parameters have one. If they were settled before in this step and no
  /// rank has changed them since, the ranks only agree on the intent.
  /// Collective.
  /// @param intent the operation that follows, on which all ranks must agree.
  void settle_gradients(
      const RankIntent& intent = {RankIntent::Kind::kStep, -1, -1}) {
    agreement_.settle(intent);
  }

  /// Tells the other ranks that this one has failed, and why: they end with an
  /// error instead of waiting for it. The module cannot be trained afterwards.
  void abandon(const std::string& reason) noexcept {
    context_.ranks->abandon(reason);
  }

  /// Sums a small CPU tensor over the ranks, in place. Collective.
  void sum_over_ranks(const at::Tensor& values);
  /// As above, as part of an operation that the ranks have agreed on.
  void sum_over_agreed_ranks(const at::Tensor& values) {
    context_.ranks->sum(values);
  }
  /// pipeline x tensor, see PageMeshes::model.
  const DeviceMesh& model_mesh() const {
    return context_.ranks->model();
  }
  /// See PageRanks.
  void sum_over_parts(const at::Tensor& values) {
    context_.ranks->sum_over_parts(values);
  }
  void max_over_parts(const at::Tensor& values) {
    context_.ranks->max_over_parts(values);
  }
  /// See PageRanks::sum_over_shards(); part of an operation that the ranks have
  /// agreed on.
  void sum_over_shards(
      const at::Tensor& values,
      const std::vector<PageRows>& pages) {
    context_.ranks->sum_over_shards(values, pages);
  }
  /// See PageRanks::meshes() and PageRanks::of_sums().
  const std::vector<std::unique_ptr<MeshRanks>>& meshes() const {
    return context_.ranks->meshes();
  }
  const MeshRanks& ranks_of_sums(size_t g) const {
    return context_.ranks->of_sums(groups()[g]->spec());
  }
  /// All-gathers a flat tensor that is sharded like group `g`. Collective.
  /// @param whole [padded_numel].
  /// @param shard [shard_numel], of the same dtype, both on the parameters'
  ///   device.
  /// @param what names it in errors.
  void all_gather_shards(
      size_t g,
      const at::Tensor& whole,
      const at::Tensor& shard,
      const std::string& what) {
    groups()[g]
        ->ranks.shards()
        .all_gather(whole, shard, what)
        .wait(watch_failures());
  }
  /// Takes the maximum over the ranks, in place. Collective.
  void max_over_ranks(const at::Tensor& values);

  /// Multiplies all settled gradients; the multiplication is deferred to the
  /// next reader.
  void multiply_gradients(const DeferredScalar& factor);

  /// Adds a whole gradient of this rank to a parameter's, as backward would.
  /// Collective.
  void add_gradient(size_t parameter, const at::Tensor& gradient);

  /// True when some parameter has got a gradient, on any rank.
  bool any_gradient() const;

  /// Bytes of reduce slots that are not allocated now.
  int64_t unallocated_bytes() const {
    return reducer_.unallocated_bytes();
  }

  /// Notifies the scheduler before gradients of a group are changed.
  void before_gradients_change(size_t g) {
    reducer_.before_change(g);
  }
  /// Returns whether a group was updated since the last begin_next_step().
  bool updated_in_backward() const {
    return reducer_.updated_in_backward();
  }
  /// Call it around each backward of the pager's engine.
  [[nodiscard]] OwnBackward own_backward() {
    return OwnBackward(context_);
  }
  /// A parameter whose settled gradient has something of another backward
  /// ([Note: own backwards]); nothing: none has.
  std::optional<size_t> find_other_backward() const;
  /// A group whose gradients the user has dropped after they were applied;
  /// nothing: there is none. For settled gradients.
  std::optional<size_t> find_lost_update() const;

  /// Returns the whole settled gradient of a parameter, or an undefined tensor.
  /// Collective.
  at::Tensor whole_gradient(size_t parameter) {
    return scopes_.whole_gradient(parameter);
  }

  /// Returns the whole values of a group as the optimizer has them
  /// ([padded_numel], of its master's dtype): more precise than what operators
  /// see if there are master weights. Collective; unplanned.
  at::Tensor whole_master(size_t group) {
    return scopes_.whole_master(group);
  }
  /// Returns this rank's shard of them: [shard_numel]. Blocks.
  at::Tensor master_shard(size_t group) {
    return scopes_.master_shard(group);
  }
  /// Call it before collectives by which the ranks read or write the files of a
  /// model: a rank that does something else instead gets an error. Collective.
  void agree_on_files(FileUse use) {
    reducer_.agree({RankIntent::Kind::kFiles, static_cast<int64_t>(use), -1});
  }

  /// Must be called after the optimizer has written the shards. Pages still
  /// unsharded are stale and dropped, gradients are reset, and the plan is made
  /// or rewound and its first all-gathers are issued. Collective.
  void begin_next_step() {
    executor_.begin_next_step();
  }

  /// Makes the current stream wait for all-gathers under way. Must be called
  /// before shards are written outside of a step.
  void wait_for_gather_lane() const {
    unsharder_.wait_for_lane();
  }

  /// For destructors: the streams that get freed memory next wait for
  /// all-gathers and reductions under way, and for updates in backward.
  void wait_before_memory_is_freed() const noexcept;

  /// Must be called after the shards were written outside of a step. Pages
  /// still unsharded are stale and dropped, gradients (settled before) are
  /// reset. Collective.
  void invalidate() {
    executor_.invalidate();
  }

  /// Unshards groups and holds them until unpin(). Collective.
  void pin(const std::vector<size_t>& groups, bool writable) {
    scopes_.pin(groups, writable);
  }
  /// Releases them; the shards of `writable` ones take over what was written.
  /// Not collective. Does not throw.
  void unpin(const std::vector<size_t>& groups, bool writable) noexcept {
    scopes_.unpin(groups, writable);
  }

  /// Gives every parameter its whole value and its memory back. Afterwards the
  /// pager can only be destroyed. Collective.
  void unwrap();
  bool unwrapped() const {
    return hooks_ == nullptr;
  }

  /// @throws tessera::Error when a parameter's storage was replaced.
  void check_identity() const {
    context_.pages.check_identity();
  }

  const PagerStatistics& statistics() const {
    return context_.statistics;
  }
  /// Records where compute waits for this pager's transfers.
  TransferWaits& transfer_waits() {
    return context_.waits;
  }

  /// The ranks that have the same part of the model, for small collectives on
  /// CPU tensors that all of them have agreed on.
  Communicator& control() {
    return context_.ranks->control();
  }
  /// A check for waits on collectives of the caller.
  WaitCheck watch_failures() {
    return context_.ranks->watch_failures();
  }

  // PageFaultHandler
  void on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name)
      override;
  void on_view(const PagedStorage& storage) override;
  void on_token_add(size_t parameter, const at::Tensor& gradient) override;
  void on_token_zero(size_t parameter) override;

 private:
  Pager(
      World& world,
      torch::nn::Module& module,
      const PagingPlan& plan,
      const PagerOptions& options,
      MemoryLedger& ledger);

  PagerContext context_;
  Unsharder unsharder_;
  GradientReducer reducer_;
  GradientAgreement agreement_;
  StepPlanner planner_;
  StepExecutor executor_;
  GatherScopes scopes_;
  std::unique_ptr<GradientHooks> hooks_; ///< null after unwrap()
};

} // namespace tessera::sharding
