// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_memory.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/replace_storage.h"

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

/// Makes later accesses to the storage throw `message` instead of reading freed
/// memory.
void abandon(PagedStorage& page, const std::string& message) {
  auto& storage = const_cast<c10::StorageImpl&>(*page.impl());
  page.restore(c10::DataPtr(nullptr, storage.device()));
  forbid_access(storage, message);
}

} // namespace

PageMemory::PageMemory(
    PageSpec spec,
    PageFaultHandler& handler,
    MemoryLedger& ledger,
    const runtime::ShardStores& stores)
    : spec_(std::move(spec)),
      info_{.handler = &handler, .number = spec_.number} {
  if (spec_.casts_arguments) {
    info_.compute_dtype = spec_.dtype;
  }
  const c10::NoGradGuard no_grad;
  auto storages = storages_of(spec_);
  shard_ = make_shard(
      "weights",
      MemoryPurpose::kParameters,
      spec_.dtype,
      ledger,
      stores.parameters);
  if (spec_.has_separate_master) {
    master_ = make_shard(
        "master weights",
        MemoryPurpose::kOptimizerState,
        at::kFloat,
        ledger,
        stores.state);
  }
  const at::Tensor shard = shard_.load();
  const at::Tensor master =
      spec_.has_separate_master ? master_.load() : at::Tensor();
  for (size_t i = 0; i < storages.size(); ++i) {
    take_slice(storages[i], spec_.layout.offset(i), shard, master);
  }
  shard_.store(shard);
  if (spec_.has_separate_master) {
    master_.store(master);
  }
  if (spec_.original_dtype != spec_.dtype) {
    storages = retype(storages);
  }

  std::unordered_map<const c10::StorageImpl*, size_t> storage_index;
  for (size_t i = 0; i < storages.size(); ++i) {
    storage_index[storages[i].unsafeGetStorageImpl()] = i;
  }
  std::vector<bool> paged(storages.size(), false);
  for (const PagedParameter& parameter : spec_.parameters) {
    const ParameterRecord& record = parameter.record;
    const size_t i =
        storage_index.at(record.tensor.storage().unsafeGetStorageImpl());
    if (!paged[i]) {
      paged[i] = true;
      storages_.push_back(std::make_unique<PagedStorage>(
          storages[i], info_, record.name(), spec_.layout.offset(i)));
    }
    add_page_key(record.tensor);
  }
}

/// Allocates zeros: [shard_numel].
runtime::RestingTensor PageMemory::make_shard(
    const char* label,
    MemoryPurpose purpose,
    at::ScalarType dtype,
    MemoryLedger& ledger,
    runtime::ShardStore* store) const {
  const int64_t numel = spec_.layout.shard_numel();
  if (store == nullptr) {
    return runtime::RestingTensor(
        ledger.allocate_zeros(purpose, numel, dtype, spec_.device));
  }
  return runtime::RestingTensor(store->reserve(
      formatted("{} of '{}'", label, spec_.name), purpose, numel, dtype));
}

void PageMemory::take_slice(
    const c10::Storage& storage,
    int64_t begin,
    const at::Tensor& shard,
    const at::Tensor& master) {
  const runtime::FlatSpan self_span = local_span();
  const runtime::FlatSpan span{begin, numel_of(storage, spec_.original_dtype)};
  for (const runtime::FlatSegment& segment :
       runtime::segments_of_shard({&span, 1}, self_span)) {
    const int64_t from = self_span.begin + segment.shard_offset - span.begin;
    const at::Tensor source = slice_of(storage, from, segment.numel);
    shard.narrow(0, segment.shard_offset, segment.numel).copy_(source);
    if (master.defined()) {
      master.narrow(0, segment.shard_offset, segment.numel).copy_(source);
    }
  }
}

at::Tensor PageMemory::slice_of(
    const c10::Storage& storage,
    int64_t first,
    int64_t numel) const {
  const auto options =
      at::TensorOptions().dtype(spec_.original_dtype).device(storage.device());
  if (const auto* deferred = deferred_init(*storage.unsafeGetStorageImpl())) {
    const at::Tensor slice = at::empty({numel}, options);
    deferred->fill(slice, first);
    return slice;
  }
  return at::from_blob(
      static_cast<std::byte*>(storage.mutable_data()) +
          first * runtime::size_of(spec_.original_dtype),
      {numel},
      options);
}

std::vector<c10::Storage> PageMemory::retype(
    const std::vector<c10::Storage>& storages) {
  std::vector<c10::Storage> retyped;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> replacement;
  for (const auto& storage : storages) {
    retyped.emplace_back(
        c10::Storage::use_byte_size_t{},
        numel_of(storage, spec_.original_dtype) * runtime::size_of(spec_.dtype),
        c10::DataPtr(nullptr, storage.device()),
        /*allocator=*/nullptr,
        /*resizable=*/false);
    replacement.emplace(storage.unsafeGetStorageImpl(), retyped.back());
  }
  for (const PagedParameter& parameter : spec_.parameters) {
    const at::Tensor& tensor = parameter.record.tensor;
    replace_storage(
        tensor,
        replacement.at(tensor.storage().unsafeGetStorageImpl()),
        spec_.dtype);
  }
  return retyped;
}

