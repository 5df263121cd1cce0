// SPDX-License-Identifier: Apache-2.0
// `Pager`: construction, lookup, and small collectives.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/lazy.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

MemoryTier tier_of(const runtime::ShardStore* store) {
  return store != nullptr ? store->tier() : MemoryTier::kDevice;
}

std::vector<ShardTiers> tiers_of(
    const std::vector<ShardStores>& stores,
    size_t pages) {
  std::vector<ShardTiers> tiers;
  for (const ShardStores& of : stores) {
    tiers.push_back(
        {tier_of(of.parameters), tier_of(of.gradients), tier_of(of.state)});
  }
  tiers.resize(pages);
  return tiers;
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
          plan_pages(
              module,
              options,
              ShardMesh(world.rank(), world.size(), options.shard_ranks)),
          options,
          ledger,
          {}) {}

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const std::vector<PageSpec>& pages,
    const PagerOptions& options,
    MemoryLedger& ledger,
    std::vector<ShardStores> stores)
    : options_(options),
      mesh_(world.rank(), world.size(), options.shard_ranks),
      slots_(pages, tiers_of(stores, pages.size()), options, mesh_),
      agreement_(
          world,
          "engine",
          [this](const RankIntent& intent) { return describe(intent); }),
      gather_lane_(pages.front().device),
      reduce_lane_(pages.front().device),
      data_(world.new_communicator(
          "engine shards",
          pages.front().device,
          mesh_.shard_group)),
      reductions_(
          reduce_lane_.is_real() ? world.new_communicator(
                                       "engine reductions",
                                       pages.front().device,
                                       mesh_.shard_group)
                                 : nullptr),
      replicas_(world.new_communicator(
          "engine replicas",
          pages.front().device,
          mesh_.replicate_group)),
      gather_arena_(ledger, MemoryPurpose::kGatherSlots, pages.front().device),
      reduce_arena_(ledger, MemoryPurpose::kReduceSlots, pages.front().device) {
  ensure_page_key_registered();
  check_same_on_all_ranks(pages);
  if (options.broadcast_from_rank0 && world.size() > 1) {
    broadcast_module(module, pages);
  }
  convert_buffers(module, options.precision);
  stores.resize(pages.size());
  for (const PageSpec& page : pages) {
    const size_t g = groups_.size();
    groups_.push_back(std::make_unique<PagedGroup>(
        page, *this, mesh_.shard_rank, ledger, stores[g]));
    for (const PagedParameter& parameter : page.parameters) {
      for (const std::string& name : parameter.record.names) {
        by_name_.emplace(name, parameter.index);
      }
      places_.push_back({g, parameter.index - page.parameters.front().index});
    }
  }
  materialize(module); // lazy tensors that are ignored
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->trainable()) {
      groups_[g]->gradients = std::make_unique<GradientBucket>(
          *groups_[g],
          *this,
          mesh_,
          *replicas_,
          ledger,
          options.update_in_backward ? nullptr : stores[g].gradients,
          /*keeps_shard=*/!options.update_in_backward);
    }
  }
  install_hooks();
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (!slots_.is_paged(g)) {
      groups_[g]->attach_shard(options.update_in_backward);
      // When alone, no use has to be detected.
      groups_[g]->touched_epoch = is_alone() ? epoch_ : 0;
    }
  }
}

Pager::~Pager() {
  remove_hooks();
  // The memory that is freed now is next used by the current stream.
  try {
    wait_for_gather_lane();
    wait_for_reduce_lane();
  } catch (const std::exception& failure) {
    log_warning("the device failed: {}", failure.what());
  }
  // Reductions in progress end before their communicators do.
  for (const auto& group : groups_) {
    group->gradients.reset();
  }
}

const PagedParameter& Pager::parameter(size_t index) const {
  const ParameterPlace& place = places_[index];
  return groups_[place.group]->parameters()[place.position];
}

size_t Pager::find_parameter(const std::string& name) const {
  if (const auto found = by_name_.find(name); found != by_name_.end()) {
    return found->second;
  }
  std::vector<std::string> all_names;
  for (size_t i = 0; i < places_.size(); ++i) {
    const std::vector<std::string>& names = parameter(i).record.names;
    all_names.insert(all_names.end(), names.begin(), names.end());
  }
  const std::string nearest = runtime::nearest_name(name, all_names);
  TESSERA_FAIL(
      "there is no parameter '{}' in this engine{}",
      name,
      nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
}

size_t Pager::find_parameter(const at::Tensor& tensor) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (parameter(i).record.tensor.is_same(tensor)) {
      return i;
    }
  }
  TESSERA_FAIL(
      "the given tensor of shape {} is not a parameter of this engine. Pass the tensor that the module registered, not a view or copy of it.",
      tensor.sizes());
}

std::string Pager::describe(const RankIntent& intent) const {
  const auto group = [&] {
    return "group '" + groups_[static_cast<size_t>(intent.group)]->name() + "'";
  };
  const auto name = [&] {
    return "parameter '" +
           parameter(static_cast<size_t>(intent.parameter)).record.name() + "'";
  };
  switch (intent.kind) {
    case RankIntent::Kind::kUnshard:
      return "reads " + name() + " (" + group() + ")";
    case RankIntent::Kind::kReduce:
      return "reduces the gradients of " + group();
    case RankIntent::Kind::kBackwardEnd:
      return "has ended its backward";
    case RankIntent::Kind::kGatherScope:
      return "gathers " + group();
    case RankIntent::Kind::kForwardPhase:
      return static_cast<PlanPhase>(intent.group) == PlanPhase::kTrain
                 ? "begins the forward of a training step"
                 : "begins a forward without gradients";
    case RankIntent::Kind::kClip:
      return "clips the gradients";
    case RankIntent::Kind::kReadGradient:
      return "reads the gradient of " + name();
    case RankIntent::Kind::kAddGradient:
      return "adds to the gradient of " + name();
    case RankIntent::Kind::kStep:
      return "applies the gradients";
    case RankIntent::Kind::kSum:
      return "adds up " + std::to_string(intent.group) + " numbers";
    case RankIntent::Kind::kUnwrap:
      return "unwraps the module";
  }
  return "does something unknown";
}

void Pager::abandon(const std::string& reason) noexcept {
  agreement_.report(reason);
  for (Communicator* communicator :
       {data_.get(), reductions_.get(), replicas_.get()}) {
    if (communicator != nullptr) {
      communicator->abort();
    }
  }
}

void Pager::check_identity() const {
  for (const auto& group : groups_) {
    group->check_identity();
  }
}

void Pager::sum_over_ranks(const at::Tensor& values) {
  agree_joining_reductions({RankIntent::Kind::kSum, values.numel(), -1});
  control().all_reduce_sum(values, "sum over the ranks").wait(watch_failures());
}

void Pager::all_gather_shards(
    const at::Tensor& whole,
    const at::Tensor& shard,
    const std::string& what) {
  data_->all_gather(whole, shard, what).wait(watch_failures());
}

void Pager::sum_over_shards(const at::Tensor& values) {
  if (!values.is_cpu()) {
    data_->all_reduce_sum(values, "sum over the shards").wait(watch_failures());
    return;
  }
  control().all_reduce_sum(values, "sum over the ranks").wait(watch_failures());
  if (mesh_.replicas > 1) {
    values.div_(mesh_.replicas); // every replica has been added
  }
}

void Pager::max_over_ranks(const at::Tensor& values) {
  agree_joining_reductions({RankIntent::Kind::kSum, values.numel(), -1});
  control()
      .all_reduce_max(values, "maximum over the ranks")
      .wait(watch_failures());
}

} // namespace tessera::sharding
