// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/move_module.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/page_key.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <unordered_map>

namespace tessera {

namespace {

/// Makes the counterparts of storages on a device, each once.
class StorageMover {
 public:
  explicit StorageMover(c10::Device device) : device_(device) {}

  /// What `tensor` is to look at in place of its own storage.
  c10::Storage counterpart(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    const auto [place, is_new] =
        moved_.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) {
      place->second = is_deferred(tensor) ? deferred(tensor) : copied(tensor);
    }
    return place->second;
  }

 private:
  c10::Storage deferred(const at::Tensor& tensor) const {
    const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    const auto count =
        static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
    return make_deferred(
               {count},
               at::TensorOptions().dtype(tensor.dtype()).device(device_),
               *deferred_init(storage))
        .storage();
  }

  c10::Storage copied(const at::Tensor& tensor) const {
    // All of the memory, whatever part of it the tensor shows.
    const auto count = static_cast<int64_t>(
        tensor.storage().nbytes() / tensor.itemsize());
    const at::Tensor source =
        at::empty({0}, tensor.options().requires_grad(false));
    source.set_(tensor.storage(), 0, {count}, {1});
    return source.to(device_).storage();
  }

  c10::Device device_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> moved_;
};

bool is_elsewhere(const at::Tensor& tensor, c10::Device device) {
  // "cuda" without a number is the current one; a tensor's has a number.
  return tensor.defined() && tensor.has_storage() &&
         (tensor.device().type() != device.type() ||
          (device.has_index() && tensor.device() != device));
}

void move(at::Tensor tensor, const c10::Storage& storage) {
  const at::Tensor replacement = at::empty(
      {0}, tensor.options().requires_grad(false).device(storage.device()));
  auto* impl = replacement.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  tensor.mutable_grad().reset();
  tensor.set_data(replacement);
}

} // namespace

void move_module(torch::nn::Module& module, c10::Device device) {
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !has_page_key(item.value()),
        "move_module: parameter '",
        item.key(),
        "' is sharded by an engine. Move the module before tessera::wrap.");
  }
  // All storages are known before the first one goes: the addresses of those
  // that are freed would be given to new ones.
  StorageMover mover(device);
  std::vector<std::pair<at::Tensor, c10::Storage>> moves;
  const auto plan = [&](const at::Tensor& tensor) {
    if (is_elsewhere(tensor, device)) {
      moves.emplace_back(tensor, mover.counterpart(tensor));
    }
  };
  for (const at::Tensor& parameter : module.parameters()) {
    plan(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    plan(buffer);
  }
  for (const auto& [tensor, storage] : moves) {
    move(tensor, storage);
  }
}

} // namespace tessera
