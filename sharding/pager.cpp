// SPDX-License-Identifier: Apache-2.0
// `Pager`: construction, lookup, and small collectives.
#include "tessera/sharding/pager.h"
#include "tessera/sharding/lazy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/deferred_init.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tessera::sharding {

namespace {

c10::Device device_of(const std::vector<GroupSpec>& specs) {
  return specs.front().parameters.front().tensor.device();
}

/// Checks the module before the ranks are connected, so that all ranks report
/// an error in the module and none fails because another one has exited.
std::vector<GroupSpec> checked_groups(
    const torch::nn::Module& module,
    const PagerOptions& options) {
  check(options);
  ensure_page_key_registered();
  auto census = take_parameter_census(module, options.groups.ignored);
  choose_dtypes(module, options.precision, census);
  return make_groups(module, census, options.groups);
}

ShardStores stores_for(ShardPlacement* placement, size_t group) {
  if (placement == nullptr) {
    return {};
  }
  return {placement->parameter_store(group), placement->master_store(group)};
}

} // namespace

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const PagerOptions& options,
    MemoryLedger& ledger,
    ShardPlacement* placement)
    : Pager(
          world,
          module,
          checked_groups(module, options),
          options,
          ledger,
          placement) {}

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const std::vector<GroupSpec>& specs,
    const PagerOptions& options,
    MemoryLedger& ledger,
    ShardPlacement* placement)
    : options_(options),
      mesh_(world.rank(), world.size(), options.shard_ranks),
      agreement_(
          world,
          "engine",
          [this](const RankIntent& intent) { return describe(intent); }),
      gather_lane_(device_of(specs)),
      reduce_lane_(device_of(specs)),
      data_(world.new_communicator(
          "engine shards",
          device_of(specs),
          mesh_.shard_group)),
      reductions_(
          reduce_lane_.is_real() ? world.new_communicator(
                                       "engine reductions",
                                       device_of(specs),
                                       mesh_.shard_group)
                                 : nullptr),
      replicas_(world.new_communicator(
          "engine replicas",
          device_of(specs),
          mesh_.replicate_group)),
      gather_arena_(ledger, MemoryPurpose::kGatherSlots, device_of(specs)),
      reduce_arena_(ledger, MemoryPurpose::kReduceSlots, device_of(specs)) {
  check_same_on_all_ranks(specs);
  if (placement != nullptr) {
    placement->plan(specs, mesh_);
  }
  if (options.broadcast_from_rank0 && world.size() > 1) {
    broadcast_module(module, specs);
  }
  convert_buffers(module, options.precision);
  for (const GroupSpec& spec : specs) {
    const size_t group = groups_.size();
    groups_.push_back(std::make_unique<ParamGroup>(
        spec,
        places_.size(),
        options.precision,
        *this,
        mesh_.shard_rank,
        mesh_.shard_size,
        ledger,
        stores_for(placement, group)));
    groups_.back()->number = static_cast<int>(group);
    pages_.push_back(is_divided() || groups_.back()->is_stored());
    zero_stages_.push_back(spec.zero_stage);
    is_apart_.push_back(is_apart(spec, options.groups));
    reshards_after_forward_.push_back(spec.reshard_after_forward);
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      for (const std::string& name : spec.parameters[i].names) {
        by_name_.emplace(name, places_.size());
      }
      places_.push_back({group, i});
    }
  }
  materialize(module); // lazy tensors that are ignored
  for (const auto& group : groups_) {
    if (!group->trainable()) {
      buckets_.push_back(nullptr);
      continue;
    }
    buckets_.push_back(std::make_unique<GradientBucket>(
        *group,
        gradient_types(
            options,
            mesh_,
            group->dtype(),
            zero_stages_[static_cast<size_t>(group->number)]),
        *this,
        mesh_,
        *replicas_,
        ledger,
        placement != nullptr && !options.update_in_backward
            ? placement->gradient_store(buckets_.size())
            : nullptr,
        /*keeps_shard=*/!options.update_in_backward));
  }
  is_alone_ =
      world_size() == 1 && !pages_any() &&
      std::none_of(buckets_.begin(), buckets_.end(), [](const auto& bucket) {
        return bucket && bucket->is_stored();
      });
  find_tied_groups(module);
  unshard_sequence_.resize(groups_.size());
  reduce_sequence_.resize(groups_.size());
  writable_pins_.resize(groups_.size());
  final_.resize(groups_.size());
  arrivals_.resize(groups_.size());
  expected_arrivals_.resize(groups_.size());
  install_hooks();
  for (const auto& group : groups_) {
    if (!pages_[static_cast<size_t>(group->number)]) {
      group->attach_shard(options.update_in_backward);
      // When alone, no use has to be detected.
      group->touched_epoch = is_alone() ? epoch_ : 0;
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
  sum_over_ranks(values);
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
