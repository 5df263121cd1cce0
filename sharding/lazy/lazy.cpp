// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/lazy.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/random/generator_scope.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy_recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <mutex>
#include <unordered_set>

namespace tessera {

namespace {

using Storages = std::unordered_set<const c10::StorageImpl*>;

uint64_t draw_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

/// Sets the names of lazy parameters, for error messages.
/// @return their storages.
Storages name_parameters(const torch::nn::Module& module) {
  Storages parameters;
  for (const auto& item : module.named_parameters()) {
    const sharding::LazyFill* fill = sharding::lazy_fill(item.value());
    if (fill == nullptr) {
      continue;
    }
    c10::StorageImpl& storage = *item.value().storage().unsafeGetStorageImpl();
    if (parameters.insert(&storage).second) {
      sharding::set_deferred_init(
          storage,
          {*fill, "parameter '" + item.key() + "'", fill->value->seeds});
    }
  }
  return parameters;
}

void materialize_storage(
    const c10::intrusive_ptr<c10::StorageImpl>& storage,
    at::ScalarType dtype) {
  const at::Tensor tensor = at::empty(
      {0}, at::TensorOptions().dtype(dtype).device(storage->device()));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(storage));
  sharding::materialize_tensor(tensor);
}

} // namespace

struct LazyScope::State {
  sharding::LazyRecording recording;
  sharding::RecordedOperators recorded;
  runtime::GeneratorScope generator; ///< for tensors that are made at once
};

LazyScope::LazyScope(const LazyOptions& options) {
  sharding::ensure_recording_mode_registered();
  TESSERA_CHECK(
      sharding::lazy_recording() == nullptr,
      "tessera::lazy was called inside tessera::lazy; remove the inner call.");
  TESSERA_CHECK(
      options.min_numel >= 0 && options.max_read_numel >= 0,
      "LazyOptions: min_numel is {} and max_read_numel is {}; they must be at least 0.",
      options.min_numel,
      options.max_read_numel);
  state_ = std::make_unique<State>();
  state_->recording.options = options;
  state_->recording.seed =
      std::make_shared<uint64_t>(options.seed ? *options.seed : draw_seed());
  if (options.seed) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::scoped_lock lock(generator.mutex());
    state_->generator.begin(generator, *options.seed);
  }
  sharding::lazy_recording() = &state_->recording;
}

LazyScope::~LazyScope() {
  sharding::lazy_recording() = nullptr;
}

void LazyScope::finish(const torch::nn::Module& module) {
  const sharding::NotRecorded not_recorded;
  const auto parameters = name_parameters(module);
  for (const auto& item : module.named_buffers()) {
    if (sharding::lazy_fill(item.value()) != nullptr &&
        !parameters.count(item.value().storage().unsafeGetStorageImpl())) {
      sharding::materialize_tensor(item.value());
    }
  }
  for (const auto& weak : state_->recording.made) {
    const auto storage = weak.lock();
    // Nothing else refers to it, or it belongs to a parameter.
    if (storage == nullptr || storage.use_count() == 1 ||
        parameters.count(storage.get())) {
      continue;
    }
    const sharding::LazyFill* fill = sharding::lazy_fill(*storage);
    // A large tensor may be the weight of a module that served as a template.
    if (fill == nullptr ||
        fill->value->largest_numel > state_->recording.options.max_read_numel) {
      continue;
    }
    materialize_storage(storage, fill->value->dtype);
  }
}

void materialize(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    sharding::materialize_tensor(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    sharding::materialize_tensor(buffer);
  }
}

} // namespace tessera
