// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/param_group.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/page_key.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

namespace tessera {

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

FlatLayout layout_of(
    const std::vector<c10::Storage>& storages,
    at::ScalarType dtype,
    int world_size) {
  const int64_t size = itemsize(dtype);
  std::vector<int64_t> numels;
  for (const auto& storage : storages) {
    numels.push_back(
        (static_cast<int64_t>(storage.nbytes()) + size - 1) / size);
  }
  return FlatLayout(numels, OffsetAllocator::kAlignment / size, world_size);
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

ParamGroup::ParamGroup(
    const GroupSpec& spec,
    size_t first_index,
    PageFaultHandler& handler,
    int rank,
    int world_size,
    MemoryLedger& ledger)
    : name_(spec.name),
      scattered_(spec.scattered),
      trainable_(any_requires_grad(spec)),
      dtype_(spec.parameters.front().tensor.scalar_type()),
      handler_(handler),
      rank_(rank),
      original_storages_(unique_storages(spec)),
      layout_(layout_of(original_storages_, dtype_, world_size)) {
  const c10::NoGradGuard no_grad;
  const c10::Device device = spec.parameters.front().tensor.device();
  shard_ = ledger.allocate_zeros(
      MemoryPurpose::kParameters, layout_.shard_numel(), dtype_, device);
  const FlatSpan mine = layout_.shard(rank_);
  for (size_t i = 0; i < original_storages_.size(); ++i) {
    const c10::Storage& storage = original_storages_[i];
    const auto numel =
        static_cast<int64_t>(storage.nbytes()) / itemsize(dtype_);
    const FlatSpan span{layout_.offset(i), numel};
    for (const FlatRun& run : runs_of_shard({&span, 1}, mine)) {
      const int64_t from = mine.begin + run.shard_offset - span.begin;
      const at::Tensor target = shard_.narrow(0, run.shard_offset, run.numel);
      if (const auto* deferred =
              deferred_init(*storage.unsafeGetStorageImpl())) {
        deferred->fill(target, from);
        continue;
      }
      const auto source = at::from_blob(
          static_cast<std::byte*>(storage.mutable_data()) +
              from * itemsize(dtype_),
          {run.numel},
          at::TensorOptions().dtype(dtype_).device(device));
      target.copy_(source);
    }
  }

  std::unordered_map<const c10::StorageImpl*, size_t> storage_index;
  for (size_t i = 0; i < original_storages_.size(); ++i) {
    storage_index[original_storages_[i].unsafeGetStorageImpl()] = i;
  }
  std::vector<bool> paged(original_storages_.size(), false);
  for (const auto& record : spec.parameters) {
    const size_t i =
        storage_index.at(record.tensor.storage().unsafeGetStorageImpl());
    if (!paged[i]) {
      paged[i] = true;
      storages_.push_back(std::make_unique<PagedStorage>(
          original_storages_[i], *this, record.name(), layout_.offset(i)));
    }
    parameters_.push_back(
        {record,
         first_index + parameters_.size(),
         {layout_.offset(i) + record.tensor.storage_offset(),
          storage_extent(record.tensor)}});
    add_page_key(record.tensor);
  }
}

ParamGroup::~ParamGroup() {
  // Whoever still holds the module gets an error, not freed memory.
  for (const auto& storage : storages_) {
    if (storage->is_intact()) {
      storage->restore(
          c10::DataPtr(nullptr, parameters_.front().record.tensor.device()));
      forbid_access(
          const_cast<c10::StorageImpl&>(*storage->impl()),
          "parameter '" + storage->parameter_name() +
              "' was sharded by a tessera::Engine that is gone without "
              "unwrap(); its values went with it.");
    }
  }
  for (const auto& parameter : parameters_) {
    remove_page_key(parameter.record.tensor);
  }
}

int64_t ParamGroup::padded_bytes() const {
  return layout_.padded_numel() * itemsize(dtype_);
}

void ParamGroup::begin_unshard(Communicator& communicator, Slot slot) {
  TESSERA_CHECK(
      residency_ == Residency::kSharded,
      "unshard of '",
      name_,
      "': it is already unsharded");
  slot_ = std::move(slot);
  gather_ = communicator.all_gather(
      slot_.tensor, shard_, "unshard of '" + name_ + "'");
  residency_ = Residency::kUnsharding;
}

void ParamGroup::end_unshard(const WaitCheck& check) {
  if (residency_ != Residency::kUnsharding) {
    return;
  }
  gather_.wait(check);
  attach(slot_.tensor);
}

void ParamGroup::attach_shard() {
  attach(shard_);
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

Slot ParamGroup::reshard(const WaitCheck& check) {
  if (residency_ == Residency::kUnsharding) {
    gather_.wait(check);
    residency_ = Residency::kSharded;
  } else if (residency_ == Residency::kUnsharded) {
    detach();
  }
  return std::exchange(slot_, {});
}

void ParamGroup::bump_versions() {
  for (const auto& parameter : parameters_) {
    parameter.record.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void ParamGroup::write_back() {
  const c10::NoGradGuard no_grad;
  ++write_backs_;
  if (whole_.is_same(shard_)) {
    return;
  }
  const FlatSpan mine = layout_.shard(rank_);
  shard_.copy_(whole_.narrow(0, mine.begin, mine.numel));
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
        "the storage of parameter '",
        parameter.record.name(),
        "' was replaced behind the engine's back (Module::to, set_data, "
        "flatten_parameters or torch::load after wrap?). Do this before "
        "tessera::wrap, or call Engine::unwrap() first and wrap again.");
  }
}

void ParamGroup::restore() {
  TESSERA_CHECK(
      residency_ == Residency::kUnsharded,
      "restore of '",
      name_,
      "': it is sharded");
  auto* base = static_cast<std::byte*>(whole_.data_ptr());
  for (const auto& storage : storages_) {
    const auto memory = at::from_blob(
        base + storage->begin() * itemsize(dtype_),
        {storage->nbytes()},
        whole_.options().dtype(at::kByte));
    const at::Tensor own = memory.clone();
    // The DataPtr keeps the clone, and with it its memory, alive.
    storage->restore(c10::DataPtr(
        own.data_ptr(),
        new at::Tensor(own),
        [](void* context) { delete static_cast<at::Tensor*>(context); },
        own.device()));
  }
  for (const auto& parameter : parameters_) {
    remove_page_key(parameter.record.tensor);
  }
  storages_.clear();
  parameters_.clear();
}

} // namespace tessera
