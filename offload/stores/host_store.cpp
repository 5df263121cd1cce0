// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/host_store.h"

#include "tessera/offload/stores/shard_checks.h"
#include "tessera/runtime/memory/tensor_bytes.h"
#include "tessera/runtime/streams/stream_marks.h"

#include <mutex>
#include <utility>
#include <vector>

namespace tessera::offload {

namespace {

class HostShard : public runtime::StoredShard {
 public:
  HostShard(std::string name, at::Tensor tensor)
      : name_(std::move(name)), tensor_(std::move(tensor)) {}
  ~HostShard() override {
    settle();
  }

  MemoryTier tier() const override {
    return MemoryTier::kHost;
  }
  int64_t numel() const override {
    return tensor_.numel();
  }
  at::ScalarType dtype() const override {
    return tensor_.scalar_type();
  }
  int64_t bytes() const override {
    return HostMemory::rounded(static_cast<int64_t>(tensor_.nbytes()));
  }

  at::Tensor in_place() override {
    const std::lock_guard lock(mutex_);
    settle();
    return tensor_;
  }

  at::Tensor in_place_on_stream(c10::Device device) override {
    const auto stream = runtime::current_stream(device);
    if (!stream) {
      return in_place();
    }
    const std::lock_guard lock(mutex_);
    follow_copies(*stream);
    note_alone(*stream);
    return tensor_;
  }

  void used_on_current_stream(c10::Device device) override {
    if (const auto stream = runtime::current_stream(device)) {
      const std::lock_guard lock(mutex_);
      note(*stream);
    }
  }

  runtime::PendingTransfer read(const at::Tensor& into) override {
    check_shard_transfer(name_, *this, into);
    return copy(into, tensor_);
  }
  runtime::PendingTransfer write(const at::Tensor& from) override {
    check_shard_transfer(name_, *this, from);
    return copy(tensor_, from);
  }

 private:
  runtime::PendingTransfer copy(
      const at::Tensor& into,
      const at::Tensor& from) {
    const at::Device device = into.is_cpu() ? from.device() : into.device();
    const std::lock_guard lock(mutex_);
    if (device.is_cpu()) {
      settle();
      return runtime::begin_copy(into, from);
    }
    const c10::Stream stream = *runtime::current_stream(device);
    // Another stream may be using this memory.
    follow_copies(stream);
    runtime::PendingTransfer transfer = runtime::begin_copy(into, from);
    note_alone(stream);
    return transfer;
  }

  // All with the mutex held.

  void follow_copies(const c10::Stream& stream) const {
    for (const c10::Event& event : copies_) {
      event.block(stream);
    }
  }
  /// After follow_copies(): who waits for `stream` waits for the copies too.
  void note_alone(const c10::Stream& stream) {
    copies_.clear();
    note(stream);
  }
  /// Notes the work that was issued to `stream`.
  void note(const c10::Stream& stream) {
    copies_.emplace_back(stream.device_type());
    copies_.back().record(stream);
  }

  /// Blocks until no device uses this memory.
  void settle() {
    for (const c10::Event& event : copies_) {
      event.synchronize();
    }
    copies_.clear();
  }

  std::string name_;
  at::Tensor tensor_;
  // A thread that updates shards may fetch this one while another reads it.
  std::mutex mutex_;
  std::vector<c10::Event> copies_; ///< after the last work of streams
};

} // namespace

std::unique_ptr<runtime::StoredShard> HostStore::reserve(
    const std::string& name,
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype) {
  const int64_t bytes = runtime::bytes_of(numel, dtype);
  return std::make_unique<HostShard>(
      name, memory_.allocate("'" + name + "'", purpose, bytes).view(dtype));
}

} // namespace tessera::offload
