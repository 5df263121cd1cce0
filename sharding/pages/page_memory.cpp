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
      spec_.resting_numel(),
      spec_.resting_dtype(),
      ledger,
      stores.parameters);
  if (spec_.has_separate_master) {
    master_ = make_shard(
        "master weights",
        MemoryPurpose::kOptimizerState,
        spec_.layout.shard_numel(),
        at::kFloat,
        ledger,
        stores.state);
  }
  const at::Tensor shard =
      spec_.resting_format
          ? at::zeros(
                {spec_.layout.shard_numel()},
                at::TensorOptions(spec_.dtype).device(spec_.device))
          : shard_.load();
  const at::Tensor master =
      spec_.has_separate_master ? master_.load() : at::Tensor();
  for (size_t i = 0; i < storages.size(); ++i) {
    take_slice(storages[i], spec_.layout.offset(i), shard, master);
  }
  store_values(shard);
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

/// Allocates zeros: [numel].
runtime::RestingTensor PageMemory::make_shard(
    const char* label,
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype,
    MemoryLedger& ledger,
    runtime::ShardStore* store) const {
  if (store == nullptr) {
    return runtime::RestingTensor(
        ledger.allocate_zeros(purpose, numel, dtype, spec_.device));
  }
  return runtime::RestingTensor(store->reserve(
      formatted("{} of '{}'", label, spec_.name), purpose, numel, dtype));
}

at::Tensor PageMemory::load_values() const {
  const at::Tensor resting = shard_.load(spec_.device);
  if (!spec_.resting_format) {
    return resting;
  }
  const at::Tensor values = at::empty(
      {spec_.layout.shard_numel()},
      at::TensorOptions(spec_.dtype).device(spec_.device));
  runtime::decode_blocks_(values, resting, *spec_.resting_format);
  return values;
}

void PageMemory::store_values(const at::Tensor& values) {
  if (!spec_.resting_format) {
    shard_.store(values);
    return;
  }
  const at::Tensor blocks = at::zeros(
      {spec_.resting_numel()},
      at::TensorOptions(at::kByte).device(spec_.device));
  runtime::encode_blocks_(
      blocks,
      values.to(spec_.device, spec_.dtype).contiguous(),
      *spec_.resting_format);
  shard_.store(blocks);
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
  arriving_ = shard_.read(shard_in_slot());
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
  begin_gather(shard_in_slot());
}

const std::optional<runtime::BlockFormat>& PageMemory::blocks() const {
  static const std::optional<runtime::BlockFormat> none;
  if (spec_.resting_format) {
    return spec_.resting_format;
  }
  return format_ == GatherFormat::kOfPage ? spec_.gather_format : none;
}

/// Runs on the lane.
/// @param shard this rank's shard as it rests, which may be in the slot.
void PageMemory::begin_gather(const at::Tensor& shard) {
  const runtime::TraceLaneScope traced(runtime::TraceLane::kUnshard);
  const std::string label = "unshard of '" + spec_.name + "'";
  if (spec_.resting_format && communicator_->size() == 1) {
    wire_ = shard;
  } else if (blocks()) {
    wire_ = wire_in_slot();
    at::Tensor local = shard;
    if (!spec_.resting_format) {
      const int64_t bytes = blocks()->bytes(shard.numel());
      local = wire_.narrow(0, communicator_->rank() * bytes, bytes);
      runtime::encode_blocks_(local, shard, *blocks());
    }
    gather_ = communicator_->all_gather(wire_, local, label);
  } else {
    gather_ = communicator_->all_gather(full_in_slot(), shard, label);
  }
  if (!gather_.pending()) {
    receive();
  }
}

void PageMemory::receive() {
  if (blocks()) {
    runtime::decode_blocks_(
        full_in_slot(), wire_, *blocks(), communicator_->size());
    wire_ = at::Tensor();
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
          communicator_->size() * blocks()->bytes(spec_.layout.shard_numel()));
}

at::Tensor PageMemory::shard_in_slot() const {
  if (!spec_.resting_format) {
    return local_slice(full_in_slot());
  }
  const int64_t bytes = spec_.resting_numel();
  return wire_in_slot().narrow(0, communicator_->rank() * bytes, bytes);
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
  store_values(self_tensor);
}

void PageMemory::check_values() const {
  TESSERA_CHECK(loss_.empty(), "{}", loss_);
}

at::Tensor PageMemory::read_master() const {
  const c10::NoGradGuard no_grad;
  check_values();
  return spec_.has_separate_master ? master_.load(spec_.device) : load_values();
}

void PageMemory::write_master(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  if (spec_.has_separate_master) {
    master_.store(values);
  }
  store_values(values);
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
