// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/activation_offload.h"

#include "tessera/offload/activations/host_activation_sink.h"
#include "tessera/sharding/interception/paged_storage.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace tessera::engine {

namespace {

/// True for paged storages of any engine, and for what `module` holds now.
runtime::StorageTest storages_that_pass(const torch::nn::Module& module) {
  std::unordered_set<const c10::StorageImpl*> held;
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.has_storage()) {
        held.insert(tensor.storage().unsafeGetStorageImpl());
      }
    }
  };
  add(module.parameters());
  add(module.buffers());
  return [held = std::move(held)](const c10::StorageImpl& storage) {
    return sharding::PagedStorage::of(&storage) != nullptr ||
           held.contains(&storage);
  };
}

std::shared_ptr<offload::HostActivationSink> make_sink(
    const torch::nn::Module& module,
    std::optional<MemoryTier> tier,
    const OffloadOptions& options,
    int64_t activation_bytes) {
  offload::HostActivationSinkOptions sink;
  sink.device = module.parameters().at(0).device();
  sink.min_tensor_bytes = options.min_tensor_bytes;
  sink.prefetch_bytes = options.prefetch_bytes;
  sink.host_bytes = options.activation_host_bytes;
  sink.passes = storages_that_pass(module);
  if (!tier) {
    sink.device_bytes = activation_bytes;
  } else if (tier == MemoryTier::kHost) {
    sink.copy_at_once = true;
    sink.device_bytes = activation_bytes > 0
                            ? std::min(activation_bytes, options.prefetch_bytes)
                            : options.prefetch_bytes;
  }
  return std::make_shared<offload::HostActivationSink>(std::move(sink));
}

} // namespace

ActivationOffload::ActivationOffload(
    const torch::nn::Module& module,
    std::optional<MemoryTier> tier,
    const OffloadOptions& options,
    int64_t activation_bytes)
    : sink_(make_sink(module, tier, options, activation_bytes)),
      scope_(sink_) {}

std::shared_ptr<runtime::ActivationSink> ActivationOffload::sink() const {
  return sink_;
}

ActivationStatistics ActivationOffload::statistics() const {
  return sink_->statistics();
}

void ActivationOffload::reset_peaks() {
  sink_->reset_peaks();
}

std::vector<SavedByProducer> ActivationOffload::saved_by_producer() const {
  return sink_->saved_by_producer();
}

} // namespace tessera::engine
