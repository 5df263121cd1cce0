// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/move_module.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/replace_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// Copies storages to a device, each once.
class StorageMover {
 public:
  explicit StorageMover(c10::Device device) : device_(device) {}

  /// Returns the storage that replaces that of `tensor`.
  c10::Storage counterpart(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    const auto [found, is_new] =
        moved_.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) {
      found->second =
          sharding::is_deferred(tensor) ? deferred(tensor) : copied(tensor);
    }
    return found->second;
  }

 private:
  c10::Storage deferred(const at::Tensor& tensor) const {
    const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    c10::Storage moved(
        c10::Storage::use_byte_size_t{},
        storage.nbytes(),
        c10::DataPtr(nullptr, device_),
        /*allocator=*/nullptr,
        /*resizable=*/false);
    sharding::set_deferred_init(
        *moved.unsafeGetStorageImpl(), *sharding::deferred_init(storage));
    return moved;
  }

  c10::Storage copied(const at::Tensor& tensor) const {
    // The whole storage, whichever part of it the tensor shows.
    const auto count =
        static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
    const at::Tensor source =
        at::empty({0}, tensor.options().requires_grad(false));
    source.set_(tensor.storage(), 0, {count}, {1});
    return source.to(device_).storage();
  }

  c10::Device device_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> moved_;
};

/// "cuda" without an index is the current device; that of a tensor has an
/// index.
c10::Device with_index(c10::Device device) {
  return device.is_cpu() || device.has_index()
             ? device
             : c10::impl::getDeviceGuardImpl(device.type())->getDevice();
}

bool is_elsewhere(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.has_storage() && tensor.device() != device;
}

} // namespace

void move_module(torch::nn::Module& module, c10::Device to) {
  const c10::NoGradGuard no_grad;
  const c10::Device device = with_index(to);
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "move_module: parameter '{}' is sharded by an engine. Move the module before tessera::wrap.",
        item.key());
  }
  // Collect all storages before any is freed: new ones could get the addresses
  // of those that were freed.
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
  for (auto& [tensor, storage] : moves) {
    tensor.mutable_grad().reset();
    sharding::replace_storage(tensor, storage, tensor.scalar_type());
  }
}

void convert_deferred(torch::nn::Module& module, at::ScalarType dtype) {
  convert_deferred(module, [dtype](const std::string&) { return dtype; });
}

void convert_deferred(
    torch::nn::Module& module,
    const std::function<at::ScalarType(const std::string& name)>& dtype_of) {
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    const at::ScalarType dtype = dtype_of(item.key());
    const at::ScalarType from = parameter.scalar_type();
    if (!sharding::is_deferred(parameter) || from == dtype ||
        !at::isFloatingType(from)) {
      continue;
    }
    const c10::StorageImpl& storage =
        *parameter.storage().unsafeGetStorageImpl();
    sharding::DeferredInit init = *sharding::deferred_init(storage);
    init.fill = [fill = std::move(init.fill), from](
                    const at::Tensor& slice, int64_t first_element) {
      const at::Tensor values =
          at::empty_like(slice, slice.options().dtype(from));
      fill(values, first_element);
      slice.copy_(values);
    };
    c10::Storage converted(
        c10::Storage::use_byte_size_t{},
        storage.nbytes() / c10::elementSize(from) * c10::elementSize(dtype),
        c10::DataPtr(nullptr, parameter.device()),
        /*allocator=*/nullptr,
        /*resizable=*/false);
    sharding::set_deferred_init(
        *converted.unsafeGetStorageImpl(), std::move(init));
    sharding::replace_storage(parameter, converted, dtype);
  }
}

} // namespace tessera
