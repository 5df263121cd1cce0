// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/deferred_init.h"

#include "tessera/runtime/core/format.h"
#include "tessera/sharding/interception/paged_storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

namespace tessera::sharding {

namespace {

// Marks a DataPtr as deferred and owns its context.
void deferred_init_deleter(void* context) {
  delete static_cast<DeferredInit*>(context);
}

} // namespace

std::string source_of(const DeferredInit& init) {
  std::string text;
  if (!init.files_identity.empty()) {
    text = "the weights in their files: " + init.files_identity;
  }
  if (init.init_seed) {
    text += formatted(
        "{}init_parameters() with the seed {}",
        text.empty() ? "" : ", ",
        *init.init_seed);
  }
  return text;
}

void set_deferred_init(c10::StorageImpl& storage, DeferredInit init) {
  auto context = std::make_unique<DeferredInit>(std::move(init));
  const std::string message =
      context->name +
      " has no memory yet. Pass its module to tessera::wrap, which creates "
      "each rank's part, or call tessera::materialize(module) for all of it.";
  storage.set_data_ptr_noswap(c10::DataPtr(
      nullptr, context.release(), &deferred_init_deleter, storage.device()));
  forbid_access(storage, message);
}

DeferredInit* deferred_init(const c10::StorageImpl& storage) {
  // The checked accessor would throw.
  const c10::DataPtr& data =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &deferred_init_deleter
             ? static_cast<DeferredInit*>(data.get_context())
             : nullptr;
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         deferred_init(*tensor.storage().unsafeGetStorageImpl()) != nullptr;
}

at::Tensor make_deferred(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    DeferredInit init) {
  const c10::NoGradGuard no_grad;
  at::Tensor tensor = at::empty({0}, options.requires_grad(false));
  const size_t nbytes =
      static_cast<size_t>(c10::multiply_integers(sizes)) * tensor.itemsize();
  c10::Storage storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      c10::DataPtr(nullptr, tensor.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  set_deferred_init(*storage.unsafeGetStorageImpl(), std::move(init));
  tensor.unsafeGetTensorImpl()->set_storage_and_dtype(
      std::move(storage), tensor.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void materialize_tensor(const at::Tensor& tensor) {
  if (!is_deferred(tensor)) {
    return;
  }
  const c10::NoGradGuard no_grad;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto count = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  const at::Tensor full =
      at::empty({count}, tensor.options().requires_grad(false));
  deferred_init(storage)->fill(full, 0);
  allow_access(storage);
  // The DataPtr owns the filled tensor and so keeps its memory alive.
  storage.set_data_ptr_noswap(c10::DataPtr(
      full.data_ptr(),
      new at::Tensor(full),
      [](void* context) { delete static_cast<at::Tensor*>(context); },
      full.device()));
}

} // namespace tessera::sharding
