// SPDX-License-Identifier: Apache-2.0
// Construction, lookup, gather scopes and the end of paging.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/deferred_init.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

/// Tells the pager that a parameter's gradient is there, after whatever hook
/// the user had installed.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(
      Pager& pager,
      size_t parameter,
      torch::autograd::PostAccumulateGradHook* user_hook)
      : pager_(pager), parameter_(parameter), user_hook_(user_hook) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (user_hook_ != nullptr) {
      (*user_hook_)(tensor);
    }
    pager_.on_gradient(parameter_);
  }

 private:
  Pager& pager_;
  size_t parameter_;
  torch::autograd::PostAccumulateGradHook* user_hook_; ///< owned by the pager
};

c10::Device device_of(const std::vector<GroupSpec>& specs) {
  return specs.front().parameters.front().tensor.device();
}

/// What can be wrong with a module is found before the ranks are connected, so
/// that none of them fails because another one has left with that error.
std::vector<GroupSpec> checked_groups(
    const torch::nn::Module& module,
    const PagerOptions& options) {
  check(options);
  ensure_page_key_registered();
  auto census = take_parameter_census(module, options.groups.ignored);
  choose_dtypes(module, options.precision, census);
  return make_groups(module, census, options.groups);
}

std::string signature_of(const std::vector<GroupSpec>& specs) {
  std::ostringstream text;
  for (const auto& spec : specs) {
    text << spec.name << ":";
    for (const auto& record : spec.parameters) {
      text << record.name() << record.tensor.sizes()
           << record.tensor.scalar_type() << record.dtype
           << record.tensor.requires_grad();
      if (const auto* deferred =
              deferred_init(*record.tensor.storage().unsafeGetStorageImpl())) {
        text << "deferred" << deferred->seeds.size();
      }
      text << ";";
    }
  }
  return text.str();
}

} // namespace

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const PagerOptions& options,
    MemoryLedger& ledger)
    : Pager(world, module, checked_groups(module, options), options, ledger) {}

Pager::Pager(
    World& world,
    torch::nn::Module& module,
    const std::vector<GroupSpec>& specs,
    const PagerOptions& options,
    MemoryLedger& ledger)
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
        ledger));
    groups_.back()->number = static_cast<int>(group);
    zero_stages_.push_back(spec.zero_stage);
    reshards_after_forward_.push_back(spec.reshard_after_forward);
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      places_.push_back({group, i});
    }
  }
  materialize(module); // what is lazy and ignored
  for (const auto& group : groups_) {
    if (!group->trainable()) {
      buckets_.push_back(nullptr);
      continue;
    }
    buckets_.push_back(std::make_unique<GradientBucket>(
        *group,
        gradient_dtype(options.precision, group->dtype()),
        *this,
        mesh_,
        *replicas_,
        ledger));
  }
  find_tied_groups(module);
  unshard_sequence_.resize(groups_.size());
  reduce_sequence_.resize(groups_.size());
  writable_pins_.resize(groups_.size());
  install_hooks();
  if (!is_divided()) {
    for (const auto& group : groups_) {
      group->attach_shard();
      // Alone, nothing has to be noticed.
      group->touched_epoch = world_size() == 1 ? epoch_ : 0;
    }
  }
}

Pager::~Pager() {
  remove_hooks();
  // The memory that is freed now serves the current stream next.
  try {
    gather_lane_.mark().block_current(gather_lane_.device());
    wait_for_reduce_lane();
  } catch (const std::exception& failure) {
    log_warning("the device failed: ", failure.what());
  }
}

void Pager::check_same_on_all_ranks(const std::vector<GroupSpec>& specs) {
  if (world_size() == 1) {
    return;
  }
  const auto hash =
      static_cast<int64_t>(std::hash<std::string>{}(signature_of(specs)));
  const at::Tensor mine = at::tensor({hash}, at::kLong);
  const at::Tensor all = at::empty({world_size()}, at::kLong);
  control().all_gather(all, mine, "comparing the module over the ranks").wait();
  for (int r = 1; r < world_size(); ++r) {
    TESSERA_CHECK(
        all[r].item<int64_t>() == all[0].item<int64_t>(),
        "wrap: the module on rank ",
        r,
        " differs from rank 0's in the names, shapes, dtypes or requires_grad "
        "of its parameters, or in that they are lazy. Build the same module "
        "on every rank.");
  }
}

