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
#include <vector>

namespace tessera::sharding {

/// What is decided of a module's pages before they have memory.
struct PagingPlan {
  std::vector<PageSpec> pages; ///< of plan_pages()
  SlotPlan slots;
  SlotBudget budget;
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
  /// The pages and their parameters. No parameters after unwrap().
  const PageTable& pages() const {
    return context_.pages;
  }
  /// The ranks that divide them. What is done together with other ranks is part
  /// of an operation on which they have agreed.
  PageRanks& ranks() const {
    return *context_.ranks;
  }
  /// Returns whether a pointer into the memory of a page's parameters points to
  /// them for longer than an operator takes: the page is not paged, or a scope
  /// holds it.
  bool has_lasting_memory(int page) const {
    const Page& one = context_.pages[page];
    return !context_.slots.is_paged(one.spec()) || one.pins.all > 0;
  }
  /// Values outside of operators.
  GatherScopes& scopes() {
    return scopes_;
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

  /// Sums a small CPU tensor over the ranks, in place. Collective.
  void sum_over_ranks(const at::Tensor& values);
  /// Takes the maximum over the ranks, in place. Collective.
  void max_over_ranks(const at::Tensor& values);

  /// Adds a whole gradient of this rank to a parameter's, as backward would.
  /// Collective.
  void add_gradient(size_t parameter, const at::Tensor& gradient);

  /// Bytes of reduce slots that are not allocated now.
  int64_t unallocated_bytes() const {
    return reducer_.unallocated_bytes();
  }

  /// Notifies the scheduler before gradients of a page are changed.
  void before_gradients_change(const Page& page) {
    reducer_.before_change(page);
  }
  /// Call it around each backward of the pager's engine.
  [[nodiscard]] EngineBackward engine_backward() {
    return EngineBackward(context_);
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

  /// Gives every parameter its whole value and its memory back. Afterwards the
  /// pager can only be destroyed. Collective.
  void unwrap();
  bool unwrapped() const {
    return hooks_ == nullptr;
  }

  const PagerStatistics& statistics() const {
    return context_.statistics;
  }
  /// Records where compute waits for this pager's transfers.
  TransferWaits& transfer_waits() {
    return context_.waits;
  }

 private:
  // PageFaultHandler
  void on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name)
      override;
  void on_view(const PagedStorage& storage) override;
  void on_token_add(size_t parameter, const at::Tensor& gradient) override;
  void on_token_zero(size_t parameter) override;

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
