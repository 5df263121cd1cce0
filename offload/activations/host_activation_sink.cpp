// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/host_activation_sink.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace tessera::offload {

namespace {

/// `impl` over another storage, without a graph and with its own version
/// counter.
c10::intrusive_ptr<c10::TensorImpl> shape_over(
    const c10::TensorImpl& impl,
    c10::Storage storage) {
  auto copy = impl.shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  copy->set_storage_keep_dtype(std::move(storage));
  return copy;
}

/// Whether two tensors share a version counter. Neither counter is disabled.
bool is_same_counter(
    const c10::VariableVersion& a,
    const c10::VariableVersion& b) {
  // The counter itself is private; the class is one pointer to it.
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  return std::memcmp(&a, &b, sizeof(void*)) == 0;
}

void check(const HostActivationSinkOptions& options) {
  TESSERA_CHECK(
      options.device_bytes.value_or(0) >= 0,
      "HostActivationSink: device_bytes is {}; it must be at least 0.",
      options.device_bytes.value_or(0));
  TESSERA_CHECK(
      options.min_tensor_bytes >= 0 && options.prefetch_bytes >= 0,
      "HostActivationSink: min_tensor_bytes is {} and prefetch_bytes {}; both must be at least 0.",
      options.min_tensor_bytes,
      options.prefetch_bytes);
}

} // namespace

class HostActivationSink::Saved final : public runtime::SavedActivation {
 public:
  Saved(
      std::shared_ptr<HostActivationSink> sink,
      SavedStorage& saved,
      c10::intrusive_ptr<c10::TensorImpl> shape)
      : sink_(std::move(sink)),
        saved_(saved),
        number_(saved.needed_at()),
        shape_(std::move(shape)) {}

  ~Saved() override {
    try {
      sink_->release(saved_, number_);
    } catch (const std::exception& error) {
      log_error("offload: releasing a saved tensor failed: {}", error.what());
    }
  }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  at::Tensor give() override {
    return at::Tensor(shape_over(*shape_, sink_->use(saved_, number_)));
  }

 private:
  std::shared_ptr<HostActivationSink> sink_;
  SavedStorage& saved_;
  uint64_t number_;
  c10::intrusive_ptr<c10::TensorImpl> shape_;
};

HostActivationSink::HostActivationSink(HostActivationSinkOptions options)
    : options_(std::move(options)),
      nothing_(
          c10::Storage::use_byte_size_t(),
          0,
          c10::DataPtr(nullptr, options_.device)),
      copies_(options_.device, options_.host_bytes) {
  check(options_);
}

bool HostActivationSink::governs(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.device() != options_.device || !impl.has_storage() ||
      impl.layout() != at::kStrided || tensor.is_nested() ||
      (tensor.is_leaf() && tensor.requires_grad())) {
    return false;
  }
  const c10::StorageImpl& storage =
      *impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage.nbytes() == 0 || (options_.passes && options_.passes(storage))) {
    return false;
  }
  // The checked accessor may throw if another owner's storage has no memory.
  return const_cast<c10::StorageImpl&>(storage)
             ._mutable_data_ptr_no_checks()
             .get() != nullptr;
}

std::unique_ptr<runtime::SavedActivation> HostActivationSink::take(
    const at::Tensor& tensor,
    bool to_host) {
  Freed freed;
  if (!governs(tensor)) {
    const std::lock_guard lock(mutex_);
    ++statistics_.tensors_passed;
    return std::make_unique<runtime::PassedActivation>(tensor);
  }
  auto shape = shape_over(*tensor.unsafeGetTensorImpl(), nothing_);
  std::unique_ptr<Saved> result; // after an exception it ends without the lock
  const std::lock_guard lock(mutex_);
  if (storages_.empty()) {
    begin_round();
  }
  ++statistics_.tensors_saved;
  SavedStorage* saved = find(tensor);
  if (saved == nullptr) {
    saved = &add(tensor);
  } else {
    unindex(*saved);
  }
  if (const auto stream = runtime::current_stream(options_.device)) {
    saved->streams.insert(*stream);
  }
  if (!saved->on_host.defined()) {
    saved->version = torch::autograd::impl::version_counter(tensor);
  }
  saved->savers.push_back(++last_number_);
  index(*saved);
  result =
      std::make_unique<Saved>(shared_from_this(), *saved, std::move(shape));
  settle(*saved, to_host, freed);
  return result;
}