void Pager::broadcast_seeds(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<uint64_t>> seeds;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto* deferred =
        is_deferred(parameter)
            ? deferred_init(*parameter.storage().unsafeGetStorageImpl())
            : nullptr;
    for (size_t i = 0; deferred != nullptr && i < deferred->seeds.size(); ++i) {
      if (std::find(seeds.begin(), seeds.end(), deferred->seeds[i]) ==
          seeds.end()) {
        seeds.push_back(deferred->seeds[i]);
      }
    }
  }
  if (seeds.empty()) {
    return;
  }
  const at::Tensor values =
      at::empty({static_cast<int64_t>(seeds.size())}, at::kLong);
  for (size_t i = 0; i < seeds.size(); ++i) {
    values[static_cast<int64_t>(i)] = static_cast<int64_t>(*seeds[i]);
  }
  control()
      .broadcast(values, 0, "broadcast of the seeds of lazy parameters")
      .wait();
  for (size_t i = 0; i < seeds.size(); ++i) {
    *seeds[i] =
        static_cast<uint64_t>(values[static_cast<int64_t>(i)].item<int64_t>());
  }
}

void Pager::broadcast_module(
    torch::nn::Module& module,
    const std::vector<GroupSpec>& specs) {
  const c10::NoGradGuard no_grad;
  broadcast_seeds(module);
  std::unordered_set<const c10::StorageImpl*> done;
  const auto send = [&](const at::Tensor& tensor, const std::string& name) {
    const c10::Storage& storage = tensor.storage();
    if (storage.nbytes() == 0 || is_deferred(tensor) ||
        !done.insert(storage.unsafeGetStorageImpl()).second) {
      return;
    }
    const auto bytes = at::from_blob(
        storage.mutable_data(),
        {static_cast<int64_t>(storage.nbytes())},
        at::TensorOptions().dtype(at::kByte).device(tensor.device()));
    const std::string what = "broadcast of '" + name + "'";
    // A buffer may be on the host although the parameters are not.
    if (tensor.is_cpu()) {
      control().broadcast(bytes, 0, what).wait();
      return;
    }
    // First to rank 0's counterparts, then from each of them to its copy.
    if (mesh_.shard_rank == 0) {
      replicas_->broadcast(bytes, 0, what).wait();
    }
    data_->broadcast(bytes, 0, what).wait();
  };
  for (const GroupSpec& spec : specs) {
    for (const ParameterRecord& record : spec.parameters) {
      send(record.tensor, record.name());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && item.value().has_storage()) {
      send(item.value(), item.key());
    }
  }
}

void Pager::install_hooks() {
  user_hooks_.resize(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& tensor = parameter(i).record.tensor;
    if (!tensor.requires_grad()) {
      continue;
    }
    user_hooks_[i] =
        std::move(torch::autograd::impl::post_acc_grad_hooks(tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor,
        std::make_unique<GradientHook>(*this, i, user_hooks_[i]->get()));
  }
}

void Pager::remove_hooks() {
  for (size_t i = 0; i < user_hooks_.size(); ++i) {
    if (user_hooks_[i]) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          parameter(i).record.tensor, std::move(*user_hooks_[i]));
    }
  }
  user_hooks_.clear();
}

void Pager::find_tied_groups(const torch::nn::Module& module) {
  std::set<int> tied;
  for (const auto& group : groups_) {
    for (const PagedParameter& parameter : group->parameters()) {
      if (parameter.record.names.size() > 1) {
        tied.insert(group->number);
      }
    }
  }
  // `head->weight = embedding->weight` leaves the head's own registered.
  for (const auto& part : module.modules(/*include_self=*/false)) {
    const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(part.get());
    const auto registered = part->named_parameters(/*recurse=*/false);
    const at::Tensor* own =
        linear != nullptr ? registered.find("weight") : nullptr;
    if (own == nullptr || own->is_same(linear->weight)) {
      continue;
    }
    for (const ParameterPlace& place : places_) {
      const ParamGroup& group = *groups_[place.group];
      if (group.parameters()[place.position].record.tensor.is_same(
              linear->weight)) {
        tied.insert(group.number);
      }
    }
  }
  tied_groups_.assign(tied.begin(), tied.end());
}

bool Pager::keeps_whole_gradients(size_t g) const {
  const int stage = zero_stages_[g].value_or(options_.zero_stage);
  return options_.accumulation.value_or(
             stage == 1 ? GradientAccumulation::kKeepWhole
                        : GradientAccumulation::kReduceEachBackward) ==
         GradientAccumulation::kKeepWhole;
}