PageMemory::~PageMemory() {
  for (const auto& storage : storages_) {
    if (storage->is_intact()) {
      abandon(
          *storage,
          "parameter '" + storage->parameter_name() +
              "' was sharded by an engine that is gone without "
              "unwrap(); its values were lost with it.");
    }
  }
  for (const auto& parameter : spec_.parameters) {
    remove_page_key(parameter.record.tensor);
  }
}

void PageMemory::begin_unshard(
    Communicator& communicator,
    runtime::Slot slot,
    const runtime::StreamLane& lane,
    GatherFormat format) {
  TESSERA_CHECK(
      residency_ == Residency::kSharded,
      "unshard of '{}': it is already unsharded",
      spec_.name);
  check_values();
  slot_ = std::move(slot);
  format_ = format;
  lane_ = &lane;
  communicator_ = &communicator;
  const runtime::StreamLane::Scope on_lane(lane);
  lane.wait_for(slot_.after);
  residency_ = Residency::kUnsharding;
  if (shard_.is_on(spec_.device)) {
    begin_gather(shard_.tensor());
    return;
  }
  arriving_ = shard_.read(local_slice(full_in_slot()));
  reading_ = true;
  if (shard_.tier() != MemoryTier::kNvme) {
    issue_unshard();
  }
}

void PageMemory::issue_unshard() {
  if (!std::exchange(reading_, false)) {
    return;
  }
  const runtime::StreamLane::Scope on_lane(*lane_);
  arriving_.wait_issued();
  begin_gather(local_slice(full_in_slot()));
}

/// Runs on the lane.
/// @param shard this rank's shard, which may be in the slot.
void PageMemory::begin_gather(const at::Tensor& shard) {
  const runtime::TraceLaneScope traced(runtime::TraceLane::kUnshard);
  const std::string label = "unshard of '" + spec_.name + "'";
  if (is_encoded()) {
    const at::Tensor wire = wire_in_slot();
    const int64_t bytes = spec_.gather_format->bytes(shard.numel());
    const at::Tensor local =
        wire.narrow(0, communicator_->rank() * bytes, bytes);
    runtime::encode_blocks_(local, shard, *spec_.gather_format);
    gather_ = communicator_->all_gather(wire, local, label);
  } else {
    gather_ = communicator_->all_gather(full_in_slot(), shard, label);
  }
  if (!gather_.pending()) {
    receive();
  }
}

void PageMemory::receive() {
  if (is_encoded()) {
    runtime::decode_blocks_(
        full_in_slot(),
        wire_in_slot(),
        *spec_.gather_format,
        communicator_->size());
  }
  ready_ = lane_->mark();
  gathered_ = ready_;
}

at::Tensor PageMemory::full_in_slot() const {
  return slot_.tensor.narrow(0, 0, spec_.layout.padded_numel());
}

at::Tensor PageMemory::wire_in_slot() const {
  const int64_t begin = spec_.layout.padded_numel();
  return slot_.tensor.narrow(0, begin, slot_.tensor.numel() - begin)
      .view(at::kByte)
      .narrow(
          0,
          0,
          communicator_->size() *
              spec_.gather_format->bytes(spec_.layout.shard_numel()));
}

at::Tensor PageMemory::local_slice(const at::Tensor& full) const {
  const runtime::FlatSpan self_span = local_span();
  return full.narrow(0, self_span.begin, self_span.numel);
}

void PageMemory::finish_gather(const WaitCheck& check) {
  issue_unshard();
  if (gather_.pending()) {
    const runtime::StreamLane::Scope on_lane(*lane_);
    gather_.wait(check);
    receive();
  }
}

void PageMemory::end_unshard(const WaitCheck& check) {
  if (residency_ != Residency::kUnsharding) {
    return;
  }
  finish_gather(check);
  attach(full_in_slot());
  use_on_current_stream();
}

void PageMemory::use_on_current_stream() {
  if (ready_.empty() && !notes_users_) {
    return;
  }
  const auto stream = runtime::current_stream(spec_.device);
  if (stream && users_.insert(*stream)) {
    ready_.block(*stream);
  }
}

void PageMemory::attach_shard(bool notes_users) {
  attach(shard_.tensor());
  notes_users_ = notes_users;
}

void PageMemory::begin_update() {
  if (std::exchange(under_update_, true)) {
    return;
  }
  for (const auto& storage : storages_) {
    storage->forbid_reads(formatted(
        "parameter '{}' may be under update: updates of the last step go on during the next forward (optimizer.overlap). Read its memory inside a scope of the engine's gather(), or set optimizer.overlap to off.",
        storage->parameter_name()));
  }
}