void HostActivationSink::begin_round() {
  producers_.clear();
  planned_bytes_ = std::exchange(left_bytes_, 0);
  copied_by_plan_ = 0;
}

SavedStorage* HostActivationSink::find(const at::Tensor& tensor) {
  const c10::StorageImpl* impl =
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const auto found = by_storage_.find(impl);
  if (found == by_storage_.end()) {
    return nullptr;
  }
  SavedStorage& saved = *found->second;
  // What was brought back has no graph, so that it is never written to.
  const bool is_copy = saved.brought_back && saved.device_impl() == impl;
  if (!saved.on_host.defined() || is_copy) {
    return &saved;
  }
  // The copy is valid if nothing has been written since. Tensors of one storage
  // may have separate version counters: the gates of an LSTM cell are changed
  // in place and saved one after the other.
  const c10::VariableVersion& version =
      torch::autograd::impl::version_counter(tensor);
  return is_same_counter(version, saved.version) &&
                 version.current_version() == saved.copied_version
             ? &saved
             : nullptr;
}

SavedStorage& HostActivationSink::add(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  SavedStorage& saved = storages_.emplace_back(storage);
  saved.self = std::prev(storages_.end());
  saved.movable = saved.bytes >= options_.min_tensor_bytes;
  saved.producer = &producers_.of(tensor);
  ++saved.producer->storages;
  saved.producer->bytes += saved.bytes;
  ++statistics_.live_storages;
  hold(saved, storage);
  return saved;
}

void HostActivationSink::settle(
    SavedStorage& saved,
    bool to_host,
    Freed& freed) {
  if (saved.movable && saved.on_device) {
    const bool planned = copied_by_plan_ < planned_bytes_;
    if (planned) {
      copied_by_plan_ += saved.bytes;
    }
    if (planned || to_host || options_.copy_at_once) {
      copy_out(saved);
    }
  }
  if (to_host && saved.movable && on_its_way_ != &saved) {
    // One storage later, so that nothing waits for the copy.
    if (on_its_way_ != nullptr && on_its_way_->on_device) {
      leave_in_forward(*on_its_way_, freed);
    }
    on_its_way_ = &saved;
  }
  if (saved.movable && saved.on_device &&
      saved.bytes > options_.device_bytes.value_or(saved.bytes)) {
    leave_in_forward(saved, freed); // nothing else would make room for it
  }
  while (!fits(0) && !resident_.empty() &&
         leave_in_forward(*resident_.begin()->second, freed)) {
  }
  statistics_.peak_device_bytes =
      std::max(statistics_.peak_device_bytes, statistics_.live_device_bytes);
}

bool HostActivationSink::leave_in_forward(SavedStorage& saved, Freed& freed) {
  if (!leave(saved, freed)) {
    return false;
  }
  left_bytes_ += saved.bytes;
  saved.producer->bytes_left += saved.bytes;
  return true;
}

ActivationStatistics HostActivationSink::statistics() const {
  const std::lock_guard lock(mutex_);
  ActivationStatistics statistics = statistics_;
  statistics.host_slab_bytes = copies_.slab_bytes();
  return statistics;
}

void HostActivationSink::reset_peaks() {
  const std::lock_guard lock(mutex_);
  statistics_.peak_device_bytes = statistics_.live_device_bytes;
  statistics_.peak_host_bytes = statistics_.live_host_bytes;
}

std::vector<SavedByProducer> HostActivationSink::saved_by_producer() const {
  const std::lock_guard lock(mutex_);
  return producers_.report();
}

} // namespace tessera::offload