std::vector<PlanEvent> Pager::expected_events() const {
  std::vector<bool> trainable;
  std::vector<bool> scattered;
  for (const auto& group : groups_) {
    trainable.push_back(group->trainable());
    scattered.push_back(group->scattered());
  }
  auto events = registration_order_events(trainable, scattered);
  // A head that shares its weight with the embedding brings it in again where
  // forward ends.
  const auto backward =
      std::find_if(events.begin(), events.end(), [](const PlanEvent& event) {
        return event.in_backward;
      });
  std::vector<PlanEvent> again;
  for (const int group : tied_groups_) {
    again.push_back({PlanEvent::Kind::kTouch, {group}, false});
    again.push_back({PlanEvent::Kind::kTouch, {group}, true});
  }
  events.insert(backward, again.begin(), again.end());
  return events;
}

PlanLimits Pager::plan_limits() const {
  PlanLimits limits;
  limits.capacity_bytes = gather_arena_.capacity_bytes();
  limits.prefetch_depth = options_.prefetch_depth;
  for (size_t g = 0; g < groups_.size(); ++g) {
    limits.group_bytes.push_back(groups_[g]->padded_bytes());
    if (!is_divided()) {
      limits.capacity_bytes +=
          groups_[g]->padded_bytes() + OffsetAllocator::kAlignment;
    }
    const bool whole = zero_stages_[g].value_or(options_.zero_stage) < 3;
    limits.stays.push_back(
        !has_budget_ && !reshards_after_forward_[g].value_or(!whole));
    limits.keeps_gradients.push_back(keeps_whole_gradients(g));
  }
  return limits;
}

int64_t Pager::reduce_slot_bytes(const std::vector<PlanEvent>& events) const {
  int64_t kept = 0;
  std::vector<int64_t> passing;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t bytes = buckets_[g] ? buckets_[g]->padded_bytes() : 0;
    const bool keeps = keeps_whole_gradients(g);
    kept += keeps ? bytes + OffsetAllocator::kAlignment : 0;
    passing.push_back(keeps ? 0 : bytes);
  }
  return kept + peak_reduce_bytes(events, passing);
}

void Pager::make_slots(std::optional<int64_t> slot_bytes) {
  gather_lane_.follow_current(); // the shards were just filled
  if (world_size() == 1) {
    return;
  }
  const auto events = expected_events();
  reduce_arena_.resize(reduce_slot_bytes(events));
  if (!is_divided()) {
    return;
  }
  std::optional<int64_t> gather_bytes = options_.gather_bytes;
  if (slot_bytes) {
    gather_bytes = *slot_bytes - reduce_arena_.capacity_bytes();
  }
  has_budget_ = gather_bytes.has_value();
  const PlanLimits limits = plan_limits();
  const int64_t wanted = capacity_without_exposed_unshards(events, limits);
  TESSERA_CHECK(
      !gather_bytes || *gather_bytes >= wanted,
      "the memory budget is ",
      wanted - gather_bytes.value_or(0),
      " bytes too small: besides shards, gradients and optimizer state it must "
      "hold ",
      wanted,
      " bytes of unsharded parameters (the largest neighbouring groups at "
      "once). Raise memory.device_bytes, use more ranks, or divide the largest "
      "module.");
  int64_t everything = 0;
  for (const int64_t bytes : limits.group_bytes) {
    everything += bytes + OffsetAllocator::kAlignment;
  }
  gather_arena_.resize(std::min(gather_bytes.value_or(wanted), everything));
}

const PagedParameter& Pager::parameter(size_t index) const {
  const ParameterPlace& place = places_[index];
  return groups_[place.group]->parameters()[place.position];
}

size_t Pager::find_parameter(const std::string& name) const {
  std::vector<std::string> all_names;
  for (size_t i = 0; i < places_.size(); ++i) {
    for (const std::string& known : parameter(i).record.names) {
      if (known == name) {
        return i;
      }
      all_names.push_back(known);
    }
  }
  const std::string nearest = nearest_name(name, all_names);
  TESSERA_FAIL(
      "there is no parameter '",
      name,
      "' in this engine",
      nearest.empty() ? "." : "; did you mean '" + nearest + "'?");
}

