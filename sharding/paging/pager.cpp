// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/lazy/lazy.h"

#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

PagingPlan plan_on_device(
    const World& world,
    const torch::nn::Module& module,
    const PagerOptions& options) {
  std::vector<PageSpec> pages = plan_pages(
      module,
      options,
      shard_mesh(world.rank(), world.size(), options.shard_ranks));
  const SlotPlan slots(
      pages, std::vector<runtime::ShardTiers>(pages.size()), options);
  return {std::move(pages), slots, slots.budget()};
}

} // namespace

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const PagerOptions& options,
    MemoryLedger& ledger)
    : Pager(
          world,
          module,
          plan_on_device(world, module, options),
          options,
          ledger) {}

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const PagingPlan& plan,
    const PagerOptions& options,
    MemoryLedger& ledger)
    : Pager(
          std::make_unique<PageRanks>(
              world,
              shard_mesh(world.rank(), world.size(), options.shard_ranks),
              plan.pages),
          module,
          plan,
          options,
          ledger,
          {},
          nullptr) {}

Pager::Pager(
    std::unique_ptr<PageRanks> ranks,
    torch::nn::Module& module,
    const PagingPlan& plan,
    const PagerOptions& options,
    MemoryLedger& ledger,
    std::vector<runtime::ShardStores> stores,
    UpdateScheduler* scheduler)
    : context_{
          .options = options,
          .slots = plan.slots,
          .pages = {},
          .ranks = std::move(ranks),
          .scheduler = scheduler,
          .has_budget = plan.budget.has_budget},
      unsharder_(context_, plan.pages.front().device, ledger),
      reducer_(context_, unsharder_, plan.pages.front().device, ledger),
      agreement_(context_, reducer_),
      planner_(plan.pages.size(), options.update_in_backward),
      executor_(context_, planner_, unsharder_, reducer_, agreement_),
      scopes_(context_, unsharder_, reducer_) {
  ensure_page_key_registered();
  if (options.broadcast_from_rank0 && context_.ranks->size() > 1) {
    broadcast_module(*context_.ranks, module, plan.pages);
  }
  context_.ranks->check_same_seeds(module);
  convert_buffers(module, options.precision);
  stores.resize(plan.pages.size());
  for (const PageSpec& page : plan.pages) {
    context_.pages.add(std::make_unique<Page>(
        page,
        *this,
        context_.ranks->of(page),
        ledger,
        stores[context_.pages.size()]));
  }
  materialize(module); // lazy tensors that are ignored
  for (const auto& page : context_.pages) {
    if (page->trainable()) {
      runtime::ShardStore* const store =
          stores[static_cast<size_t>(page->number())].gradients;
      page->gradients = std::make_unique<GradientBucket>(
          *page,
          *this,
          page->ranks.replicas(),
          ledger,
          page->spec().keeps_gradient_shard ? store : nullptr,
          page->spec().keeps_gradient_shard && scheduler != nullptr);
    }
  }
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < context_.pages.entries().size(); ++i) {
    parameters.push_back(context_.pages.parameter(i).record.tensor);
  }
  hooks_ = std::make_unique<GradientHooks>(
      parameters, [this](size_t i) { executor_.on_gradient(i); });
  for (const auto& page : context_.pages) {
    if (!context_.slots.is_paged(page->spec())) {
      page->attach_shard(options.update_in_backward);
      if (context_.is_alone()) {
        unsharder_.mark_in_use(*page); // no use has to be detected
      }
    }
  }
  reducer_.reserve_slots(plan.budget.reduce_bytes);
  unsharder_.reserve_slots(plan.budget.gather_bytes);
}

Pager::~Pager() {
  hooks_.reset();
  wait_before_memory_is_freed();
  // Reductions in progress end before their communicators do.
  for (const auto& page : context_.pages) {
    page->gradients.reset();
  }
}

void Pager::wait_before_memory_is_freed() const noexcept {
  unsharder_.wait_before_memory_is_freed();
  reducer_.wait_before_memory_is_freed();
}

void Pager::sum_over_ranks(const at::Tensor& values) {
  reducer_.agree({RankIntent::Kind::kSum, values.numel(), -1});
  context_.ranks->sum(values);
}

void Pager::max_over_ranks(const at::Tensor& values) {
  reducer_.agree({RankIntent::Kind::kSum, values.numel(), -1});
  context_.ranks->max(values);
}

void Pager::add_gradient(size_t parameter, const at::Tensor& gradient) {
  Page& page = context_.pages.entries()[parameter].page;
  TESSERA_CHECK(
      page.gradients != nullptr,
      "parameter '{}' is frozen and takes no gradient.",
      context_.pages.parameter(parameter).record.name());
  reducer_.agree(
      {RankIntent::Kind::kAddGradient,
       page.number(),
       static_cast<int64_t>(parameter)});
  reducer_.collect_pending(page);
  reducer_.add(parameter, gradient);
}

void Pager::unwrap() {
  if (unwrapped()) {
    return;
  }
  reducer_.agree({RankIntent::Kind::kUnwrap, -1, -1});
  context_.pages.check_identity();
  reducer_.finish();
  scopes_.restore_all();
  hooks_.reset();
  context_.pages.forget_parameters();
}

void Pager::on_access(c10::ArrayRef<PageAccess> accesses, const char* op_name) {
  executor_.on_access(accesses, op_name);
}

void Pager::on_view(const PagedStorage& storage) {
  // Not an event of the plan: a rank may do it alone.
  unsharder_.settle_shard(context_.pages[storage.page().number]);
}

void Pager::on_token_add(size_t parameter, const at::Tensor& gradient) {
  reducer_.add(parameter, gradient);
  if (context_.engine_backwards == 0) {
    context_.pages.bucket_of(parameter)->note_other_backward(
        context_.pages.entries()[parameter].position);
  }
}

void Pager::on_token_zero(size_t parameter) {
  reducer_.zero(parameter);
}

} // namespace tessera::sharding
