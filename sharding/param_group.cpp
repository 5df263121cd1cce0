// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/param_group.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/page_key.h"
#include "tessera/sharding/replace_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace tessera::sharding {

namespace {

std::vector<c10::Storage> unique_storages(const GroupSpec& spec) {
  std::vector<c10::Storage> storages;
  std::unordered_map<const c10::StorageImpl*, size_t> seen;
  for (const auto& record : spec.parameters) {
    const c10::Storage& storage = record.tensor.storage();
    if (seen.emplace(storage.unsafeGetStorageImpl(), seen.size()).second) {
      storages.push_back(storage);
    }
  }
  return storages;
}

int64_t itemsize(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t numel_of(const c10::Storage& storage, at::ScalarType dtype) {
  const int64_t size = itemsize(dtype);
  return (static_cast<int64_t>(storage.nbytes()) + size - 1) / size;
}

/// Makes later accesses to the storage throw `message` instead of reading freed
/// memory.
void abandon(PagedStorage& page, const std::string& message) {
  auto& storage = const_cast<c10::StorageImpl&>(*page.impl());
  page.restore(c10::DataPtr(nullptr, storage.device()));
  forbid_access(storage, message);
}

bool any_requires_grad(const GroupSpec& spec) {
  for (const auto& record : spec.parameters) {
    if (record.tensor.requires_grad()) {
      return true;
    }
  }
  return false;
}

} // namespace

runtime::FlatLayout flat_layout_of(const GroupSpec& spec, int shards) {
  const ParameterRecord& first = spec.parameters.front();
  std::vector<int64_t> numels;
  for (const auto& storage : unique_storages(spec)) {
    // The storages still have the original dtype.
    numels.push_back(numel_of(storage, first.tensor.scalar_type()));
  }
  return runtime::FlatLayout(
      numels,
      runtime::OffsetAllocator::kAlignment / itemsize(first.dtype),
      shards);
}

ParamGroup::ParamGroup(
    const GroupSpec& spec,
    size_t first_index,
    const PrecisionPolicy& policy,
    PageFaultHandler& handler,
    int rank,
    int world_size,
    MemoryLedger& ledger,
    const ShardStores& stores)
    : name_(spec.name),
      scattered_(spec.scattered),
      blocks_(spec.blocks),
      trainable_(any_requires_grad(spec)),
      dtype_(spec.parameters.front().dtype),
      original_dtype_(spec.parameters.front().tensor.scalar_type()),
      casts_arguments_(policy.is_mixed() && at::isFloatingType(dtype_)),
      handler_(handler),
      rank_(rank),
      layout_(flat_layout_of(spec, world_size)),
      device_(spec.parameters.front().tensor.device()) {
  const c10::NoGradGuard no_grad;
  auto storages = unique_storages(spec);
  shard_ = make_shard(
      "weights", MemoryPurpose::kParameters, dtype_, ledger, stores.parameters);
  own_master_ = trainable_ && policy.master_weights && is_low_precision(dtype_);
  if (own_master_) {
    master_ = make_shard(
        "master weights",
        MemoryPurpose::kOptimizerState,
        at::kFloat,
        ledger,
        stores.master);
  }
  const at::Tensor shard = shard_.load();
  const at::Tensor master = own_master_ ? master_.load() : at::Tensor();
  for (size_t i = 0; i < storages.size(); ++i) {
    take_slice(storages[i], layout_.offset(i), shard, master);
  }
  shard_.store(shard);
  if (own_master_) {
    master_.store(master);
  }
  if (original_dtype_ != dtype_) {
    storages = retype(spec, storages);
  }

  std::unordered_map<const c10::StorageImpl*, size_t> storage_index;
  for (size_t i = 0; i < storages.size(); ++i) {
    storage_index[storages[i].unsafeGetStorageImpl()] = i;
  }
  std::vector<bool> paged(storages.size(), false);
  for (const auto& record : spec.parameters) {
    const size_t i =
        storage_index.at(record.tensor.storage().unsafeGetStorageImpl());
    if (!paged[i]) {
      paged[i] = true;
      storages_.push_back(std::make_unique<PagedStorage>(
          storages[i], *this, record.name(), layout_.offset(i)));
    }
    parameters_.push_back(
        {record,
         first_index + parameters_.size(),
         {layout_.offset(i) + record.tensor.storage_offset(),
          storage_extent(record.tensor)}});
    add_page_key(record.tensor);
  }
}

/// Allocates zeros: [shard_numel].
runtime::RestingTensor ParamGroup::make_shard(
    const char* what,
    MemoryPurpose purpose,
    at::ScalarType dtype,
    MemoryLedger& ledger,
    runtime::ShardStore* store) const {
  const int64_t numel = layout_.shard_numel();
  if (store == nullptr) {
    return runtime::RestingTensor(
        ledger.allocate_zeros(purpose, numel, dtype, device_));
  }
  return runtime::RestingTensor(store->reserve(
      formatted("{} of '{}'", what, name_), purpose, numel, dtype));
}

void ParamGroup::take_slice(
    const c10::Storage& storage,
    int64_t begin,
    const at::Tensor& shard,
    const at::Tensor& master) {
  const runtime::FlatSpan mine = layout_.shard(rank_);
  const runtime::FlatSpan span{begin, numel_of(storage, original_dtype_)};
  for (const runtime::FlatRun& run : runtime::runs_of_shard({&span, 1}, mine)) {
    const int64_t from = mine.begin + run.shard_offset - span.begin;
    const at::Tensor source = slice_of(storage, from, run.numel);
    shard.narrow(0, run.shard_offset, run.numel).copy_(source);
    if (master.defined()) {
      master.narrow(0, run.shard_offset, run.numel).copy_(source);
    }
  }
}

at::Tensor ParamGroup::slice_of(
    const c10::Storage& storage,
    int64_t first,
    int64_t numel) const {
  const auto options =
      at::TensorOptions().dtype(original_dtype_).device(storage.device());
  if (const auto* deferred = deferred_init(*storage.unsafeGetStorageImpl())) {
    const at::Tensor slice = at::empty({numel}, options);
    deferred->fill(slice, first);
    return slice;
  }
  return at::from_blob(
      static_cast<std::byte*>(storage.mutable_data()) +
          first * itemsize(original_dtype_),
      {numel},
      options);
}

std::vector<c10::Storage> ParamGroup::retype(
    const GroupSpec& spec,
    const std::vector<c10::Storage>& storages) {
  std::vector<c10::Storage> retyped;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> replacement;
  for (const auto& storage : storages) {
    retyped.emplace_back(
        c10::Storage::use_byte_size_t{},
        numel_of(storage, original_dtype_) * itemsize(dtype_),
        c10::DataPtr(nullptr, storage.device()),
        /*allocator=*/nullptr,
        /*resizable=*/false);
    replacement.emplace(storage.unsafeGetStorageImpl(), retyped.back());
  }
  for (const auto& record : spec.parameters) {
    replace_storage(
        record.tensor,
        replacement.at(record.tensor.storage().unsafeGetStorageImpl()),
        dtype_);
  }
  return retyped;
}

ParamGroup::~ParamGroup() {
  for (const auto& storage : storages_) {
    if (storage->is_intact()) {
      abandon(
          *storage,
          "parameter '" + storage->parameter_name() +
              "' was sharded by a tessera::Engine that is gone without "
              "unwrap(); its values were lost with it.");
    }
  }
  for (const auto& parameter : parameters_) {
    remove_page_key(parameter.record.tensor);
  }
}

int64_t ParamGroup::padded_bytes() const {
  return layout_.padded_numel() * itemsize(dtype_);
}

void ParamGroup::begin_unshard(
    Communicator& communicator,
    runtime::Slot slot,
    const runtime::StreamLane& lane) {
  TESSERA_CHECK(
      residency_ == Residency::kSharded,
      "unshard of '{}': it is already unsharded",
      name_);
  check_values();
  slot_ = std::move(slot);
  lane_ = &lane;
  communicator_ = &communicator;
  const runtime::StreamLane::Scope on_lane(lane);
  lane.wait_for(slot_.after);
  residency_ = Residency::kUnsharding;
  if (shard_.is_on(device_)) {
    begin_gather(shard_.tensor());
    return;
  }
  arriving_ = shard_.read(own_slice(slot_.tensor));
  reading_ = true;
  if (shard_.tier() != MemoryTier::kNvme) {
    issue_unshard();
  }
}

void ParamGroup::issue_unshard() {
  if (!std::exchange(reading_, false)) {
    return;
  }
  const runtime::StreamLane::Scope on_lane(*lane_);
  arriving_.wait_issued();
  begin_gather(own_slice(slot_.tensor));
}

/// Runs on the lane.
/// @param shard this rank's shard, which may be in the slot.
void ParamGroup::begin_gather(const at::Tensor& shard) {
  gather_ = communicator_->all_gather(
      slot_.tensor, shard, "unshard of '" + name_ + "'");
  if (!gather_.pending()) {
    ready_ = lane_->mark();
  }
}

at::Tensor ParamGroup::own_slice(const at::Tensor& whole) const {
  const runtime::FlatSpan mine = layout_.shard(rank_);
  return whole.narrow(0, mine.begin, mine.numel);
}

void ParamGroup::finish_gather(const WaitCheck& check) {
  issue_unshard();
  if (gather_.pending()) {
    const runtime::StreamLane::Scope on_lane(*lane_);
    gather_.wait(check);
    ready_ = lane_->mark();
  }
}

void ParamGroup::end_unshard(const WaitCheck& check) {
  if (residency_ != Residency::kUnsharding) {
    return;
  }
  finish_gather(check);
  attach(slot_.tensor);
  use_on_current_stream();
}

void ParamGroup::use_on_current_stream() {
  if (ready_.empty() && !notes_users_) {
    return;
  }
  const auto stream = runtime::current_stream(device_);
  if (stream && users_.insert(*stream)) {
    ready_.block(*stream);
  }
}

void ParamGroup::attach_shard(bool notes_users) {
  attach(shard_.tensor());
  notes_users_ = notes_users;
}

void ParamGroup::follow_users(const runtime::StreamLane& lane) {
  if (notes_users_) {
    lane.wait_for(users_.mark());
    users_.clear();
  }
}

void ParamGroup::attach(const at::Tensor& whole) {
  whole_ = whole;
  auto* base = static_cast<std::byte*>(whole_.data_ptr());
  for (const auto& storage : storages_) {
    storage->attach(base + storage->begin() * itemsize(dtype_));
  }
  residency_ = Residency::kUnsharded;
}

void ParamGroup::detach() {
  for (const auto& storage : storages_) {
    storage->detach();
  }
  whole_ = at::Tensor();
  residency_ = Residency::kSharded;
}

runtime::Slot ParamGroup::reshard(const WaitCheck& check) {
  if (residency_ == Residency::kUnsharding) {
    finish_gather(check);
    residency_ = Residency::kSharded;
  } else if (residency_ == Residency::kUnsharded) {
    detach();
  }
  return take_slot();
}

runtime::Slot ParamGroup::take_slot() {
  // Without marks, the slot has not been used since it was taken.
  if (!ready_.empty()) {
    slot_.after = users_.mark();
    slot_.after.add(ready_);
  }
  users_.clear();
  ready_ = {};
  // The slot's marks are after it; the host may be far ahead of it.
  arriving_.release();
  return std::exchange(slot_, {});
}

void ParamGroup::bump_versions() {
  for (const auto& parameter : parameters_) {
    parameter.record.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void ParamGroup::write_back() {
  const c10::NoGradGuard no_grad;
  const at::Tensor mine = own_slice(whole_);
  if (own_master_) {
    const at::Tensor master = read_master();
    const at::Tensor written = mine.ne(master.to(dtype_));
    master.copy_(at::where(written, mine.to(master.dtype()), master));
    master_.store(master);
  }
  shard_.store(mine);
}

void ParamGroup::check_values() const {
  TESSERA_CHECK(loss_.empty(), "{}", loss_);
}

at::Tensor ParamGroup::read_master() const {
  const c10::NoGradGuard no_grad;
  check_values();
  return master().load(device_);
}

void ParamGroup::write_master(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  if (own_master_) {
    master_.store(values);
  }
  shard_.store(values);
}

at::Tensor ParamGroup::view_of(const at::Tensor& whole, size_t i) const {
  const PagedParameter& parameter = parameters_[i];
  return whole.as_strided(
      parameter.record.tensor.sizes(),
      parameter.record.tensor.strides(),
      whole.storage_offset() + parameter.span.begin);
}

void ParamGroup::check_identity() const {
  for (const auto& parameter : parameters_) {
    const at::Tensor& tensor = parameter.record.tensor;
    const auto* page =
        tensor.has_storage()
            ? PagedStorage::of(tensor.storage().unsafeGetStorageImpl())
            : nullptr;
    TESSERA_CHECK(
        has_page_key(tensor) && page != nullptr && &page->group() == this,
        "the storage of parameter '{}' was replaced behind the engine's back (Module::to, set_data, flatten_parameters or torch::load after wrap?). Do this before tessera::wrap, or call Engine::unwrap() first and wrap again.",
        parameter.record.name());
  }
}

runtime::Slot ParamGroup::restore(
    const at::Tensor& whole,
    const WaitCheck& check) {
  const c10::NoGradGuard no_grad;
  finish_gather(check);
  std::unordered_map<const c10::StorageImpl*, c10::Storage> replacement;
  for (const auto& storage : storages_) {
    const int64_t numel = storage->nbytes() / itemsize(dtype_);
    const at::Tensor own =
        at::empty({numel}, whole.options().dtype(original_dtype_));
    own.copy_(whole.narrow(0, storage->begin(), numel));
    if (original_dtype_ != dtype_) {
      replacement.emplace(storage->impl(), own.storage());
      abandon(
          *storage,
          "this tensor is what autograd saved of parameter '" +
              storage->parameter_name() + "' before it was unwrapped.");
      continue;
    }
    // The DataPtr owns the copy and so keeps its memory alive.
    storage->restore(c10::DataPtr(
        own.data_ptr(),
        new at::Tensor(own),
        [](void* context) { delete static_cast<at::Tensor*>(context); },
        own.device()));
  }
  for (const auto& parameter : parameters_) {
    const at::Tensor& tensor = parameter.record.tensor;
    remove_page_key(tensor);
    if (original_dtype_ != dtype_) {
      replace_storage(
          tensor,
          replacement.at(tensor.storage().unsafeGetStorageImpl()),
          original_dtype_);
    }
  }
  storages_.clear();
  parameters_.clear();
  whole_ = at::Tensor();
  residency_ = Residency::kSharded;
  return take_slot();
}

} // namespace tessera::sharding