size_t Pager::find_parameter(const at::Tensor& tensor) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (parameter(i).record.tensor.is_same(tensor)) {
      return i;
    }
  }
  TESSERA_FAIL(
      "the given tensor of shape ",
      tensor.sizes(),
      " is not a parameter of this engine. Pass the tensor that the module "
      "registered, not a view or copy of it.");
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

void Pager::pin(const std::vector<size_t>& groups, bool writable) {
  std::vector<size_t> held;
  try {
    for (const size_t g : groups) {
      ParamGroup& group = *groups_[g];
      if (group.residency() == Residency::kUnsharding) {
        wait_ready(static_cast<int>(g));
      }
      if (group.residency() == Residency::kSharded) {
        agree_joining_reductions(
            {RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
        group.begin_unshard(
            *data_,
            gather_arena_.allocate_outside(
                group.layout().padded_numel(), group.dtype()),
            gather_lane_);
        group.end_unshard(watch_failures());
      }
      ++group.pins;
      writable_pins_[g] += writable ? 1 : 0;
      held.push_back(g);
    }
  } catch (...) {
    unpin(held, writable);
    throw;
  }
}

void Pager::unpin(const std::vector<size_t>& groups, bool writable) noexcept {
  for (const size_t g : groups) {
    ParamGroup& group = *groups_[g];
    if (writable) {
      --writable_pins_[g];
      group.write_back();
      gather_lane_.follow_current();
      group.bump_versions();
      group.written = is_divided();
    }
    // A slot outside the arena exists for the scope only. One that was written
    // goes as well: only this rank's slice of it is known to be what the other
    // ranks have. The rest stays as long as the plan wants it.
    if (--group.pins == 0 && (group.slot_is_outside() || group.written)) {
      group.written = false;
      reshard(static_cast<int>(g));
    }
  }
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

MemoryBytes Pager::planned_bytes() const {
  MemoryBytes bytes{};
  const auto add = [&bytes](MemoryPurpose purpose, int64_t count) {
    bytes[static_cast<size_t>(purpose)] += count;
  };
  for (const auto& group : groups_) {
    add(MemoryPurpose::kParameters, group->shard().nbytes());
    if (group->has_own_master()) {
      add(MemoryPurpose::kOptimizerState, group->master().nbytes());
    }
    if (const auto* bucket = buckets_[group->number].get()) {
      add(MemoryPurpose::kGradients, bucket->shard().nbytes());
    }
  }
  add(MemoryPurpose::kGatherSlots, gather_arena_.capacity_bytes());
  add(MemoryPurpose::kReduceSlots, reduce_arena_.capacity_bytes());
  return bytes;
}

void Pager::check_identity() const {
  for (const auto& group : groups_) {
    group->check_identity();
  }
}

at::Tensor Pager::gather_master(size_t g) {
  const at::Tensor& master = groups_[g]->master();
  if (!is_divided()) {
    return master;
  }
  const at::Tensor whole =
      at::empty({groups_[g]->layout().padded_numel()}, master.options());
  const bool as_bytes = !master.is_floating_point();
  data_
      ->all_gather(
          as_bytes ? whole.view(at::kByte) : whole,
          as_bytes ? master.view(at::kByte) : master,
          "values of '" + groups_[g]->name() + "'")
      .wait(watch_failures());
  return whole;
}

at::Tensor Pager::whole_master(size_t g) {
  agree_joining_reductions(
      {RankIntent::Kind::kGatherScope, static_cast<int64_t>(g), -1});
  return gather_master(g);
}

void Pager::unwrap() {
  if (unwrapped_) {
    return;
  }
  agree_joining_reductions({RankIntent::Kind::kUnwrap, -1, -1});
  check_identity();
  finish_reductions();
  for (size_t g = 0; g < groups_.size(); ++g) {
    ParamGroup& group = *groups_[g];
    TESSERA_CHECK(
        group.pins == 0,
        "unwrap: group '",
        group.name(),
        "' is held by a gather scope; end it first.");
  }
  leave_phase();
  remove_hooks();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const at::Tensor whole = gather_master(g);
    if (buckets_[g]) {
      buckets_[g]->retire();
    }
    Slot slot = groups_[g]->restore(whole, watch_failures());
    if (slot.defined()) {
      gather_arena_.release(slot);
    }
  }
  places_.clear();
  reading_ = nullptr;
  unwrapped_ = true;
}

} // namespace tessera