void PageMemory::end_update(runtime::StreamMarks written) {
  under_update_ = false;
  for (const auto& storage : storages_) {
    storage->allow_reads();
  }
  users_.clear();
  ready_ = std::move(written);
}

void PageMemory::follow_users(const runtime::StreamLane& lane) {
  lane.wait_for(gathered_);
  if (notes_users_) {
    lane.wait_for(users_.mark());
    users_.clear();
  }
}

void PageMemory::attach(const at::Tensor& full) {
  full_ = full;
  auto* base = static_cast<std::byte*>(full_.data_ptr());
  for (const auto& storage : storages_) {
    storage->attach(base + storage->begin() * runtime::size_of(spec_.dtype));
  }
  residency_ = Residency::kUnsharded;
}

void PageMemory::detach() {
  for (const auto& storage : storages_) {
    storage->detach();
  }
  full_ = at::Tensor();
  residency_ = Residency::kSharded;
}

runtime::Slot PageMemory::reshard(const WaitCheck& check) {
  if (residency_ == Residency::kUnsharding) {
    finish_gather(check);
    residency_ = Residency::kSharded;
  } else if (residency_ == Residency::kUnsharded) {
    detach();
  }
  return take_slot();
}

runtime::Slot PageMemory::take_slot() {
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

void PageMemory::bump_versions() {
  for (const auto& parameter : spec_.parameters) {
    parameter.record.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void PageMemory::write_back() {
  const c10::NoGradGuard no_grad;
  const at::Tensor self_tensor = local_slice(full_);
  if (spec_.has_separate_master) {
    const at::Tensor master = read_master();
    const at::Tensor written = self_tensor.ne(master.to(spec_.dtype));
    master.copy_(at::where(written, self_tensor.to(master.dtype()), master));
    master_.store(master);
  }
  shard_.store(self_tensor);
}

void PageMemory::check_values() const {
  TESSERA_CHECK(loss_.empty(), "{}", loss_);
}

at::Tensor PageMemory::read_master() const {
  const c10::NoGradGuard no_grad;
  check_values();
  return master().load(spec_.device);
}

void PageMemory::write_master(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  if (spec_.has_separate_master) {
    master_.store(values);
  }
  shard_.store(values);
}

at::Tensor PageMemory::view_of(const at::Tensor& full, size_t i) const {
  const PagedParameter& parameter = spec_.parameters[i];
  return full.as_strided(
      parameter.record.tensor.sizes(),
      parameter.record.tensor.strides(),
      full.storage_offset() + parameter.span.begin);
}

void PageMemory::check_identity() const {
  for (const auto& parameter : spec_.parameters) {
    const at::Tensor& tensor = parameter.record.tensor;
    const auto* page =
        tensor.has_storage()
            ? PagedStorage::of(tensor.storage().unsafeGetStorageImpl())
            : nullptr;
    TESSERA_CHECK(
        has_page_key(tensor) && page != nullptr && &page->page() == &info_,
        "the storage of parameter '{}' was replaced behind the engine's back (Module::to, set_data, flatten_parameters or torch::load after wrap?). Do this before wrap(), or call the engine's unwrap() first and wrap again.",
        parameter.record.name());
  }
}

runtime::Slot PageMemory::restore(
    const at::Tensor& full,
    const WaitCheck& check) {
  const c10::NoGradGuard no_grad;
  finish_gather(check);
  std::unordered_map<const c10::StorageImpl*, c10::Storage> replacement;
  for (const auto& storage : storages_) {
    const int64_t numel = storage->nbytes() / runtime::size_of(spec_.dtype);
    const at::Tensor local =
        at::empty({numel}, full.options().dtype(spec_.original_dtype));
    local.copy_(full.narrow(0, storage->begin(), numel));
    if (spec_.original_dtype != spec_.dtype) {
      replacement.emplace(storage->impl(), local.storage());
      abandon(
          *storage,
          "this tensor is what autograd saved of parameter '" +
              storage->parameter_name() + "' before it was unwrapped.");
      continue;
    }
    // The DataPtr owns the copy and so keeps its memory alive.
    storage->restore(c10::DataPtr(
        local.data_ptr(),
        new at::Tensor(local),
        [](void* context) { delete static_cast<at::Tensor*>(context); },
        local.device()));
  }
  for (const auto& parameter : spec_.parameters) {
    const at::Tensor& tensor = parameter.record.tensor;
    remove_page_key(tensor);
    if (spec_.original_dtype != spec_.dtype) {
      replace_storage(
          tensor,
          replacement.at(tensor.storage().unsafeGetStorageImpl()),
          spec_.original_dtype);
    }
  }
  storages_.clear();
  spec_.parameters.clear();
  full_ = at::Tensor();
  residency_ = Residency::kSharded;
  return take_slot();
}

} // namespace tessera::sharding
